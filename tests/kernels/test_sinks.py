"""Learned sinks (a logit without a value for each head) give equal results in every kernel."""

import math

import pytest
import torch
from tiers import rest_slow
from torch import Tensor

from posenc import Attention, Decoder, Encoding, Keys, Positions, Shape, build, chosen_weights, kernels, masks, preset
from posenc.kernels.block_sizes import SIZES
from posenc.tokens.masks import Mask

B, H, KV, T, D = 2, 4, 2, 9, 6
SHAPE = Shape(H * D, H, D, 64)
SPECS = ["none", "rotary + alibi(learned=True)", "t5_bias + forgetting", "deberta", "rerope(rotary, window=3)", "fire"]
PADDED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1], [1] * T])
PLACES: dict[str, tuple[Positions, Positions, Mask]] = {
    "padded": (Positions.padded(PADDED), Positions.padded(PADDED), masks.window(4)),
    "one query": (Positions.count(1, 8), Positions.count(T), masks.window(5)),
    "in a row": (Positions.count(T), Positions.count(T), masks.causal()),
    "in a window": (Positions.count(T), Positions.count(T), masks.window(3)),
    "with a mask": (Positions.count(T), Positions.count(T), Mask(tensor=torch.eye(T).flip(0) == 0)),
    "packed": (Positions.packed([4, 5]), Positions.packed([4, 5]), masks.bidirectional()),
    "before its keys": (Positions.count(T), Positions.count(T, 4), masks.causal()),
}


def encoding_of(spec: str) -> Encoding:
    torch.manual_seed(2)
    encoding = build(spec, SHAPE).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return encoding


def inputs(at: Positions, keys_at: Positions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return queries, keys, values and sinks."""
    torch.manual_seed(3)
    heads = ((H, at.tokens), (KV, keys_at.tokens), (KV, keys_at.tokens))
    q, k, v = (torch.randn(B, *sizes, D, dtype=torch.float64, requires_grad=True) for sizes in heads)
    return q, k, v, torch.tensor([-30.0, -1.0, 0.5, 4.0], dtype=torch.float64, requires_grad=True)


def run_kernel(name: str, encoding: Encoding, at: Positions, keys_at: Positions, mask: Mask) -> list[Tensor]:
    """Return the output, and gradients in queries, keys, values, sinks and parameters."""
    q, k, v, sinks = inputs(at, keys_at)
    keys = Keys(k, v, keys_at)
    if "remember" in encoding.doors:
        torch.manual_seed(4)
        facts = (encoding.remember(torch.randn(B, p.tokens, H * D).double(), p) for p in (keys_at, at))
        keys = Keys(k, v, keys_at, *facts)
    out, _ = encoding.attend(q, at, keys, mask, kernels.bind(name, encoding, scale=0.4, sinks=sinks))
    weigh = torch.linspace(1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    leaves = [q, k, v, sinks, *encoding.parameters()]
    slopes = torch.autograd.grad((out * weigh).sum(), leaves, allow_unused=True)
    return [out, *(torch.zeros(()) if slope is None else slope for slope in slopes)]


def assert_equal(actual: list[Tensor], expected: list[Tensor]) -> None:
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-9)


def by_hand(q: Tensor, k: Tensor, sinks: Tensor, visible: Tensor, scale: float) -> list[list[list[list[float]]]]:
    """Compute exp(l_ij) / (exp(s_h) + sum_j exp(l_ij)), number by number."""
    rows = range(B), range(H), range(q.shape[2])
    shares = [[[[0.0] * k.shape[2] for _ in rows[2]] for _ in rows[1]] for _ in rows[0]]
    for b in rows[0]:
        for h in rows[1]:
            for i in rows[2]:
                keys = [j for j in range(k.shape[2]) if visible[b % len(visible), 0, i, j]]
                of_keys = {
                    j: math.exp(scale * math.fsum((q[b, h, i] * k[b, h // (H // KV), j]).tolist())) for j in keys
                }
                for j, number in of_keys.items():
                    shares[b][h][i][j] = number / (math.exp(sinks[h]) + math.fsum(of_keys.values()))
    return shares


@pytest.mark.parametrize("place", PLACES)
def test_the_weights_are_those_of_the_formula(place: str) -> None:
    at, keys_at, mask = PLACES[place]
    q, k, v, sinks = (x.detach() for x in inputs(at, keys_at))
    expected = torch.tensor(by_hand(q, k, sinks, mask.allowed(at, keys_at), 0.4), dtype=torch.float64)
    bound = kernels.bind("reference", build("none", SHAPE), scale=0.4, need_weights=True, sinks=sinks)
    out, weights = bound(build("none", SHAPE), q, at, Keys(k, v, keys_at), mask)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(out, expected @ v.repeat_interleave(H // KV, 1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("spec", SPECS)
def test_every_kernel_gives_what_the_readable_one_gives(spec: str, place: str) -> None:
    encoding = encoding_of(spec)
    expected = run_kernel("reference", encoding, *PLACES[place])
    assert all(bool(x.isfinite().all()) for x in expected)
    for name in ("blocked", "sdpa"):
        assert_equal(run_kernel(name, encoding, *PLACES[place]), expected)


@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@pytest.mark.parametrize("place", rest_slow(PLACES, 2))
def test_flex_gives_what_the_readable_kernel_gives(place: str) -> None:
    encoding, (at, keys_at, mask) = encoding_of("rotary + alibi"), PLACES[place]
    q, k, v, sinks = (x.detach() for x in inputs(at, keys_at))
    with torch.no_grad():
        actual, expected = (
            encoding.attend(q, at, Keys(k, v, keys_at), mask, kernels.bind(name, encoding, scale=0.4, sinks=sinks))[0]
            for name in ("flex", "reference")
        )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("tokens", [1, T])
def test_vectors_that_are_added_to_values_get_the_share_of_their_keys(tokens: int, monkeypatch) -> None:
    monkeypatch.setattr(SIZES, "keys_for_vectors", 1, raising=False)
    at, keys_at = Positions.count(tokens, T - tokens), Positions.count(T)
    encoding = encoding_of("shaw(max_distance=3)")
    bound = kernels.bind("auto", encoding, scale=0.4, served=(ways := set()), sinks=inputs(at, keys_at)[3])
    q, k, v, _ = inputs(at, keys_at)
    encoding.attend(q, at, Keys(k, v, keys_at), masks.causal(), bound)
    assert "blocked" in ways
    case = at, keys_at, masks.causal()
    assert_equal(run_kernel("auto", encoding, *case), run_kernel("reference", encoding, *case))


def test_heads_that_look_no_further_than_they_reach_have_their_sinks() -> None:
    """Distant keys have no weight beside near ones and a sink."""
    encoding, at = build("alibi", Shape(24, 4, 6, 64)), Positions.count(600)
    torch.manual_seed(4)
    q, k, v = (torch.randn(1, 4, 600, 6) for _ in range(3))
    actual, expected = (
        kernels.bind(name, encoding, scale=0.4, sinks=torch.tensor([-9.0, 0.0, 3.0, 9.0]))(
            encoding, q, at, Keys(k, v, at), masks.causal()
        )[0]
        for name in ("blocked", "reference")
    )
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def layer(spec: str | Encoding = "rotary + alibi", **sizes) -> Attention:
    torch.manual_seed(0)
    attention = Attention(24, heads=4, kv_heads=2, encoding=spec, sinks=True, **sizes).double()
    assert attention.sinks is not None
    torch.nn.init.normal_(attention.sinks)
    return attention


def tokens(n: int = T) -> Tensor:
    return torch.randn(B, n, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def test_weights_are_given_as_applied_and_chosen_ones_are_the_same() -> None:
    attention, x = layer(), tokens()
    out, weights = attention(x, mask=masks.causal(), need_weights=True)
    assert bool((weights.sum(-1) < 1).all()) and bool((weights.sum(-1) > 0).all())
    chosen_out, subset = chosen_weights(attention, x, mask=masks.causal(), rows=(2, -1), heads=(3, 0))
    torch.testing.assert_close(subset, weights[:, [3, 0]][:, :, [2, -1]], rtol=0, atol=1e-12)
    torch.testing.assert_close(chosen_out, out, rtol=0, atol=1e-12)


def test_sinks_begin_as_softmax_off_by_one_and_are_made_again_after_meta() -> None:
    attention = Attention(24, heads=4, sinks=True, device="meta").to_empty(device="cpu")
    for module in attention.modules():
        getattr(module, "reset_parameters", lambda: None)()
    x = torch.randn(1, 5, 24)
    q, k = (attention.split(project(x), 4) for project in (attention.q_proj, attention.k_proj))
    exponentials = (q @ k.mT * 6**-0.5).exp()
    off_by_one = exponentials / (1 + exponentials.sum(-1, keepdim=True))
    torch.testing.assert_close(attention(x, need_weights=True)[1], off_by_one)
    assert Attention(24, heads=4).sinks is None and "sinks" not in Attention(24, heads=4).state_dict()
    assert "sinks=True" in repr(attention)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_dropout_drops_keys_and_no_sink(kernel: str) -> None:
    """Dropout doubles one key's share for half of the queries, and drops it for the rest."""
    encoding, at = build("none", SHAPE), Positions.count(64)
    k = torch.zeros(1, H, 1, D)
    bound = kernels.bind(kernel, encoding, scale=1.0, dropout=0.5, sinks=torch.full((H,), math.log(3)))
    out, _ = bound(encoding, torch.zeros(1, H, 64, D), at, Keys(k, k + 1, Positions.count(1)), masks.bidirectional())
    assert {round(number, 6) for number in out.flatten().tolist()} == {0.0, 0.5}


@pytest.mark.parametrize("kernel", rest_slow([*kernels.AUTO, "flex"], 3))
@pytest.mark.filterwarnings("ignore:.*flex_attention called without torch.compile.*")
@torch.no_grad()
def test_caches_know_nothing_of_sinks(kernel: str) -> None:
    """One pass, chunks and single tokens agree, with windows in some layers, in every kernel."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    sizes = {"dim": 24, "heads": 4, "kv_heads": 2, "layers": 2, "window": (3, None), "sinks": True, "kernel": kernel}
    model = Decoder(11, **sizes, encoding="rotary").double()
    for name, parameter in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(parameter)
    ids = torch.randint(11, (2, T))
    readable = Decoder(11, **sizes | {"kernel": "reference"}, encoding="rotary").double()
    readable.load_state_dict(model.state_dict())
    expected = readable(ids)
    torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-9)
    for cuts in ([4, 1, 1, 3], [1] * T):
        cache = model.cache()
        actual = torch.cat([model(part, cache=cache) for part in ids.split(cuts, 1)], 1)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("spec", rest_slow(["rotary + alibi(learned=True)", "none"], 1))
@pytest.mark.parametrize("kernel", rest_slow(["auto", "sdpa", "blocked"], 2))
def test_a_graph_holds_sinks_and_their_gradient(kernel: str, spec: str) -> None:
    attention, x = layer(spec, kernel=kernel), tokens()
    torch._dynamo.reset()
    graph = torch.compile(attention, backend="aot_eager", fullgraph=True)
    results = []
    for forward in (attention, graph):
        out = forward(x, mask=masks.window(4))
        results.append([out, *torch.autograd.grad(out.square().sum(), list(attention.parameters()))])
    torch._dynamo.reset()
    assert_equal(results[1], results[0])


def test_half_precision_stays_near_double() -> None:
    attention, x = layer(), tokens()
    expected = attention(x, mask=masks.causal())
    for kernel in ("blocked", "sdpa", "reference"):
        attention.kernel = kernel
        actual = attention.bfloat16()(x.bfloat16(), mask=masks.causal())
        assert actual.dtype == torch.bfloat16
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=0.02)


def test_a_rule_without_a_softmax_is_refused() -> None:
    message = (
        "stick_breaking weighs keys by a rule of its own, and sinks take part in the softmax; build the attention with"
    )
    for weights in (False, True):
        with pytest.raises(ValueError, match=message):
            layer("stick_breaking")(tokens(), mask=masks.causal(), need_weights=weights)

    class Sigmoid(Encoding):
        def attend(self, q, at, keys, mask, kernel):
            return kernel.finish(kernel.logits(self, q, at, keys, mask).sigmoid(), keys)

    with pytest.raises(ValueError, match=r"weighs keys by a rule of its own, .* sinks=False, or take another encoding"):
        layer(Sigmoid())(tokens())


@torch.no_grad()
def test_what_flex_compiles_for_a_cpu_has_no_sums_for_sinks(monkeypatch) -> None:
    attention = layer(kernel="flex")
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    with pytest.raises(
        ValueError, match=r"FlexAttention compiled for 'cpu' does not return the sums of .* kernel='auto'"
    ):
        attention(tokens(), mask=masks.causal())


@pytest.mark.parametrize("kernel", ["auto", "reference"])
@pytest.mark.parametrize("layer_of", [0, 1])
def test_transformers_has_the_same_in_gpt_oss(layer_of: int, kernel: str) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed; it comes with the peers extra")
    from transformers.models.gpt_oss import configuration_gpt_oss, modeling_gpt_oss

    sizes = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    config = configuration_gpt_oss.GptOssConfig(**sizes, num_hidden_layers=2, sliding_window=5)
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    reference = modeling_gpt_oss.GptOssAttention(config, layer_of).double()
    torch.nn.init.normal_(reference.sinks)
    settings = preset("gpt_oss")
    attention = Attention(
        24, 4, kv_heads=2, head_dim=64, encoding=settings.encoding, sinks=settings.sinks, kernel=kernel
    ).double()
    attention.load_state_dict(reference.state_dict())
    window = reference.sliding_window
    assert window == (5 if layer_of == 0 else None)
    mask = masks.causal() if window is None else masks.window(window)
    x, at = tokens(), Positions.count(T)
    tables = modeling_gpt_oss.GptOssRotaryEmbedding(config)(x, torch.arange(T)[None])
    hidden = torch.zeros(1, 1, T, T, dtype=torch.float64).masked_fill(~mask.allowed(at, at), -math.inf)
    expected = reference(x, tables, hidden)[0]
    # transformers' tables of angles are in float32.
    torch.testing.assert_close(attention(x, mask=mask), expected, rtol=0, atol=2e-6)
