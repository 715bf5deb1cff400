"""Tests of models and caches with empty batches, meta tensors, graphs, and torch.func.
The contract tests do the same for each encoding."""

import pytest
import torch
from tiers import rest_slow
from torch import Tensor
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

from posenc import Attention, Block, Decoder, Encoder, EncoderDecoder, Encoding, Positions, catalogue, kernels, masks

SPECS = ["rotary + alibi", "learned", "forgetting", "dape(kerple)", "sinusoidal + t5_bias", "path", "tupe"]
SIZES = {"vocab": 11, "dim": 16, "heads": 2, "layers": 2, "max_len": 32}
CACHES = [{}, {"slots": 12}, {"slots": 5, "rolling": True}]


@pytest.mark.parametrize("spec", SPECS)
def test_an_empty_batch_gives_an_empty_result(spec: str) -> None:
    model, ids = Decoder(**SIZES, encoding=spec), torch.zeros(0, 5, dtype=torch.long)
    assert model(ids).shape == (0, 5, 11)
    assert model(ids, padding=torch.ones_like(ids), only=slice(-1, None)).shape == (0, 1, 11)
    logits, weights = model(ids, need_weights=True)
    assert [layer.shape for layer in weights] == [(0, 2, 5, 5)] * 2
    for options in CACHES:
        cache, mask = model.cache(**options), masks.window(5)
        assert model(ids, cache=cache, mask=mask).shape == (0, 5, 11)
        assert model(ids[:, :1], cache=cache, mask=mask).shape == (0, 1, 11)
    logits.sum().backward()
    assert Encoder(**SIZES, encoding=spec)(ids).shape == (0, 5, 16)
    encoder_decoder = EncoderDecoder(**SIZES, encoding=spec)
    assert encoder_decoder(ids, ids[:, :3]).shape == (0, 3, 11)
    assert encoder_decoder.generate(ids, ids[:, :1], 3).shape == (0, 4)


def test_generation_of_no_rows_gives_no_rows() -> None:
    model, ids = Decoder(**SIZES), torch.zeros(0, 5, dtype=torch.long)
    assert model.generate(ids, 3).shape == (0, 8)
    assert model.generate(ids, 3, temperature=1.0, top_k=2, padding=torch.ones_like(ids)).shape == (0, 8)
    assert model.generate(ids, 3, eos_token_id=1).shape[0] == 0


@pytest.mark.parametrize("name", [*kernels.AUTO, "flex"])
@pytest.mark.parametrize("spec", ["alibi", "shaw(values=False)", "transformer_xl"])
def test_every_kernel_takes_an_empty_batch(name: str, spec: str) -> None:
    layer, x = Attention(16, 2, encoding=spec, kernel=name), torch.zeros(0, 5, 16)
    with torch.no_grad():
        for mask in (masks.causal(), masks.window(2), masks.prefix(2), torch.ones(0, 1, 5, 5, dtype=torch.bool)):
            assert layer(x, mask=mask).shape == x.shape
        assert layer(x, positions=Positions.padded(torch.ones(0, 5)), mask=masks.causal()).shape == x.shape
        assert layer(x, positions=torch.zeros(0, 5), mask=masks.causal()).shape == x.shape


@pytest.mark.parametrize("spec", rest_slow(SPECS, 3))
def test_a_model_without_data_says_its_shapes(spec: str) -> None:
    with torch.device("meta"):
        model, ids = Decoder(**SIZES, encoding=spec), torch.zeros(2, 5, dtype=torch.long)
        assert model(ids).shape == (2, 5, 11)
        assert model(ids, positions=torch.arange(5), mask=masks.window(2)).is_meta
        for options in CACHES:
            cache = model.cache(**options)
            model(ids, cache=cache, mask=masks.window(5))
            assert model(ids[:, :1], cache=cache, mask=masks.window(5)).shape == (2, 1, 11)
        assert EncoderDecoder(**SIZES, encoding=spec)(ids, ids).shape == (2, 5, 11)
    assert model(ids).shape == (2, 5, 11)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("spec", rest_slow(SPECS, 3))
def test_a_model_can_be_planned_with_fake_tensors(spec: str, dtype: torch.dtype | None) -> None:
    with FakeTensorMode():
        model, ids = Decoder(**SIZES, encoding=spec, dtype=dtype), torch.zeros(2, 5, dtype=torch.long)
        assert model(ids, padding=torch.ones_like(ids)).shape == (2, 5, 11)
        assert {p.dtype for p in model.parameters()} == {dtype or torch.float32}
        encoder_decoder = EncoderDecoder(**SIZES, encoding=spec, cross_encoding="t5_bias", device="meta")
        assert {p.device.type for p in encoder_decoder.parameters()} == {"meta"}


class Plain(Encoding):
    """An encoding whose constructor takes neither a device nor a dtype."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.ones(heads))

    def by_distance(self, delta: Tensor) -> Tensor:
        return -self.slope[:, None] * delta


def test_an_encoding_is_made_or_moved_where_the_model_is() -> None:
    class_path = f"{__file__}:Plain"
    for spec in (
        class_path,
        Plain(2),
        "alibi(learned=True)",
        "dape(kerple)",
        "on(t5_bias, heads=(1,)) + shaw",
        f"dape({class_path})",
    ):
        for module in (
            Attention(16, 2, encoding=spec, dtype=torch.float64, device="meta"),
            Decoder(**SIZES, encoding=spec, dtype=torch.float64, device="meta"),
        ):
            assert {(p.dtype, p.device.type) for p in module.parameters()} == {(torch.float64, "meta")}


def lengths(least: int) -> dict[int, torch.export.Dim]:
    return {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens", min=least, max=32)}


def check_export(spec: str) -> None:
    model = Decoder(**SIZES, encoding=spec).eval()
    if any(encoding.axes > 1 for encoding in model.stack.encodings):
        pytest.skip("the encoding reads several axes, and ids have one")

    def inputs(batch: int, tokens: int) -> tuple[Tensor, dict[str, Tensor]]:
        ids = torch.randint(11, (batch, tokens))
        return ids, {"padding": torch.arange(tokens) >= torch.arange(batch)[:, None] % tokens}

    ids, padding = inputs(3, 7)
    dynamic = {"ids": lengths(3), "padding": lengths(3)}
    graph = torch.export.export(model, (ids,), padding, strict=False, dynamic_shapes=dynamic).module()
    for batch, tokens in ((3, 7), (1, 3), (5, 32)):
        ids, padding = inputs(batch, tokens)
        torch.testing.assert_close(graph(ids, **padding), model(ids, **padding), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["rotary + alibi", "tupe"])
def test_an_exported_model_serves_batches_and_lengths_of_any_size(spec: str) -> None:
    check_export(spec)


@pytest.mark.slow
@pytest.mark.parametrize("spec", catalogue.names())
def test_every_model_that_is_exported_serves_batches_and_lengths_of_any_size(spec: str) -> None:
    check_export(spec)


@pytest.mark.parametrize("spec", ["kerple", "tupe", "forgetting"])
def test_a_graph_of_the_operators_trains_what_the_model_trains(spec: str) -> None:
    layer = Attention(16, 2, encoding=spec).double()

    def run(x: Tensor) -> Tensor:
        return layer(x, mask=masks.causal())

    graph, x = make_fx(run)(torch.randn(2, 6, 16, dtype=torch.float64)), torch.randn(2, 6, 16, dtype=torch.float64)
    parameters = list(layer.parameters())
    actual, expected = (torch.autograd.grad(way(x).square().sum(), parameters) for way in (graph, run))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("spec", SPECS)
def test_networks_of_one_shape_are_run_as_one_with_vmap(spec: str) -> None:
    layers = [Block(16, 2, encoding=spec, max_len=32, causal=True).double() for _ in range(3)]
    x, at = torch.randn(2, 5, 16, dtype=torch.float64), torch.arange(5)
    stacked_state, _ = torch.func.stack_module_state(layers)  # parameters that require gradients, including the bias's

    def run(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers[0], parameters, (x,), {"positions": at, "mask": masks.causal()})

    actual = torch.func.vmap(run)(stacked_state)
    expected = torch.stack([layer(x, positions=at, mask=masks.causal()) for layer in layers])
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_a_kernel_that_cannot_be_transformed_says_so_and_auto_takes_one_that_can() -> None:
    layer, x = Attention(16, 2, encoding="t5_bias", causal=True).double(), torch.randn(1, 5, 16, dtype=torch.float64)
    for name in ("sdpa", "blocked", "flex"):
        layer.kernel = name
        with pytest.raises(ValueError, match=r"torch.func .*cannot transform .*use kernel='reference' or 'auto'"):
            torch.func.jvp(lambda x: layer(x, mask=masks.causal()), (x,), (x,))
        with forward_ad.dual_level(), torch.no_grad(), pytest.raises(ValueError, match="cannot transform"):
            layer(forward_ad.make_dual(x, x), mask=masks.causal())
    layer.kernel = "auto"
    with forward_ad.dual_level():
        slope = forward_ad.unpack_dual(layer(forward_ad.make_dual(x, x), mask=masks.causal())).tangent
    step = 1e-6
    numeric = (layer(x * (1 + step), mask=masks.causal()) - layer(x * (1 - step), mask=masks.causal())) / (2 * step)
    torch.testing.assert_close(slope, numeric, rtol=0, atol=1e-8)


@pytest.mark.parametrize("schedule", ["dynamic_ntk()", "dynamic_yarn()"])
@pytest.mark.parametrize("options", CACHES)
def test_within_the_trained_length_a_schedule_by_length_needs_no_length_behind_any_cache(schedule, options) -> None:
    window = 5 if "rolling" in options else None
    model = Decoder(**SIZES, encoding=f"rotary(schedule={schedule})", window=window).double().eval()
    ids, cache = torch.randint(11, (2, 12)), model.cache(**options)
    with torch.no_grad():
        expected = model(ids)
        actual = [model(ids[:, :5], cache=cache), *(model(ids[:, t : t + 1], cache=cache) for t in range(5, 12))]
    torch.testing.assert_close(torch.cat(actual, 1), expected, rtol=0, atol=1e-12)
    late = Positions.count(1, start=32)
    with pytest.raises(ValueError, match="no length is declared"):
        model(ids[:, :1], positions=late)


def test_a_grid_bias_says_that_text_has_one_axis() -> None:
    for spec in ("grid_bias", "log_grid_bias"):
        with pytest.raises(ValueError, match=f"{spec} reads 2 axes, got positions with 1 axis"):
            Decoder(**SIZES, encoding=spec)(torch.zeros(1, 5, dtype=torch.long))
