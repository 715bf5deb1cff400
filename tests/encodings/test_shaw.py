"""Shaw's relative representations agree with the naive form with a [T, S, D] tensor."""

import pytest
import torch
from tiers import rest_slow
from torch import Tensor

from posenc import Keys, Positions, masks
from posenc.catalogue import build
from posenc.encoding.base import Shape
from posenc.encodings.content_biases.shaw import Shaw
from posenc.kernels import bind
from posenc.kernels.block_sizes import SIZES
from posenc.tokens.masks import Mask

CAUSAL = masks.causal()


def naive(
    encoding: Shaw, q: Tensor, k: Tensor, v: Tensor, m: Tensor, n: Tensor, visible: Tensor, scale: float
) -> Tensor:
    """Return z_i = sum_j A_ij (v_j + b_ij) with logits q_i . k_j scale + q_i . a_ij / sqrt(D)."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    relative = (n[None, :] - m[:, None]).clamp(
        -encoding.max_distance, encoding.max_distance
    ) + encoding.max_distance  # [T, S]

    def vectors(table: Tensor) -> Tensor:
        low = relative.floor().long()
        high = (low + 1).clamp(max=2 * encoding.max_distance)
        share = (relative - low)[..., None]
        return (1 - share) * table[low] + share * table[high]  # [T, S, D]

    bias = torch.einsum("bhtd,tsd->bhts", q, vectors(encoding.key_table)) / q.shape[-1] ** 0.5
    logits = torch.einsum("bhtd,bhsd->bhts", q, k) * scale + bias
    weights = logits.masked_fill(~visible, -torch.inf).softmax(-1)
    out = weights @ v
    if encoding.value_table is not None:
        out = out + torch.einsum("bhts,tsd->bhtd", weights, vectors(encoding.value_table))
    return out


CASES = {
    "causal": (torch.arange(9.0), torch.arange(9.0), masks.causal()),
    "both ways": (torch.arange(9.0), torch.arange(9.0), masks.bidirectional()),
    "elsewhere": (torch.tensor([3.0, 0, 50]), torch.tensor([1.0, 4, 2, 49, 80]), masks.bidirectional()),
    "fractional": (torch.tensor([0.5, 2.25, 9.0]), torch.tensor([0.0, 1.75, 2.5, 3.125]), masks.bidirectional()),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("values", [True, False])
@pytest.mark.parametrize("kv_heads", [3, 1])
@pytest.mark.parametrize("scale", [5**-0.5, 1.0])
def test_keys_and_values_get_the_vector_of_their_clipped_distance(
    case: str, values: bool, kv_heads: int, scale: float
) -> None:
    m, n, mask = CASES[case]
    encoding = Shaw(5, max_distance=3, values=values, std=1.0).double()
    q = torch.randn(2, 3, len(m), 5, dtype=torch.float64)
    k, v = (torch.randn(2, kv_heads, len(n), 5, dtype=torch.float64) for _ in range(2))
    whole = case != "fractional"
    at = Positions.of(m.long() if whole else m)
    keys_at = at if torch.equal(m, n) else Positions.of(n.long() if whole else n)
    out, _ = encoding.attend(q, at, Keys(k, v, keys_at), mask, bind("reference", encoding, scale=scale))
    visible = mask.allowed(at, keys_at)
    torch.testing.assert_close(
        out, naive(encoding, q, k, v, m.double(), n.double(), visible, scale), rtol=0, atol=1e-12
    )


def test_the_formula_mixes_the_vectors_of_the_two_nearest_distances() -> None:
    encoding, (m, n, _) = Shaw(5, max_distance=3, values=False, std=1.0).double(), CASES["fractional"]
    q = torch.randn(1, 1, 3, 5, dtype=torch.float64)
    bias = encoding.bias(Positions.of(m.double()), Positions.of(n.double()), q=q)[0, 0]
    for i, here in enumerate(m.tolist()):
        for j, there in enumerate(n.tolist()):
            formula = encoding.formula_logit(q[0, 0, i].tolist(), [0.0] * 5, here, there, 0, 1.0)
            assert formula == pytest.approx(bias[i, j].item(), abs=1e-13)


def test_the_bias_is_the_key_term_alone() -> None:
    encoding = Shaw(4, max_distance=2, std=1.0).double()
    q = torch.randn(2, 3, 6, 4, dtype=torch.float64)
    relative = (torch.arange(6)[None, :] - torch.arange(6)[:, None]).clamp(-2, 2) + 2
    expected = torch.einsum("bhtd,tsd->bhts", q, encoding.key_table[relative]) / 2
    torch.testing.assert_close(encoding.bias(6, q=q), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kv_heads", [6, 2])
@pytest.mark.parametrize("case", CASES)
def test_mutual_compares_the_keys_with_the_same_vectors(case: str, kv_heads: int) -> None:
    """BERT's relative_key_query adds q_i . a_r + k_j . a_r, both over sqrt(head_dim)."""
    m, n, _ = CASES[case]
    encoding = Shaw(5, max_distance=3, values=False, mutual=True, std=1.0).double()
    alone = Shaw(5, max_distance=3, values=False, std=1.0).double()
    alone.load_state_dict(encoding.state_dict())
    q = torch.randn(2, 6, len(m), 5, dtype=torch.float64)
    k = torch.randn(2, kv_heads, len(n), 5, dtype=torch.float64)
    actual = encoding.bias(m, n, q=q, k=k)
    # From the key's side the same vector belongs to the opposite distance.
    key_encoding = Shaw(5, max_distance=3, values=False, std=1.0).double()
    with torch.no_grad():
        key_encoding.key_table.copy_(encoding.key_table.flip(0))
    of_keys = key_encoding.bias(n, m, q=k).transpose(-1, -2).repeat_interleave(6 // kv_heads, 1)
    torch.testing.assert_close(actual, alone.bias(m, n, q=q) + of_keys, rtol=0, atol=1e-12)


def test_mutual_needs_the_keys_and_says_so() -> None:
    with pytest.raises(ValueError, match="reads the keys; give k of shape"):
        Shaw(4, mutual=True).bias(3, q=torch.zeros(1, 1, 3, 4))


def test_the_bias_needs_the_queries_and_says_so() -> None:
    with pytest.raises(ValueError, match=r"the bias of .*haw.* reads the queries; give q of shape \[B, H, T, D\]"):
        Shaw(4).bias(3)


def test_the_scalar_formulas_in_the_file_are_the_published_ones() -> None:
    encoding = Shaw(3, max_distance=2, std=1.0).double()
    q, k = [0.5, -1.0, 2.0], [1.0, 0.25, -3.0]
    for m, n, row in ((5, 5, 2), (5, 4, 1), (5, 0, 0), (0, 1, 3), (0, 9, 4)):
        a, b = encoding.key_table[row].tolist(), encoding.value_table[row].tolist()
        expected = (
            0.7 * sum(x * y for x, y in zip(q, k, strict=True)) + sum(x * y for x, y in zip(q, a, strict=True)) / 3**0.5
        )
        assert encoding.formula_logit(q, k, m, n, 0, 0.7) == pytest.approx(expected, abs=1e-14)
        assert [encoding.formula_value(k, m, n, c) for c in range(3)] == pytest.approx(
            [x + y for x, y in zip(k, b, strict=True)]
        )


IN_BLOCKS = {
    "causal": (Positions.count(23), Positions.count(23), masks.causal()),
    "both ways": (Positions.count(23), Positions.count(23), masks.bidirectional()),
    "a window": (Positions.count(23), Positions.count(23), masks.window(9)),
    "behind a cache": (Positions.count(6, 17), Positions.count(23), masks.causal()),
    "keys of a later start": (Positions.count(12, 4), Positions.count(12, 9), masks.causal()),
    "far from all keys": (
        Positions.count(6, 90),
        Positions.count(23),
        Mask(causal=True, tensor=torch.arange(6)[:, None] % 3 != 1),
    ),
    "hidden keys": (Positions.count(23), Positions.count(23), Mask(tensor=torch.arange(23) % 5 != torch.zeros(23, 1))),
    "nothing seen": (Positions.count(5), Positions.count(23), Mask(tensor=torch.arange(5)[:, None] % 2 == 0)),
}


@pytest.mark.parametrize("case", IN_BLOCKS)
@pytest.mark.parametrize("spec", ["shaw(max_distance=3, std=1.0)", "shaw(max_distance=40, std=1.0)", "alibi + shaw"])
@pytest.mark.parametrize("kv_heads", rest_slow([2, 4], 1))
def test_vectors_are_added_to_values_in_blocks_as_from_all_weights(case: str, spec: str, kv_heads: int) -> None:
    at, keys_at, mask = IN_BLOCKS[case]
    encoding = build(spec, Shape(20, 4, 5, 23)).double()
    q = torch.randn(2, 4, at.tokens, 5, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, kv_heads, keys_at.tokens, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    upstream, leaves = torch.randn_like(q), [q, k, v, *encoding.parameters()]

    def ask(kernel: str) -> list[Tensor]:
        bound = bind(kernel, encoding, scale=0.4, served=(kernels_used := set()))
        out, weights = encoding.attend(q, at, Keys(k, v, keys_at), mask, bound)
        assert weights is None and kernel in kernels_used
        return [out, *torch.autograd.grad(out, leaves, upstream)]

    with SIZES.set_to(rows_of_values=4, rows_backwards=3, narrowest=5, pairs_backwards=1, far=1, keys_for_vectors=1):
        torch.testing.assert_close(ask("blocked"), ask("reference"), rtol=0, atol=1e-12)


def test_vectors_are_added_in_half_precision_as_well() -> None:
    encoding, at = Shaw(8, max_distance=3, std=1.0), Positions.count(300)
    q, k, v = (torch.randn(1, 2, 300, 8) for _ in range(3))
    exact, _ = encoding.attend(q, at, Keys(k, v, at), masks.causal(), bind("reference", encoding, scale=0.5))
    half = encoding.bfloat16()
    keys = Keys(k.bfloat16(), v.bfloat16(), at)
    with SIZES.set_to(far=20, rows_of_values=64):
        out, _ = half.attend(q.bfloat16(), at, keys, masks.causal(), bind("blocked", half, scale=0.5))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.float(), exact, rtol=0, atol=0.06)


def test_where_vectors_cannot_be_added_in_blocks_the_weights_are_read() -> None:
    encoding, q = Shaw(4, max_distance=3), torch.randn(1, 2, 9, 4)
    row, out_of_order = Positions.count(9), Positions.of(torch.randperm(9))
    short = row.rows(slice(0, 8))

    def in_blocks(q: Tensor, at: Positions, keys_at: Positions, mask: Mask = CAUSAL, **options) -> bool:
        k = torch.randn(len(q), 2, keys_at.tokens, 4)
        bound = bind(options.pop("kernel", "auto"), encoding, scale=0.5, served=(kernels_used := set()), **options)
        encoding.attend(q, at, Keys(k, k, keys_at), mask, bound)
        return "blocked" in kernels_used

    with SIZES.set_to(keys_for_vectors=9):
        assert in_blocks(q, row, row)
        assert not in_blocks(q, out_of_order, out_of_order)
        assert not in_blocks(q, row, row, Mask(causal=True, prefix=3))
        assert not in_blocks(q[:, :, :8], short, short)
        assert not in_blocks(q[:, :, :1], row.rows(slice(0, 1)), row)
        assert not in_blocks(q[:0], row, row)
        for options in ({"kernel": "reference"}, {"dropout": 0.1}, {"need_weights": True}):
            assert not in_blocks(q, row, row, **options)
    with pytest.raises(ValueError, match="reads the attention weights, which attention in blocks does not return"):
        bound = bind("blocked", encoding, scale=0.5)
        encoding.attend(q, out_of_order, Keys(q, q, out_of_order), masks.causal(), bound)


def test_many_small_weights_in_half_precision_are_all_counted() -> None:
    encoding = Shaw(4, max_distance=1)
    with torch.no_grad():
        encoding.key_table.zero_()
        encoding.value_table.fill_(1.0)
    encoding = encoding.bfloat16()
    zeros = torch.zeros(1, 1, 4096, 4, dtype=torch.bfloat16)
    at, keys_at = Positions.count(1, start=4095), Positions.count(4096)
    kernel = bind("reference", encoding, scale=0.5)
    out, _ = encoding.attend(zeros[:, :, :1], at, Keys(zeros, zeros, keys_at), masks.causal(), kernel)
    # The weights sum to one and the table is all ones; sequential bfloat16 addition would stall at a sixteenth.
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=0.01)


def test_tables_have_the_size_of_max_distance_and_the_given_deviation() -> None:
    encoding = Shaw(64, max_distance=100, std=0.5)
    assert encoding.key_table.shape == (201, 64) and encoding.value_table is not None
    assert encoding.key_table.std().item() == pytest.approx(0.5, rel=0.03) == encoding.value_table.std().item()
    assert Shaw(64, values=False).value_table is None


def test_values_of_another_width_are_refused() -> None:
    q, at = torch.randn(1, 2, 5, 4), Positions.count(5)
    encoding = Shaw(4)
    with pytest.raises(ValueError, match="is built for heads of 4 channels, got 3"):
        bound = bind("auto", encoding, scale=0.5)
        encoding.attend(q, at, Keys(q, q[..., :3], at), masks.causal(), bound)
