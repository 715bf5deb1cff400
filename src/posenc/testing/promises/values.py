"""The values and the gradients are right: by the formula, in every kernel, in half precision, for grouped heads."""

import copy
import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from posenc.encoding.base import BIASES, Encoding
from posenc.encoding.biases import total
from posenc.encoding.formulas import Published, has_own_logits
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import in_turn, index_grids
from posenc.kernels.block_sizes import SIZES
from posenc.model.seeding import seeded
from posenc.testing.comparisons import alike, near, same
from posenc.testing.contract import promise
from posenc.testing.oracles import by_formula
from posenc.testing.subjects import (
    TOKENS,
    Subject,
    chooses_heads,
    count,
    far_enough,
    mask_name,
    on_axes,
    some_positions,
    tokens,
    with_gradients,
)
from posenc.tokens import masks
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions, distance
from posenc.verdicts import Advised, NoMeaning, expect


@promise
def says_what_the_paper_says(subject: Subject) -> None:
    """The fast path gives what the scalar formulas give: every head and pair, all kinds of positions, float64.

    Held to 1e-7, since a bias that is no parameter may be computed in float32.
    """
    for encoding in subject.encodings():
        if "remember" in encoding.doors and not has_own_logits(encoding):
            raise NoMeaning(f"{encoding} remembers facts of other tokens and states no formula_logits that reads them")
    try:
        agrees_with_formulas(subject)
    except AssertionError as error:
        for encoding in subject.encodings():
            stated = [name for name in FORMULAS if getattr(type(encoding), name) is not getattr(Published, name)]
            for door, (names, advice) in WITHOUT_FORMULA.items():
                if door in encoding.doors and not set(stated) & {*names, "formula_logit", "formula_logits"}:
                    words = f"{encoding} opens {door}, and no formula_... method says what it does"
                    raise Advised(words, f"write {advice}") from error
        raise


FORMULAS = [name for name in vars(Published) if name.startswith("formula_")]
A_BIAS = "formula_logit(self, q, k, m, n, head, scale): super().formula_logit(...) plus the bias, a number"
WITHOUT_FORMULA = {
    "embed": (["formula_added"], "formula_added(self, position, channel): what embed adds to one channel, a number"),
    "turn": (
        ["formula_query", "formula_key"],
        "formula_query(self, q, position, head=0), and formula_key alike: the rotated channels, a list of numbers",
    ),
    "by_distance": ([], A_BIAS),
    "biases": ([], A_BIAS),
    "attend": (
        ["formula_weights", "formula_value"],
        "formula_weights(self, logits, query, keys): the weights of one query, a list of numbers",
    ),
}
"""Of each door the formulas that say what it does, besides those of a logit, and what to write where there is none."""


def agrees_with_formulas(subject: Subject) -> None:
    reach = subject.reach
    told = any("causal" in inspect.signature(type(one).__init__).parameters for one in subject.encodings())
    for causal in (True, False):
        net = subject.net(shape=replace(subject.shape, causal=causal))
        mask = masks.Mask(causal=causal)
        for name, at in some_positions(subject):
            # Rows that stand at the same places have the same formula.
            rows = at.coords.shape[0]
            x = tokens(subject, at.tokens, batch=rows)
            expected = by_formula(net, (x, at), (x, at), mask)
            for kernel in net.kernels:
                what = f"{name}, {mask_name(mask)}, kernel {kernel}, against the formula"
                same(net.through(kernel)(x, at, mask), expected, what, 1e-7)
            if not (causal or told):
                # Between two sequences nothing is causal, and this is the same encoding again.
                continue
            cross_at = at.rows(slice(1, 6))
            x, other = tokens(subject, 5, batch=rows, seed=2), tokens(subject, at.tokens, batch=rows, seed=3)
            expected = by_formula(net, (x, cross_at), (other, at), masks.bidirectional())
            for kernel in net.kernels:
                got = net.through(kernel).across(x, cross_at, other, at, masks.bidirectional())
                same(got, expected, f"{name}, cross-attention, kernel {kernel}, against the formula", 1e-7)
        # Past every reach, tokens in a row: the last queries see all distances.
        at, x = count(reach), tokens(subject, reach, batch=1)
        expected = by_formula(net, (x, at), (x, at), masks.bidirectional(), queries=range(0, reach, 9))
        for kernel in net.kernels:
            got = net.through(kernel)(x, at, masks.bidirectional())
            if len(net.used) == 1:
                same(got[:, ::9], expected[:, ::9], f"{reach} tokens, kernel {kernel}, against the formula", 1e-7)


@promise
def evaluators_and_kernels_agree(subject: Subject) -> None:
    """Every way to evaluate a bias, and every kernel, give the same values and gradients, in blocks of any size."""
    net = subject.net()
    for encoding in net.used:
        evaluators_agree(encoding, subject)
    reach = subject.reach
    with seeded(5):
        given = torch.randn(TOKENS, TOKENS, dtype=torch.float64)
        seen = torch.rand(2, 1, TOKENS, TOKENS) < 0.6
    padding = torch.ones(2, TOKENS).index_put_((torch.tensor(1), torch.tensor([0, 1, 4])), torch.tensor(0.0))
    plain, long = count(TOKENS), count(reach)
    cases = [
        ("causal", plain, masks.causal()),
        ("bidirectional", plain, masks.bidirectional()),
        (f"causal, {reach} tokens", long, masks.causal()),
        ("window", plain, masks.window(3)),
        ("window both ways", plain, masks.window(3, causal=False)),
        ("prefix", plain, masks.prefix(4)),
        ("boolean mask with empty rows", plain, Mask(given=seen)),
        ("added mask", plain, Mask(causal=True, given=given)),
        ("padding inside", far_enough(Positions.padded(padding)), masks.causal()),
        ("packed", far_enough(Positions.packed([4, 5])), masks.bidirectional()),
        ("one query", far_enough(plain.rows(slice(4, 5))), masks.causal()),
    ]
    for scale, cut in ((None, False), (0.7, True)):
        net = subject.net(scale=scale)
        for name, at, mask in cases:
            x = tokens(subject, at.tokens)
            expected = with_gradients(net.through("reference"), x, at, mask)
            # A rule that no fused kernel serves by its name may still go through blocks.
            for kernel in [*net.kernels, "auto"] if cut else net.kernels[1:]:
                with small_blocks() if cut else nullcontext():
                    got = with_gradients(net.through(kernel), x, at, mask)
                for what, value in expected.items():
                    blocks = " in small blocks" if cut else ""
                    same(got[what], value, f"{name}, kernel {kernel}{blocks} against reference, {what}")


def evaluators_agree(encoding: Encoding, subject: Subject) -> None:
    """Door 3 evaluated densely, as a closure on grids and on single numbers, and through distances, with gradients."""
    if not encoding.doors & BIASES or "remember" in encoding.doors:
        # What reads remembered facts has no bias apart from attention, where kernels are compared.
        return
    shape = subject.shape
    for name, at in [*some_positions(subject), (f"{subject.reach} tokens", count(subject.reach))]:
        at = on_axes(at, subject.axes)
        for keys_at in (at, at.rows(slice(0, at.tokens - 2))):
            with seeded(4):
                q = torch.randn(2, shape.heads, at.tokens, shape.head_dim, dtype=torch.float64, requires_grad=True)
                k = torch.randn(2, shape.heads, keys_at.tokens, shape.head_dim, dtype=torch.float64)
                upstream = torch.randn(2, shape.heads, at.tokens, keys_at.tokens, dtype=torch.float64)
            keys, leaves = Keys(k, k, keys_at), [q, *encoding.parameters()]

            def slopes(values: Tensor, leaves: list = leaves, upstream: Tensor = upstream) -> list[Tensor]:
                values = values.expand_as(upstream)
                if not values.requires_grad:
                    return []
                found = torch.autograd.grad((values * upstream).sum(), leaves, allow_unused=True, retain_graph=True)
                return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]

            biases = encoding.biases(q, at, keys)
            modify = in_turn([bias.closure() for bias in biases])
            assert modify is not None, f"{encoding} opens door 3, and biases gives none"
            zero = torch.zeros_like(upstream)
            grid = modify(zero, *index_grids(zero))
            dense = total(biases, torch.float64)
            assert dense is not None
            ways = {"the dense bias": dense}
            # The public tensor, with the mask's -inf taken out again: the mask of these positions is not its subject.
            public = encoding.bias(at, keys_at, q=q, k=k, dtype=torch.float64)
            ways["bias()"] = torch.where(public == -torch.inf, grid, public)
            if "by_distance" in encoding.doors:
                values = encoding.by_distance(distance(at, keys_at, str(encoding), encoding.axes))
                assert values is not None
                ways["by_distance"] = values.movedim(0, 1)
            for way, values in ways.items():
                what = f"{way} against its closure on grids, {name}"
                same(values.expand_as(grid), grid, what)
                for mine, other in zip(slopes(values), slopes(grid), strict=False):
                    same(mine, other, f"{what}, gradient")
            for b, h, i, j in ((0, 0, 0, 0), (1, 2, 5, 1), (1, 1, 8, 6), (0, 2, 3, keys_at.tokens - 1)):
                one = modify(torch.zeros((), dtype=torch.float64), *map(torch.tensor, (b, h, i, j)))
                same(one, grid[b, h, i, j], f"a closure on single numbers, {name}")


def small_blocks() -> AbstractContextManager[None]:
    """Kernels that go through queries in blocks cut them so small that a few tokens are many blocks."""
    sizes = {"rows": 4, "rows_of_values": 3, "pairs": 100, "pairs_of_content": 60, "pairs_of_rules": 100}
    return SIZES.set_to(**sizes, pairs_kept=600, keys_for_vectors=1, rows_backwards=3, pairs_backwards=50, narrowest=2)


@promise
def half_precision_stays_near_double(subject: Subject) -> None:
    """In bfloat16 and float16 the result is off by rounding only, also for many tokens at far positions; and gradients
    in the embeddings and in every parameter have the direction and the length of those in double precision."""
    both = (masks.causal(), masks.bidirectional())
    late, many = count(TOKENS, 5000), count(300)
    placed = [("near", count(TOKENS), both), ("in a row", count(subject.reach), both)]
    if subject.serves(late):
        placed.append(("far", late, both))
    if subject.serves(many):
        # Sums over many small numbers stop growing in half precision.
        placed.append(("many tokens", many, (masks.causal(),)))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad():
            net = subject.net().to(dtype)
            exact = copy.deepcopy(net).double()
            for name, at, under in placed:
                x = tokens(subject, at.tokens, batch=1).to(dtype)
                for mask in under:
                    expected = exact(x.double(), at, mask)
                    for kernel in net.kernels:
                        got = net.through(kernel)(x, at, mask)
                        what = f"{name}, {mask_name(mask)}, {dtype}, kernel {kernel}"
                        words = f"{what}: the result is {got.dtype}; results have the dtype of the input"
                        expect(got.dtype == dtype, words)
                        near(got, expected, what)
        at, x = count(TOKENS), tokens(subject, TOKENS, batch=1).to(dtype)
        for mask in both:
            expected = with_gradients(exact, x.double(), at, mask)
            for kernel in net.kernels:
                got = with_gradients(net.through(kernel), x, at, mask)
                for what, slope in expected.items():
                    if what != "output":
                        alike(got[what], slope, f"{what}, {mask_name(mask)}, {dtype}, kernel {kernel}")


@promise
def gradients_are_those_of_small_steps(subject: Subject) -> None:
    """The gradients in the embeddings and in every parameter are the slopes that small steps measure, float64."""
    net, at, step = subject.net(), count(TOKENS), 1e-6
    with seeded(8):
        upstream = torch.randn(2, TOKENS, subject.shape.dim, dtype=torch.float64)
    for mask in (masks.causal(), masks.bidirectional()):
        x = tokens(subject, TOKENS).requires_grad_()
        leaves = {"x": x, **dict(net.encodings.named_parameters())}

        def loss(x: Tensor = x, mask: Mask = mask) -> Tensor:
            return (net(x, at, mask) * upstream).sum()

        slopes = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True)
        for (name, leaf), slope in zip(leaves.items(), slopes, strict=True):
            with seeded(7), torch.no_grad():
                direction = torch.randn_like(leaf)
                expected = torch.zeros(()) if slope is None else (slope * direction).sum()
                ends = []
                for sign in (1, -1):
                    leaf += sign * step * direction
                    ends.append(loss())
                    leaf -= sign * step * direction
                measured = (ends[0] - ends[1]) / (2 * step)
            same(expected, measured, f"gradient of {name} along a random direction, {mask_name(mask)}", 1e-5)


@promise
def every_parameter_learns(subject: Subject) -> None:
    """From its initial values every parameter gets a finite gradient, and within two steps one that is not zero."""
    net = subject.net(perturbed=False)
    parameters = list(net.encodings.named_parameters())
    if not parameters:
        raise NoMeaning(f"{subject} has no parameters")
    at = count(subject.reach)
    moved: set[str] = set()
    for step in range(2):
        x = tokens(subject, subject.reach, seed=step)
        out = net.train()(x, at, masks.causal())
        with seeded(9):
            wanted = torch.randn_like(out)
        net.zero_grad()
        (out - wanted).square().sum().backward()
        for name, parameter in parameters:
            if parameter.grad is None:
                continue
            expect(bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite")
            if bool((parameter.grad != 0).any()):
                moved.add(name)
            with torch.no_grad():
                parameter -= 0.01 * parameter.grad
    still = [name for name, _ in parameters if name not in moved]
    expect(not still, f"no gradient reaches {', '.join(still)}")


@promise
def grouped_query_heads_agree(subject: Subject) -> None:
    """With fewer key heads than query heads the result is that of the same key heads, each repeated for its group."""
    for heads, kv_heads in ((3, 1), (6, 2), (6, 3)):
        shape = replace(subject.shape, heads=heads)
        grouped = subject.net(shape=shape, kv_heads=kv_heads)
        full = subject.net(shape=shape)
        group = heads // kv_heads
        for few, many in zip(grouped.layers, full.layers, strict=True):
            state = few.state_dict()
            for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
                state[name] = state[name].unflatten(0, (kv_heads, -1)).repeat_interleave(group, 0).flatten(0, 1)
            many.load_state_dict(state)
        full.encodings.load_state_dict(grouped.encodings.state_dict())
        x, at = tokens(subject, TOKENS), count(TOKENS)
        for mask in (masks.causal(), masks.bidirectional()):
            for kernel in grouped.kernels:
                try:
                    got = grouped.through(kernel)(x, at, mask)
                except ValueError as error:
                    if chooses_heads(subject):
                        raise NoMeaning(f"the chosen heads cut through a group of query heads ({error})") from error
                    raise
                what = f"{heads} heads on {kv_heads} key heads, {mask_name(mask)}, kernel {kernel}"
                same(got, full.through(kernel)(x, at, mask), what)
