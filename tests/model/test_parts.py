"""Tests of norms, feed-forward layers, a Llama block, and version 0.2's state dicts and runs."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from posenc import Attention, Block, Decoder, masks
from posenc.kernels import reference
from posenc.lab.experiments.experiment import Experiment
from posenc.model.parts import FeedForward

OLD = {
    "attention.q_proj": "attention.to_query",
    "attention.k_proj": "attention.to_key",
    "attention.v_proj": "attention.to_value",
    "attention.o_proj": "attention.to_output",
    "feed_forward.up_proj": "feed_forward.0",
    "feed_forward.down_proj": "feed_forward.2",
}


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


KINDS = {
    "gelu": lambda up, _: gelu(up),
    "relu": lambda up, _: up.clamp(min=0),
    "relu2": lambda up, _: up.clamp(min=0) ** 2,
    "swiglu": lambda up, gate: gate * gate.sigmoid() * up,
    "geglu": lambda up, gate: gelu(gate) * up,
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_forward_layer_is_what_its_formula_says(kind: str) -> None:
    layer = FeedForward(6, 10, kind=kind).double()
    x = torch.randn(2, 3, 6, dtype=torch.float64)

    def linear(x: Tensor, name: str) -> Tensor:
        projection = getattr(layer, name)
        return x @ projection.weight.T + projection.bias

    inner = KINDS[kind](linear(x, "up_proj"), linear(x, "gate_proj") if layer.gate_proj else None)
    torch.testing.assert_close(layer(x), linear(inner, "down_proj"), rtol=0, atol=1e-12)


def test_a_gated_layer_has_as_many_parameters_as_a_plain_one() -> None:
    plain, swiglu = (
        sum(p.numel() for p in Block(96, heads=4, feed_forward=kind, bias=False).feed_forward.parameters())
        for kind in ("gelu", "swiglu")
    )
    assert plain == swiglu == 8 * 96 * 96


def rms(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(x: Tensor) -> Tensor:
    """Apply RoPE to x [B, H, T, D] by complex numbers, base 10,000, half layout."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[2])[:, None] * 10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    z = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((z.real, z.imag), -1)


def llama(block: Block, x: Tensor, eps: float) -> Tensor:
    """Compute a Llama block from our weights: RMSNorm, RoPE, grouped heads, SwiGLU, Qwen 3's norms."""
    layer, heads = block.attention, block.attention.heads
    y = rms(x, block.attention_norm.weight, eps)
    q, k, v = (
        (y @ projection.weight.T).unflatten(-1, (-1, layer.head_dim)).transpose(1, 2)
        for projection in (layer.q_proj, layer.k_proj, layer.v_proj)
    )
    if layer.q_norm is not None:
        q, k = rms(q, layer.q_norm.weight, eps), rms(k, layer.k_norm.weight, eps)
    k, v = (keys.repeat_interleave(heads // layer.kv_heads, 1) for keys in (rotate(k), v))
    logits = rotate(q) @ k.mT / math.sqrt(layer.head_dim)
    logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -math.inf)
    x = x + (logits.softmax(-1) @ v).transpose(1, 2).flatten(2) @ layer.o_proj.weight.T
    y, ff = rms(x, block.feed_forward_norm.weight, eps), block.feed_forward
    gate = y @ ff.gate_proj.weight.T
    return x + (gate * gate.sigmoid() * (y @ ff.up_proj.weight.T)) @ ff.down_proj.weight.T


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_block_is_llama_s(qk_norm: bool) -> None:
    torch.manual_seed(1)
    options = {"norm": "rms", "feed_forward": "swiglu", "norm_eps": 1e-6, "bias": False, "qk_norm": qk_norm}
    block = Block(24, 6, kv_heads=2, encoding="rotary", **options).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, mean=0.2, std=0.5)
    x = torch.randn(2, 7, 24, dtype=torch.float64, requires_grad=True)
    leaves = [x, *block.parameters()]
    actual, expected = block(x, mask=masks.causal()), llama(block, x, 1e-6)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)
    upstream = torch.randn_like(actual)
    for grad, exact in zip(*(torch.autograd.grad(y, leaves, upstream) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(grad, exact, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_changes_nothing_whatever_a_block_is_made_of(kind: str) -> None:
    model = Decoder(11, 24, 4, 2, "rotary + alibi", norm="rms", feed_forward=kind, qk_norm=True).double().eval()
    ids, cache = torch.randint(11, (2, 9)), model.cache()
    parts = [model(ids[:, part], cache=cache) for part in (slice(0, 4), slice(4, 5), slice(5, 9))]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=0, atol=1e-10)


def biases(module: torch.nn.Module) -> set[str]:
    return {name.removesuffix(".bias") for name, _ in module.named_parameters() if name.endswith(".bias")}


def test_biases_are_where_they_are_asked_for_and_nowhere_else() -> None:
    sizes = {"dim": 16, "heads": 2, "layers": 1, "encoding": "none"}
    assert biases(Decoder(11, bias=False, **sizes)) == set()
    qwen = Decoder(11, bias=("q_proj", "k_proj", "v_proj"), **sizes)
    assert biases(qwen) == {f"stack.blocks.0.attention.{name}_proj" for name in "qkv"}
    assert biases(Decoder(11, bias=("norm", "output"), **sizes)) == {
        *(f"stack.{name}" for name in ("blocks.0.attention_norm", "blocks.0.feed_forward_norm", "final_norm")),
        "output",
    }


def test_a_state_dict_of_the_old_names_is_loaded_and_one_of_unknown_names_is_not() -> None:
    torch.manual_seed(0)
    model, twin = (Decoder(11, 16, 2, 2, "learned") for _ in range(2))
    state = {}
    for name, value in model.state_dict().items():
        for new, old in OLD.items():
            name = name.replace(new, old)
        state[name] = value
    assert sum("to_query" in name or ".0." in name for name in state) > 4 and "q_proj" not in " ".join(state)
    names = list(state)
    twin.load_state_dict(state)
    assert list(state) == names
    ids = torch.randint(11, (1, 6))
    assert torch.equal(model(ids), twin(ids))
    state["stack.blocks.0.attention.to_nothing.weight"] = torch.zeros(1)
    with pytest.raises(RuntimeError, match=r"Unexpected key\(s\).*to_nothing"):
        twin.load_state_dict(state)


def test_a_layer_alone_loads_its_old_names_and_leaves_those_of_an_encoding() -> None:
    layer, twin = (Attention(12, 3, encoding="tupe", max_len=9).double() for _ in range(2))
    state = {f"to_query.{name}": value for name, value in layer.q_proj.state_dict().items()}
    state |= {name: value for name, value in layer.state_dict().items() if not name.startswith("q_proj")}
    assert "encoding.to_query.weight" in state
    twin.load_state_dict(state)
    x = torch.randn(1, 5, 12, dtype=torch.float64)
    assert torch.equal(layer(x), twin(x))


def test_the_settings_of_an_old_run_are_read_by_their_new_names() -> None:
    old = {**Experiment("rotary", "copy").to_dict(), "norm": "post", "hidden": 24}
    assert Experiment.from_dict(old) == Experiment("rotary", "copy", norm_first=False, intermediate_size=24)
    assert Experiment.from_dict({**old, "norm": "pre", "hidden": None}) == Experiment("rotary", "copy")


# Other options of a block


@pytest.mark.parametrize("kernel", ["auto", "reference", "sdpa", "blocked"])
@pytest.mark.parametrize("spec", ["rotary", "rotary + alibi", "contextual", "scalable_softmax"])
def test_a_soft_cap_holds_on_every_kernel_with_its_gradient_and_comes_before_biases(spec: str, kernel: str) -> None:
    if kernel == "sdpa" and spec == "contextual":
        pytest.skip("sdpa cannot compute contextual")
    torch.manual_seed(0)
    layer, x = Attention(24, 4, kv_heads=2, encoding=spec, causal=True, softcap=0.3).double(), double(2, 9, 24)
    layer.kernel = kernel
    plain = Attention(24, 4, kv_heads=2, encoding=spec, causal=True, kernel="reference").double()
    plain.load_state_dict(layer.state_dict())

    def logits_on_grid(biases, q, at, keys, *, scale):
        logits = q @ keys.k.repeat_interleave(2, 1).mT * scale
        logits = 0.3 * torch.tanh(logits / 0.3)
        for bias in biases:
            logits = logits + bias.dense(logits.dtype)
        return logits

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "logits_on_grid", logits_on_grid)
        expected = torch.autograd.grad(plain(x).square().sum(), [x, *plain.q_proj.parameters()])
        by_hand = plain(x)
    torch.testing.assert_close(layer(x), by_hand, rtol=0, atol=1e-12)
    actual = torch.autograd.grad(layer(x).square().sum(), [x, *layer.q_proj.parameters()])
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-10)
    assert float((plain(x) - by_hand).abs().max().detach()) > 1e-4


def double(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def test_a_soft_cap_is_refused_where_an_encoding_changes_products() -> None:
    with pytest.raises(ValueError, match=r"^rerope\(.*\) has other products for some of the pairs, which a soft-c"):
        Attention(16, 2, encoding="rerope(window=4)", causal=True, softcap=5.0)(torch.randn(1, 9, 16))


def test_the_logits_of_a_decoder_are_capped() -> None:
    model = Decoder(11, 16, 2, 1, output_softcap=0.5)
    plain = Decoder(11, 16, 2, 1)
    plain.load_state_dict(model.state_dict())
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(model(ids), 0.5 * torch.tanh(plain(ids) / 0.5))


def test_residual_branches_are_scaled_and_read_what_their_names_say() -> None:
    x = double(2, 5, 16)
    block = Block(16, 2, residual_scale=0.5).double()
    y = x + 0.5 * block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), y + 0.5 * block.feed_forward(block.feed_forward_norm(y)))
    block = Block(16, 2, parallel_residual=True, cross=True).double()
    cross_out = block.cross_attention(block.cross_norm(x), x)
    expected = x + block.attention(block.attention_norm(x)) + cross_out + block.feed_forward(block.feed_forward_norm(x))
    torch.testing.assert_close(block(x, memory=x), expected)


@pytest.mark.parametrize(
    ("init", "inner", "ends", "tokens"),
    [
        ("normal", 0.02, 0.02, 0.02),
        ("gpt2", 0.02, 0.02 / 8**0.5, 0.02),
        ("small", (2 / (5 * 256)) ** 0.5, 2 / (4 * 16), (2 / (5 * 256)) ** 0.5),
        ("xavier", (2 / 512) ** 0.5, (2 / 512) ** 0.5, 1.0),
    ],
)
def test_weights_begin_with_the_deviation_that_init_names(init: str, inner: float, ends: float, tokens: float) -> None:
    torch.manual_seed(0)
    model = Decoder(300, 256, 4, 4, init=init, intermediate_size=256)
    layer, forward = model.stack.blocks[1].attention, model.stack.blocks[1].feed_forward
    for weight, std in (
        *((part.weight, inner) for part in (layer.q_proj, layer.k_proj, layer.v_proj, forward.up_proj)),
        *((part.weight, ends) for part in (layer.o_proj, forward.down_proj)),
        (model.embedding.token.weight, tokens),
    ):
        assert float(weight.detach().std()) == pytest.approx(std, rel=0.02)
    assert not any(part.bias.any() for part in (layer.q_proj, layer.o_proj, forward.up_proj, model.output))


def test_two_hundred_steps_go_as_those_of_a_llama_written_by_hand() -> None:
    torch.manual_seed(2)
    options = {"norm": "rms", "norm_eps": 1e-6, "feed_forward": "swiglu", "bias": False, "kv_heads": 2}
    decoder, reference = (Decoder(13, 24, 4, 2, "rotary", **options).double() for _ in range(2))
    reference.load_state_dict(decoder.state_dict())

    def by_hand(ids: Tensor) -> Tensor:
        x = reference.embedding.token.weight[ids]
        for block in reference.stack.blocks:
            x = llama(block, x, 1e-6)
        return rms(x, reference.stack.final_norm.weight, 1e-6) @ reference.output.weight.T

    rows = torch.randint(13, (200, 2, 9))
    curves = []
    for model, logits_of in ((decoder, decoder), (reference, by_hand)):
        optimizer, losses = torch.optim.AdamW(model.parameters(), 1e-3), []
        for ids in rows:
            loss = cross_entropy(logits_of(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        curves.append(torch.stack(losses))
    torch.testing.assert_close(*curves, rtol=0, atol=1e-6)
