"""Models and caches with an empty batch, without data, and under torch.func; the contract asks each encoding."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

from posenc import Attention, Decoder, Encoder, EncoderDecoder, Positions, kernels, masks

SPECS = ["rotary + alibi", "learned", "sinusoidal + t5_bias", "forgetting", "path", "dape(kerple)", "tupe"]
SIZES = {"vocab": 11, "dim": 16, "heads": 2, "layers": 2, "max_len": 32}
CACHES = [{}, {"slots": 12}, {"slots": 5, "rolling": True}]


@pytest.mark.parametrize("spec", SPECS)
def test_an_empty_batch_gives_an_empty_result(spec: str) -> None:
    model, ids = Decoder(**SIZES, encoding=spec), torch.zeros(0, 5, dtype=torch.long)
    assert model(ids).shape == (0, 5, 11)
    assert model(ids, padding=torch.ones_like(ids), only=slice(-1, None)).shape == (0, 1, 11)
    logits, weights = model(ids, weights=True)
    assert [layer.shape for layer in weights] == [(0, 2, 5, 5)] * 2
    for options in CACHES:
        cache, mask = model.cache(**options), masks.window(5)
        assert model(ids, cache=cache, mask=mask).shape == (0, 5, 11)
        assert model(ids[:, :1], cache=cache, mask=mask).shape == (0, 1, 11)
    logits.sum().backward()
    assert Encoder(**SIZES, encoding=spec)(ids).shape == (0, 5, 16)
    both = EncoderDecoder(**SIZES, encoding=spec)
    assert both(ids, ids[:, :3]).shape == (0, 3, 11)
    assert both.generate(ids, ids[:, :1], 3).shape == (0, 4)


def test_generation_of_no_rows_gives_no_rows() -> None:
    model, ids = Decoder(**SIZES), torch.zeros(0, 5, dtype=torch.long)
    assert model.generate(ids, 3).shape == (0, 8)
    assert model.generate(ids, 3, temperature=1.0, top_k=2, padding=torch.ones_like(ids)).shape == (0, 8)
    assert model.generate(ids, 3, stop=1).shape[0] == 0


@pytest.mark.parametrize("name", [*kernels.AUTO, "flex"])
@pytest.mark.parametrize("spec", ["alibi", "shaw(values=False)"])
def test_every_kernel_takes_an_empty_batch(name: str, spec: str) -> None:
    layer, x = Attention(16, 2, encoding=spec, kernel=name), torch.zeros(0, 5, 16)
    with torch.no_grad():
        for mask in (masks.causal(), masks.window(2), masks.prefix(2), torch.ones(0, 1, 5, 5, dtype=torch.bool)):
            assert layer(x, mask=mask).shape == x.shape
        assert layer(x, positions=Positions.padded(torch.ones(0, 5)), mask=masks.causal()).shape == x.shape
        assert layer(x, positions=torch.zeros(0, 5), mask=masks.causal()).shape == x.shape


@pytest.mark.parametrize("spec", SPECS)
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


@pytest.mark.parametrize("spec", SPECS)
def test_networks_of_one_shape_are_run_as_one_with_vmap(spec: str) -> None:
    layers = [Attention(16, 2, encoding=spec, max_len=32).double() for _ in range(3)]
    x, at = torch.randn(2, 5, 16, dtype=torch.float64), torch.arange(5)
    stacked, _ = torch.func.stack_module_state(layers)  # parameters that want gradients, for a bias as well

    def run(parameters: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(layers[0], parameters, (x,), {"positions": at, "mask": masks.causal()})

    got = torch.func.vmap(run)(stacked)
    expected = torch.stack([layer(x, positions=at, mask=masks.causal()) for layer in layers])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_a_kernel_that_cannot_be_transformed_says_so_and_auto_takes_one_that_can() -> None:
    layer, x = Attention(16, 2, encoding="t5_bias").double(), torch.randn(1, 5, 16, dtype=torch.float64)
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
    measured = (layer(x * (1 + step), mask=masks.causal()) - layer(x * (1 - step), mask=masks.causal())) / (2 * step)
    torch.testing.assert_close(slope, measured, rtol=0, atol=1e-8)


@pytest.mark.parametrize("schedule", ["dynamic_ntk()", "dynamic_yarn()"])
@pytest.mark.parametrize("options", CACHES)
def test_within_the_trained_length_a_schedule_by_length_needs_no_length_behind_any_cache(schedule, options) -> None:
    window = 5 if "rolling" in options else None
    model = Decoder(**SIZES, encoding=f"rotary(schedule={schedule})", window=window).double().eval()
    ids, cache = torch.randint(11, (2, 12)), model.cache(**options)
    with torch.no_grad():
        expected = model(ids)
        got = [model(ids[:, :5], cache=cache), *(model(ids[:, t : t + 1], cache=cache) for t in range(5, 12))]
    torch.testing.assert_close(torch.cat(got, 1), expected, rtol=0, atol=1e-12)
    late = Positions.count(1, start=32)
    with pytest.raises(ValueError, match="nobody said so"):
        model(ids[:, :1], positions=late)


def test_a_grid_bias_says_that_text_has_one_axis() -> None:
    for spec in ("grid_bias", "log_grid_bias"):
        with pytest.raises(ValueError, match=f"{spec} reads 2 axes, got positions with 1 axis"):
            Decoder(**SIZES, encoding=spec)(torch.zeros(1, 5, dtype=torch.long))
