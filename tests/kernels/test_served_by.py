"""A table of each encoding's evaluator, so that losing the fast path is noticed."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from posenc import Attention, Decoder, Encoder, Keys, Positions, catalogue, kernels, masks
from posenc.encoding.base import Encoding
from posenc.encodings.content_biases.deberta import DeBERTa
from posenc.kernels.block_sizes import SIZES
from posenc.model.attention import Call
from posenc.testing import SHAPE, Subject, arange, on_axes

PLAIN = ("sdpa",)
DISTANCES, PRODUCTS, LEVELS = "distances in a row", "products in a row", "levels in a row"

WAYS = {
    "alibi": ("blocked", DISTANCES),
    "contextual": ("blocked", "counts in a row"),
    "dape": ("blocked", "dense", DISTANCES),
    "deberta": ("blocked", PRODUCTS),
    "dual_chunk": ("blocked", "branches"),
    "fire": ("blocked", DISTANCES),
    "forgetting": ("blocked", LEVELS),
    "grid_bias": ("blocked", "distances looked up"),
    "inkling": ("blocked", PRODUCTS),
    "kerple": ("blocked", DISTANCES),
    "log_grid_bias": ("blocked", "distances looked up"),
    "mlp_bias": ("blocked", DISTANCES),
    "path": ("blocked", "dense"),
    "rerope": ("blocked", "branches"),
    "sandwich": ("blocked", DISTANCES),
    "self_extend": ("blocked", "branches"),
    "shaw": ("reference",),
    "stick_breaking": ("reference",),
    "t5_bias": ("blocked", DISTANCES),
    "transformer_xl": ("blocked", PRODUCTS),
    "tupe": ("blocked", "factored"),
}
"""Kernels and evaluators for causal, contiguous tokens; attention without a bias is one call of sdpa."""

SUM_WAYS = {
    "shaw(values=False)": ("blocked", PRODUCTS),
    "deberta(terms=content_to_position)": ("blocked", PRODUCTS),
    "rotary + alibi": ("blocked", DISTANCES),
    "alibi + t5_bias": ("blocked", DISTANCES),
    "alibi + forgetting": ("blocked", DISTANCES, LEVELS),
    "alibi + shaw(values=False)": ("blocked", DISTANCES, PRODUCTS),
    "on(shaw(values=False), heads=(0, 2))": ("blocked", PRODUCTS),
    "on(deberta, heads=(0, 2)) + forgetting": ("blocked", LEVELS, PRODUCTS),
    "rerope(rotary + alibi)": ("blocked", "branches", "pairs"),
    "rerope(rotary) + alibi": ("blocked", "branches", DISTANCES),
    "stick_breaking + alibi": ("reference",),
}


@torch.no_grad()
def evaluator(encoding: Encoding, at: Positions) -> tuple[str, ...]:
    """Return the kernel and evaluators of an encoding's causal attention at these positions."""
    layer = Attention(SHAPE.dim, heads=SHAPE.heads, head_dim=SHAPE.head_dim, encoding=encoding).double()
    x = torch.randn(1, at.tokens, SHAPE.dim, dtype=torch.float64)
    q, keys = layer.queries_and_keys(x, None, None, Call(at, at, masks.causal(), encoding))
    with SIZES.set_to(pairs_of_a_grid=0):
        return kernels.served_by(encoding, q, at, keys, masks.causal())


@pytest.mark.parametrize("spec", [*catalogue.names(), *SUM_WAYS])
def test_what_serves_is_what_the_table_says(spec: str) -> None:
    net = Subject(spec).net()
    for encoding in net.layer_encodings:
        expected = SUM_WAYS.get(spec) or WAYS.get(spec, PLAIN)
        assert evaluator(encoding, on_axes(arange(9), net.axes)) == expected


def test_anywhere_else_distances_are_looked_up_and_closures_asked() -> None:
    q = torch.zeros(1, SHAPE.heads, 9, SHAPE.head_dim)
    permuted_at, fractional = Positions.of(torch.randperm(9)), Positions.of(torch.rand(9))
    for spec, at, expected in (
        ("alibi", permuted_at, ("blocked", "distances looked up")),
        ("alibi", fractional, ("blocked", "pairs")),
        ("shaw(values=False)", permuted_at, ("blocked", "pairs")),
    ):
        with SIZES.set_to(pairs_of_a_grid=0):
            assert kernels.served_by(catalogue.build(spec, SHAPE), q, at, Keys(q, q, at), masks.causal()) == expected


@pytest.mark.parametrize("spec", ["alibi", "contextual", "deberta", "rerope"])
def test_one_mask_serves_few_pairs_and_rows_in_which_tokens_stand_elsewhere(spec: str) -> None:
    encoding, small = catalogue.build(spec, SHAPE), ("sdpa" if spec != "rerope" else "blocked")
    padded = Positions.padded(torch.arange(120) >= torch.arange(12)[:, None])
    for at, rows, expected in ((arange(60), 4, small), (padded, 12, small), (arange(130), 12, "blocked")):
        q = torch.zeros(rows, SHAPE.heads, at.tokens, SHAPE.head_dim)
        assert kernels.served_by(encoding, q, at, Keys(q, q, at), masks.causal())[0] == expected


def test_many_keys_get_their_vectors_in_blocks() -> None:
    (encoding,) = Subject("shaw").net().layer_encodings
    assert evaluator(encoding, arange(SIZES.keys_for_vectors)) == ("blocked", PRODUCTS)


@pytest.mark.parametrize(
    "spec", ["deberta", "on(deberta, heads=(0, 2))", "deberta + alibi", "on(deberta, heads=(0, 2)) + forgetting"]
)
def test_what_is_computed_for_every_token_is_computed_once_for_a_call(spec: str, monkeypatch) -> None:
    calls, table_logits = [], DeBERTa.table_logits
    monkeypatch.setattr(DeBERTa, "table_logits", lambda self, *args: calls.append(1) or table_logits(self, *args))
    layer = Attention(SHAPE.dim, SHAPE.heads, head_dim=SHAPE.head_dim, encoding=catalogue.build(spec, SHAPE))
    with SIZES.set_to(rows=2, pairs=20, pairs_of_content=20, pairs_of_a_grid=0):
        layer(torch.zeros(1, 9, SHAPE.dim), positions=Positions.count(9))
        assert not calls, "contiguous tokens need no logits of the whole table"
        layer(torch.zeros(1, 9, SHAPE.dim), positions=Positions.of(torch.randperm(9)))
    assert len(calls) == 2  # queries and keys


def test_the_base_class_stays_small() -> None:
    members = [name for name in vars(Encoding) if not name.startswith("__")]
    assert len(members) <= 25, members


def test_a_named_kernel_serves_or_says_why_not() -> None:
    q, at = torch.zeros(1, SHAPE.heads, 9, SHAPE.head_dim), Positions.count(9)
    alibi, keys = catalogue.build("alibi", SHAPE), Keys(q, q, at)
    for name in ("reference", "sdpa"):
        assert kernels.served_by(alibi, q, at, keys, masks.causal(), name=name) == (name,)
    with pytest.raises(ValueError, match="kernel 'sdpa' cannot do this: stick_breaking reads the attention weights"):
        kernels.served_by(catalogue.build("stick_breaking", SHAPE), q, at, keys, masks.causal(), name="sdpa")
    with pytest.raises(ValueError, match="no kernel named 'spda'"):
        kernels.served_by(alibi, q, at, keys, masks.causal(), name="spda")


@pytest.mark.parametrize("name", catalogue.names())
def test_a_sum_is_served_as_its_parts_are(name: str) -> None:
    """A sum keeps its parts' evaluators; a slower path would give the same values."""
    net, (alibi,) = Subject(name).net(), Subject("alibi").net().layer_encodings
    (encoding,), at = net.layer_encodings, on_axes(arange(9), net.axes)
    kernel, *ways = evaluator(encoding, at)
    if net.axes in (0, 1):
        # Attention without a matrix of all pairs is one call of sdpa, and with a bias it goes through blocks.
        right = ("blocked", *sorted({*ways, *evaluator(alibi, at)[1:]})) if kernel in ("blocked", "sdpa") else (kernel,)
        assert evaluator(encoding + alibi, at) == right
    # Rotated heads may have another width than the others.
    if encoding.doors and not encoding.doors & {"embed", "turn", "attend", "remember"}:
        (on_some,) = Subject(f"on({encoding}, heads=(0, {SHAPE.heads - 1}))").net().layer_encodings
        assert evaluator(on_some, at) == (kernel, *ways)


@pytest.mark.parametrize(
    "spec",
    ["alibi(learned=True)", "t5_bias", "alibi + t5_bias", "on(kerple, heads=(0, 2))", "grid_bias(window=(3, 9))"],
)
def test_layers_share_a_bias_of_few_pairs_and_give_the_gradients_of_the_reference(spec: str) -> None:
    torch.manual_seed(0)
    on_grid, ids = spec.startswith("grid"), torch.randint(11, (2, 40))
    model = (Encoder if on_grid else Decoder)(11, 32, 4, 3, spec).double()
    at, distances = (Positions.grid(5, 8), 9 * 15 * 2) if on_grid else (None, 40)
    calls = []
    for encoding in model.stack.encodings:
        values = encoding.by_distance
        encoding.by_distance = lambda delta, values=values: calls.append(delta.numel()) or values(delta)

    def gradients(kernel: str) -> list[torch.Tensor]:
        for block in model.stack.blocks:
            block.attention.kernel = kernel
        return torch.autograd.grad(model(ids, positions=at).square().mean(), list(model.parameters()))

    actual = gradients("auto")
    if not spec.startswith("on"):
        assert set(calls) == {distances} and len(calls) == len(model.stack.encodings)
    expected = gradients("reference")
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-12)
    model.stack.activation_checkpointing = True
    torch.testing.assert_close(gradients("auto"), expected, rtol=1e-9, atol=1e-12)
    model.stack.activation_checkpointing = False
    for block in model.stack.blocks[1:]:

        def twice(x: torch.Tensor, forward=block.forward, **options) -> torch.Tensor:
            return checkpoint(lambda x: forward(x, **options), x, use_reentrant=True)

        block.forward = twice
    model(ids, positions=at).square().mean().backward()
    for parameter, right in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, right, rtol=1e-9, atol=1e-12)
