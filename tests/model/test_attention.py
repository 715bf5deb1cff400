"""Tests of attention: the reference function, the kernels, and the layer."""

import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import Attention, Keys, Positions, kernels, masks, scaled_dot_product_attention
from posenc.encodings.content_biases.shaw import Shaw
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.none import NoPE
from posenc.tokens.masks import Mask, mask_for


def by_hand(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Compute attention one query at a time. -inf in `added` masks; a fully masked row is zero."""
    B, H, T, D = q.shape
    S, group = k.shape[2], H // k.shape[1]
    scale = 1 / math.sqrt(D) if scale is None else scale
    bias = torch.zeros(B, H, T, S) if bias is None else bias.expand(B, H, T, S)
    weights = torch.zeros(B, H, T, S, dtype=torch.float64)
    for b, h, i in itertools.product(range(B), range(H), range(T)):
        biases, query = bias[b, h, i].tolist(), q[b, h, i].double()
        products = (query * k[b, h // group].double()).tolist()
        logits = {j: scale * math.fsum(products[j]) + biases[j] for j in range(S) if biases[j] != -math.inf}
        top = max(logits.values(), default=0.0)
        total = math.fsum(math.exp(x - top) for x in logits.values())
        weights[b, h, i] = torch.tensor(
            [math.exp(logits[j] - top) / total if j in logits else 0.0 for j in range(S)], dtype=torch.float64
        )
    return torch.stack([weights[:, h] @ v[:, h // group].double() for h in range(H)], 1), weights


def heads(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, dtype=dtype)


# The function


@pytest.mark.parametrize("kv_heads", [6, 3, 2, 1])
@pytest.mark.parametrize("scale", [None, 1.0])
def test_it_is_attention(kv_heads: int, scale: float | None) -> None:
    q, k, v = heads(2, 6, 5, 7), heads(2, kv_heads, 9, 7), heads(2, kv_heads, 9, 3)
    out, weights = scaled_dot_product_attention(q, k, v, scale=scale)
    expected, expected_weights = by_hand(q, k, v, scale=scale)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-13)
    torch.testing.assert_close(
        out, F.scaled_dot_product_attention(q, k, v, scale=scale, enable_gqa=True), rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("shape", [(5, 9), (2, 1, 5, 9), (2, 3, 5, 9), (1, 3, 1, 9), (5, 1)])
def test_boolean_and_additive_masks_do_what_torchs_do(shape: tuple[int, ...]) -> None:
    q, k, v = heads(2, 3, 5, 7), heads(2, 3, 9, 7), heads(2, 3, 9, 7)
    visible = torch.rand(shape) > 0.4
    visible[..., 0] = True
    bias = torch.randn(shape, dtype=torch.float64)
    for mask in (visible, bias, bias.masked_fill(~visible, -math.inf)):
        out, weights = scaled_dot_product_attention(q, k, v, mask)
        torch.testing.assert_close(out, F.scaled_dot_product_attention(q, k, v, attn_mask=mask), rtol=0, atol=1e-13)
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 5, dtype=torch.float64), rtol=0, atol=1e-13)
    forbidden = torch.where(visible, 0.0, -math.inf)
    torch.testing.assert_close(
        scaled_dot_product_attention(q, k, v, visible)[0], by_hand(q, k, v, forbidden)[0], rtol=0, atol=1e-13
    )


@pytest.mark.parametrize("kind", ["boolean", "additive"])
def test_a_row_that_may_see_nothing_gives_zeros_without_nan_in_values_and_gradients(kind: str) -> None:
    q, k, v = (heads(1, 2, 3, 4).requires_grad_() for _ in range(3))
    visible = torch.tensor([[True, False, True], [False, False, False], [True, True, True]])
    mask = visible if kind == "boolean" else torch.where(visible, 0.5, -math.inf)
    out, weights = scaled_dot_product_attention(q, k, v, mask)
    assert not out[:, :, 1].any() and not weights[:, :, 1].any()
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in (q, k, v))
    assert q.grad is not None and not q.grad[:, :, 1].any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_takes_its_logits_in_single(dtype: torch.dtype) -> None:
    q, k, v = (heads(1, 2, 33, 64, dtype=torch.float32).to(dtype) * 4 for _ in range(3))
    out, weights = scaled_dot_product_attention(q, k, v)
    expected, expected_weights = scaled_dot_product_attention(q.double(), k.double(), v.double())
    assert out.dtype == dtype and weights.dtype == dtype
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(weights.double(), expected_weights, rtol=eps, atol=1e-6)
    torch.testing.assert_close(out.double(), expected, rtol=0, atol=16 * eps)


def test_dropout_zeroes_its_share_of_the_weights_and_scales_the_rest() -> None:
    q, k, v = heads(1, 8, 64, 4), heads(1, 8, 64, 4), heads(1, 8, 64, 4)
    plain = scaled_dot_product_attention(q, k, v)[1]
    out, weights = scaled_dot_product_attention(q, k, v, dropout=0.25)
    is_kept = weights != 0
    assert is_kept.double().mean().item() == pytest.approx(0.75, abs=0.01)
    torch.testing.assert_close(weights[is_kept], plain[is_kept] / 0.75, rtol=1e-12, atol=0)
    torch.testing.assert_close(out, weights @ v, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("q", "k", "v", "words"),
    [
        ((2, 3, 4), (2, 3, 4), (2, 3, 4), r"q, k, v have shape \[batch, heads, tokens, channels\], got"),
        ((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 5, 4), r"k and v need the same batch, heads and tokens.*v \[1, 2, 5, 4\]"),
        ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 3, 5), "q and k the same batch and channels"),
        ((2, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), "q and k the same batch and channels"),
        ((1, 3, 3, 4), (1, 2, 3, 4), (1, 2, 3, 4), "the key heads must divide the query heads, got 2 and 3"),
        ((1, 2, 0, 4), (1, 2, 3, 4), (1, 2, 3, 4), "at least one query and one key, got 0 and 3"),
        ((1, 2, 3, 4), (1, 2, 0, 4), (1, 2, 0, 4), "at least one query and one key, got 3 and 0"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(q, k, v, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        scaled_dot_product_attention(torch.zeros(q), torch.zeros(k), torch.zeros(v))


def test_masks_that_do_not_fit_are_refused() -> None:
    q, k = torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 5, 4)
    with pytest.raises(ValueError, match=r"a mask broadcasts to \[1, 2, 3, 5\], got shape \[5, 3\]"):
        scaled_dot_product_attention(q, k, k, torch.ones(5, 3, dtype=torch.bool))
    for shape in ((3, 1, 3, 5), (1, 5, 3, 5)):
        with pytest.raises(ValueError, match=r"a mask broadcasts to \[1, 2, 3, 5\], got shape"):
            scaled_dot_product_attention(q, k, k, torch.ones(shape, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"got torch\.int64"):
        scaled_dot_product_attention(q, k, k, torch.ones(3, 5, dtype=torch.long))


# The kernels


ENCODINGS = {"none": NoPE(), "alibi": ALiBi(6), "shaw": Shaw(4, max_distance=2, values=False, std=1.0).double()}
PLACES = {
    "counted": Positions.count(5),
    "later": Positions.count(5, start=3),
    "padded": Positions.padded(torch.tensor([[0, 0, 1, 1, 1], [1, 1, 0, 1, 1]])),
    "packed": Positions.packed([2, 3]),
    "fractional": Positions.of(torch.tensor([0.5, 9.0, 2.0, 2.25, -3.0])),
}
MASKS = {
    "causal": masks.causal(),
    "both ways": masks.bidirectional(),
    "window": masks.window(2),
    "prefix": masks.prefix(3),
    "boolean": mask_for(torch.tensor([[True, False, True, True, False]] * 3 + [[False] * 5] + [[True] * 5])),
    "additive": Mask(causal=True, tensor=torch.linspace(-2, 2, 25, dtype=torch.float64).view(5, 5)),
    "additive with gaps": mask_for(
        torch.tensor([[0.0, -math.inf, 1.0, 2.0, -1.0]] * 4 + [[-math.inf] * 5], dtype=torch.float64)
    ),
}


def bias_of(encoding, q: Tensor, at: Positions) -> Tensor:
    """Return the encoding's bias for every pair from its scalar formula."""
    scalars = at.coords[..., 0].double().expand(2, -1).tolist()
    zero = [0.0] * 4
    bias = torch.zeros(2, 6, 5, 5, dtype=torch.float64)
    for b, h, i, j in itertools.product(range(2), range(6), range(5), range(5)):
        bias[b, h, i, j] = encoding.formula_logit(q[b, h, i].tolist(), zero, scalars[b][i], scalars[b][j], h, 1.0)
    return bias


@functools.cache
def under_every_mask(kv_heads: int, place: str, encoding: str) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """Return queries, keys, values, and the expected output."""
    at, encoding_object = PLACES[place], ENCODINGS[encoding]
    q, k, v = heads(2, 6, 5, 4), heads(2, kv_heads, 5, 4), heads(2, kv_heads, 5, 4)
    bias, expected = bias_of(encoding_object, q, at), {}
    for name, mask in MASKS.items():
        mask_bias = mask.split()[1]
        whole = (bias if mask_bias is None else bias + mask_bias).masked_fill(~mask.allowed(at, at), -math.inf)
        expected[name] = by_hand(q, k, v, whole, 0.5)[0]
    return q, k, v, expected


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "blocked"])
@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_kernel_is_right_under_every_mask(kernel: str, kv_heads: int, place: str, encoding: str) -> None:
    at, encoding_object = PLACES[place], ENCODINGS[encoding]
    q, k, v, expected = under_every_mask(kv_heads, place, encoding)
    for name, mask in MASKS.items():
        out, weights = kernels.bind(kernel, encoding_object, scale=0.5)(encoding_object, q, at, Keys(k, v, at), mask)
        torch.testing.assert_close(out, expected[name], rtol=0, atol=1e-6, msg=lambda m, name=name: f"{name}: {m}")
        assert weights is None


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "blocked"])
@pytest.mark.parametrize("encoding", [NoPE(), ALiBi(2)], ids=str)
@pytest.mark.parametrize("form", [None, "boolean", "additive"])
def test_rows_without_keys_are_zero_in_values_and_gradients_in_every_kernel(
    kernel: str, encoding, form: str | None
) -> None:
    at = Positions.padded(torch.tensor([[0, 1, 1], [0, 0, 0], [1, 1, 1]]))
    visible = torch.tensor([[True] * 3, [False] * 3, [True] * 3])
    mask = Mask(
        causal=True,
        tensor={None: None, "boolean": visible}.get(form, torch.where(visible, 0.0, -math.inf).double()),
    )
    q, k, v = (heads(3, 2, 3, 4).requires_grad_() for _ in range(3))
    out, _ = kernels.bind(kernel, encoding, scale=0.5)(encoding, q, at, Keys(k, v, at), mask)
    empty = ~mask.allowed(at, at).any(-1)[:, 0]
    assert empty.any() and not out.transpose(1, 2)[empty].any() and out.isfinite().all()
    out.sum().backward()
    for x in (q, k, v):
        assert x.grad is not None and x.grad.isfinite().all()
        assert not x.grad[1].any()
    assert q.grad is not None and not q.grad.transpose(1, 2)[empty].any()


def test_auto_takes_the_fused_kernel_unless_weights_are_wanted() -> None:
    assert kernels.choose("auto", NoPE()) == "blocked"
    assert kernels.choose("auto", NoPE(), dropout=0.1) == "sdpa"
    assert kernels.choose("auto", NoPE(), need_weights=True) == "reference"
    assert kernels.choose("auto", Shaw(4)) == "reference"
    assert kernels.choose("auto", Shaw(4, values=False)) == "blocked"


def test_a_layer_whose_kernel_is_set_to_a_wrong_name_says_so() -> None:
    layer = Attention(8, 2, encoding="alibi")
    layer.kernel = "spda"
    with pytest.raises(ValueError, match=r"no kernel named 'spda'; .* did you mean 'sdpa'"):
        layer(torch.zeros(1, 3, 8))


def test_a_named_kernel_is_taken_or_refused_and_never_replaced() -> None:
    assert kernels.choose("reference", NoPE()) == "reference" and kernels.choose("sdpa", NoPE()) == "sdpa"
    with pytest.raises(
        ValueError,
        match="kernel 'sdpa' cannot do this: sdpa returns no attention weights; use kernel='reference' or 'auto'",
    ):
        kernels.choose("sdpa", NoPE(), need_weights=True)
    with pytest.raises(
        ValueError, match=r"kernel 'sdpa' cannot do this: .*reads the attention weights, which sdpa does not return"
    ):
        kernels.choose("sdpa", Shaw(4))


@pytest.mark.parametrize(
    "ask", [kernels.check_name, lambda name: kernels.why_not(name, NoPE()), lambda name: Attention(8, 2, kernel=name)]
)
def test_an_unknown_kernel_lists_the_known_ones(ask) -> None:
    with pytest.raises(
        ValueError,
        match="no kernel named 'spda'; there are: auto, blocked, flash, flex, reference, sdpa; did you mean 'sdpa'",
    ):
        ask("spda")
    with pytest.raises(ValueError, match=r"there are: auto, blocked, flash, flex, reference, sdpa$"):
        ask("zzz")


def test_what_is_no_name_is_no_kernel() -> None:
    with pytest.raises(ValueError, match=r"no kernel named '\['sdpa'\]'; there are: auto, "):
        kernels.choose(["sdpa"], NoPE())


# The layer


def layer(**options) -> Attention:
    return Attention(12, 6, **({"encoding": "none"} | options)).double()


def reference(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute the layer step by step: project, split, attend, join, project."""

    def split(x: Tensor, linear: torch.nn.Linear, count: int) -> Tensor:
        y = x @ linear.weight.T + (0 if linear.bias is None else linear.bias)
        return y.view(*x.shape[:2], count, -1).permute(0, 2, 1, 3)

    q = split(query, attention.q_proj, attention.heads)
    k, v = split(key, attention.k_proj, attention.kv_heads), split(value, attention.v_proj, attention.kv_heads)
    out, weights = by_hand(q, k, v, bias, attention.scale)
    merged_heads = out.permute(0, 2, 1, 3).reshape(*query.shape[:2], -1)
    return F.linear(merged_heads, attention.o_proj.weight, attention.o_proj.bias), weights


@pytest.mark.parametrize("kernel", ["auto", "blocked", "sdpa", "reference"])
@pytest.mark.parametrize(
    "options", [{}, {"kv_heads": 2}, {"kv_heads": 1, "bias": False}, {"head_dim": 5, "scale": 1.0}], ids=str
)
def test_self_attention_is_right(kernel: str, options: dict) -> None:
    attention, x = layer(kernel=kernel, **options), torch.randn(2, 5, 12, dtype=torch.float64)
    past = torch.full((5, 5), -math.inf).triu(1)
    torch.testing.assert_close(
        attention(x, mask=masks.causal()), reference(attention, x, x, x, past)[0], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(attention(x), reference(attention, x, x, x)[0], rtol=0, atol=1e-12)


def test_cross_attention_takes_three_different_inputs() -> None:
    attention = layer(kv_heads=3)
    query, key, value = (torch.randn(2, n, 12, dtype=torch.float64) for n in (5, 7, 7))
    torch.testing.assert_close(
        attention(query, key, value), reference(attention, query, key, value)[0], rtol=0, atol=1e-12
    )
    torch.testing.assert_close(attention(query, key), reference(attention, query, key, key)[0], rtol=0, atol=1e-12)


def test_in_cross_attention_each_side_has_positions_of_its_own() -> None:
    attention = layer(encoding="alibi")
    query, key = torch.randn(2, 3, 12, dtype=torch.float64), torch.randn(2, 4, 12, dtype=torch.float64)
    m, n = torch.tensor([9.0, 0.5, 3.0]), torch.tensor([[0.0, 1, 2, 3], [5, 5, 6, 80]])
    bias = torch.tensor(ALiBi(6).slopes, dtype=torch.float64)[:, None, None] * -(m[:, None] - n[:, None, None, :]).abs()
    actual = attention(query, key, positions=m, key_positions=n)
    torch.testing.assert_close(actual, reference(attention, query, key, key, bias)[0], rtol=0, atol=1e-6)


def test_weights_come_on_request_and_sum_to_one() -> None:
    attention, x = layer(kv_heads=2, encoding="rotary + alibi"), torch.randn(2, 5, 12, dtype=torch.float64)
    out, weights = attention(x, mask=masks.causal(), need_weights=True)
    assert weights.shape == (2, 6, 5, 5)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6, 5, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(out, attention(x, mask=masks.causal()), rtol=0, atol=1e-6)


def test_weights_are_those_that_were_applied() -> None:
    attention, x = layer(kv_heads=2), torch.randn(2, 5, 12, dtype=torch.float64)
    torch.testing.assert_close(attention(x, need_weights=True)[1], reference(attention, x, x, x)[1], rtol=0, atol=1e-12)


def test_dropout_acts_in_training_only() -> None:
    attention, x = layer(dropout=0.5), torch.randn(2, 5, 12, dtype=torch.float64)
    assert not torch.equal(attention(x), attention(x))
    assert (attention(x, need_weights=True)[1] == 0).any()
    attention.eval()
    torch.testing.assert_close(attention(x), reference(attention, x, x, x)[0], rtol=0, atol=1e-12)


def test_a_tensor_may_be_given_as_mask() -> None:
    attention, x = layer(), torch.randn(2, 5, 12, dtype=torch.float64)
    visible = torch.ones(5, 5, dtype=torch.bool).tril()
    expected = attention(x, mask=masks.causal())
    torch.testing.assert_close(attention(x, mask=visible), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(
        attention(x, mask=torch.where(visible, 0.0, -math.inf).double()), expected, rtol=0, atol=1e-12
    )


def test_an_encoding_may_come_with_the_call() -> None:
    attention, x = Attention(12, 6, encoding=None).double(), torch.randn(1, 5, 12, dtype=torch.float64)
    expected_layer = layer(encoding="alibi")
    expected_layer.load_state_dict(attention.state_dict())
    torch.testing.assert_close(attention(x, encoding=ALiBi(6)), expected_layer(x), rtol=0, atol=0)
    with pytest.raises(
        ValueError,
        match="this layer has no encoding of its own; pass one to the call, or build it without encoding=None",
    ):
        attention(x)


def test_a_layer_that_is_asked_for_no_encoding_has_none() -> None:
    plain, x = Attention(12, heads=6).double(), torch.randn(1, 5, 12, dtype=torch.float64)
    said_so = layer(encoding="none")
    said_so.load_state_dict(plain.state_dict())
    assert plain(x, mask="causal").equal(said_so(x, mask="causal"))
    torch.testing.assert_close(plain(x.flip(1)), plain(x).flip(1))
    # An encoding given in the call overrides the layer's.
    assert not plain(x, encoding=ALiBi(6)).allclose(plain(x))


def test_the_default_scale_is_one_over_the_root_of_the_head() -> None:
    assert layer().scale == 2**-0.5 and layer(head_dim=9).scale == 1 / 3 and layer(scale=1.0).scale == 1.0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dim": 12, "heads": 5}, r"heads must divide dim=12, got heads=5; the divisors are \[1, 2, 3, 4, 6, 12\]"),
        ({"dim": 12, "heads": 6, "dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
        ({"dim": 12, "heads": 6, "encoding": "ropee"}, "no encoding named 'ropee'"),
        ({"dim": 12, "heads": 4, "encoding": "rotary"}, "rotary: the rotary width must be an even number"),
    ],
)
def test_impossible_layers_are_refused(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Attention(**options)


X = torch.zeros(2, 5, 12, dtype=torch.float64)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"query": X[..., :8]}, r"query must have shape \[batch, tokens, 12\], got \[2, 5, 8\]"),
        ({"query": X[0]}, r"query must have shape \[batch, tokens, 12\], got \[5, 12\]"),
        ({"query": X[:, :0]}, "query must hold at least one token"),
        ({"query": X, "key": X[..., :8]}, "key must have shape"),
        ({"query": X, "key": X[:, :0]}, "key must hold at least one token"),
        ({"query": X, "key": X, "value": X[:, :3]}, "key and value must hold the same tokens, got 5 and 3"),
        ({"query": X, "value": X}, "a separate value needs a key; give both"),
        ({"query": X, "key": X[:1]}, "need the same batch|q and k the same batch"),
        (
            {"query": X, "key_positions": torch.arange(5)},
            "key_positions belong to separate keys; in self-attention give positions alone",
        ),
        ({"query": X, "positions": torch.arange(4)}, "got positions of 4 tokens for 5 tokens"),
        ({"query": X, "key": X, "key_positions": torch.arange(4)}, "got positions of 4 tokens for 5 tokens"),
        ({"query": X, "positions": torch.zeros(3, 5, dtype=torch.long)}, r"got positions of 3 rows for a batch of 2"),
        ({"query": X, "mask": torch.ones(4, 5, dtype=torch.bool)}, r"a mask broadcasts to \[2, 6, 5, 5\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        layer()(**inputs)


def test_a_layer_prints_what_it_is() -> None:
    text = "dim=12, heads=6, kv_heads=2, head_dim=2, kernel='auto', scale=0.7071067811865476, softcap=None"
    assert text in repr(layer(kv_heads=2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_a_layer_can_be_made_in_a_dtype_and_on_a_device(dtype: torch.dtype) -> None:
    attention = Attention(12, 6, encoding="shaw", dtype=dtype)
    assert {p.dtype for p in attention.parameters()} == {dtype}
    assert attention(torch.zeros(1, 3, 12, dtype=dtype)).dtype == dtype
    assert all(p.is_meta for p in Attention(12, 6, encoding="t5_bias", device="meta").parameters())
