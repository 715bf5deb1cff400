"""Promises on values and gradients: by the formula, in every kernel, in half precision, for grouped heads."""

import copy
import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from posenc.encoding.base import BIASES, Encoding
from posenc.encoding.biases import total
from posenc.encoding.formulas import Formulas, has_own_logits
from posenc.encoding.keys import Keys
from posenc.encoding.score_mods import chain_mods, index_grids
from posenc.kernels.block_sizes import SIZES
from posenc.model.seeding import local_seed
from posenc.testing.comparisons import agree, agree_in_angle, agree_nearly
from posenc.testing.contract import promise
from posenc.testing.oracles import net_by_formula
from posenc.testing.subjects import (
    TOKENS,
    Subject,
    arange,
    chooses_heads,
    embeddings,
    far_enough,
    mask_name,
    on_axes,
    some_positions,
    with_gradients,
)
from posenc.tokens import masks
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions, distance
from posenc.verdicts import AdvisedFailure, NoMeaning, expect


@promise
def says_what_the_paper_says(subject: Subject) -> None:
    """The fast path equals the scalar formulas: every head and pair, all kinds of positions, float64.

    The tolerance is 1e-7, since a bias that is no parameter may be computed in float32.
    """
    for encoding in subject.encodings():
        if "remember" in encoding.doors and not has_own_logits(encoding):
            raise NoMeaning(f"{encoding} remembers facts of other tokens and states no formula_logits that reads them")
    try:
        check_formulas(subject)
    except AssertionError as error:
        for encoding in subject.encodings():
            formulas = [name for name in FORMULAS if getattr(type(encoding), name) is not getattr(Formulas, name)]
            for door, (names, advice) in WITHOUT_FORMULA.items():
                if door in encoding.doors and not set(formulas) & {*names, "formula_logit", "formula_logits"}:
                    words = f"{encoding} opens {door}, and no formula_... method says what it does"
                    raise AdvisedFailure(words, f"write {advice}") from error
        raise


FORMULAS = [name for name in vars(Formulas) if name.startswith("formula_")]
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
"""For each door, the formulas that describe it besides those of a logit, and what to write if there is none."""


def check_formulas(subject: Subject) -> None:
    reach = subject.reach
    has_causal = any("causal" in inspect.signature(type(part).__init__).parameters for part in subject.encodings())
    for causal in (True, False):
        net = subject.net(shape=replace(subject.shape, causal=causal))
        mask = masks.Mask(causal=causal)
        for name, at in some_positions(subject):
            # Rows with the same positions have the same formula.
            rows = at.coords.shape[0]
            x = embeddings(subject, at.tokens, batch=rows)
            expected = net_by_formula(net, (x, at), (x, at), mask)
            for kernel in net.kernels:
                label = f"{name}, {mask_name(mask)}, kernel {kernel}, against the formula"
                agree(net.set_kernel(kernel)(x, at, mask), expected, label, 1e-7)
            if not (causal or has_causal):
                # Cross-attention is never causal, so this would test the same encoding again.
                continue
            cross_at = at.rows(slice(1, 6))
            x, keys_x = (embeddings(subject, 5, batch=rows, seed=2), embeddings(subject, at.tokens, batch=rows, seed=3))
            expected = net_by_formula(net, (x, cross_at), (keys_x, at), masks.bidirectional())
            for kernel in net.kernels:
                actual = net.set_kernel(kernel).cross_attend(x, cross_at, keys_x, at, masks.bidirectional())
                agree(actual, expected, f"{name}, cross-attention, kernel {kernel}, against the formula", 1e-7)
        # Beyond every reach: the last queries see all distances.
        at, x = arange(reach), embeddings(subject, reach, batch=1)
        expected = net_by_formula(net, (x, at), (x, at), masks.bidirectional(), queries=range(0, reach, 9))
        for kernel in net.kernels:
            actual = net.set_kernel(kernel)(x, at, masks.bidirectional())
            if len(net.layer_encodings) == 1:
                agree(actual[:, ::9], expected[:, ::9], f"{reach} tokens, kernel {kernel}, against the formula", 1e-7)


@promise
def evaluators_and_kernels_agree(subject: Subject) -> None:
    """Every evaluation of a bias and every kernel agree in values and gradients, at any block size."""
    net = subject.net()
    for encoding in net.layer_encodings:
        check_evaluators(encoding, subject)
    reach = subject.reach
    with local_seed(5):
        added_mask = torch.randn(TOKENS, TOKENS, dtype=torch.float64)
        boolean_mask = torch.rand(2, 1, TOKENS, TOKENS) < 0.6
    padding = torch.ones(2, TOKENS).index_put_((torch.tensor(1), torch.tensor([0, 1, 4])), torch.tensor(0.0))
    plain, long = arange(TOKENS), arange(reach)
    cases = [
        ("causal", plain, masks.causal()),
        ("bidirectional", plain, masks.bidirectional()),
        (f"causal, {reach} tokens", long, masks.causal()),
        ("window", plain, masks.window(3)),
        ("window both ways", plain, masks.window(3, causal=False)),
        ("prefix", plain, masks.prefix(4)),
        ("boolean mask with empty rows", plain, Mask(tensor=boolean_mask)),
        ("added mask", plain, Mask(causal=True, tensor=added_mask)),
        ("padding inside", far_enough(Positions.padded(padding)), masks.causal()),
        ("packed", far_enough(Positions.packed([4, 5])), masks.bidirectional()),
        ("one query", far_enough(plain.rows(slice(4, 5))), masks.causal()),
    ]
    for scale, cut in ((None, False), (0.7, True)):
        net = subject.net(scale=scale)
        for name, at, mask in cases:
            x = embeddings(subject, at.tokens)
            expected = with_gradients(net.set_kernel("reference"), x, at, mask)
            # "auto" may evaluate in blocks a rule that no fused kernel serves by name.
            for kernel in [*net.kernels, "auto"] if cut else net.kernels[1:]:
                with small_blocks() if cut else nullcontext():
                    actual = with_gradients(net.set_kernel(kernel), x, at, mask)
                for quantity, value in expected.items():
                    blocks = " in small blocks" if cut else ""
                    agree(actual[quantity], value, f"{name}, kernel {kernel}{blocks} against reference, {quantity}")


def check_evaluators(encoding: Encoding, subject: Subject) -> None:
    """Compare the dense bias, its closure on grids and on scalars, and by_distance, with gradients."""
    if not encoding.doors & BIASES or "remember" in encoding.doors:
        # A bias that reads remembered facts exists only inside attention, where kernels are compared.
        return
    shape = subject.shape
    for name, at in [*some_positions(subject), (f"{subject.reach} tokens", arange(subject.reach))]:
        at = on_axes(at, subject.axes)
        for keys_at in (at, at.rows(slice(0, at.tokens - 2))):
            with local_seed(4):
                q = torch.randn(2, shape.heads, at.tokens, shape.head_dim, dtype=torch.float64, requires_grad=True)
                k = torch.randn(2, shape.heads, keys_at.tokens, shape.head_dim, dtype=torch.float64)
                upstream = torch.randn(2, shape.heads, at.tokens, keys_at.tokens, dtype=torch.float64)
            keys, leaves = Keys(k, k, keys_at), [q, *encoding.parameters()]

            def slopes(values: Tensor, leaves: list = leaves, upstream: Tensor = upstream) -> list[Tensor]:
                values = values.expand_as(upstream)
                if not values.requires_grad:
                    return []
                gradients = torch.autograd.grad((values * upstream).sum(), leaves, allow_unused=True, retain_graph=True)
                return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, gradients, strict=True)]

            biases = encoding.biases(q, at, keys)
            modify = chain_mods([bias.closure() for bias in biases])
            assert modify is not None, f"{encoding} opens door 3, and biases gives none"
            zero = torch.zeros_like(upstream)
            grid = modify(zero, *index_grids(zero))
            dense = total(biases, torch.float64)
            assert dense is not None
            ways = {"the dense bias": dense}
            # The public tensor without the mask's -inf: the mask is not tested here.
            public = encoding.bias(at, keys_at, q=q, k=k, dtype=torch.float64)
            ways["bias()"] = torch.where(public == -torch.inf, grid, public)
            if "by_distance" in encoding.doors:
                values = encoding.by_distance(distance(at, keys_at, str(encoding), encoding.axes))
                assert values is not None
                ways["by_distance"] = values.movedim(0, 1)
            for way, values in ways.items():
                label = f"{way} against its closure on grids, {name}"
                agree(values.expand_as(grid), grid, label)
                for slope, grid_slope in zip(slopes(values), slopes(grid), strict=False):
                    agree(slope, grid_slope, f"{label}, gradient")
            for b, h, i, j in ((0, 0, 0, 0), (1, 2, 5, 1), (1, 1, 8, 6), (0, 2, 3, keys_at.tokens - 1)):
                number = modify(torch.zeros((), dtype=torch.float64), *map(torch.tensor, (b, h, i, j)))
                agree(number, grid[b, h, i, j], f"a closure on single numbers, {name}")


def small_blocks() -> AbstractContextManager[None]:
    """Set the block sizes of all kernels so small that a few tokens make many blocks."""
    sizes = {"rows": 4, "rows_of_values": 3, "pairs": 100, "pairs_of_content": 60, "pairs_of_rules": 100}
    return SIZES.set_to(**sizes, pairs_kept=600, keys_for_vectors=1, rows_backwards=3, pairs_backwards=50, narrowest=2)


@promise
def half_precision_stays_near_double(subject: Subject) -> None:
    """In bfloat16 and float16 results and gradients differ from double precision by rounding only.

    Also for many tokens and far positions. Gradients of embeddings and parameters keep their direction and length.
    """
    two_masks = (masks.causal(), masks.bidirectional())
    far_at, long = arange(TOKENS, 5000), arange(300)
    cases = [("near", arange(TOKENS), two_masks), ("in a row", arange(subject.reach), two_masks)]
    if subject.serves(far_at):
        cases.append(("far", far_at, two_masks))
    if subject.serves(long):
        # In half precision a sum of many small numbers stops growing.
        cases.append(("many tokens", long, (masks.causal(),)))
    for dtype in (torch.bfloat16, torch.float16):
        with torch.no_grad():
            net = subject.net().to(dtype)
            exact = copy.deepcopy(net).double()
            for name, at, case_masks in cases:
                x = embeddings(subject, at.tokens, batch=1).to(dtype)
                for mask in case_masks:
                    expected = exact(x.double(), at, mask)
                    for kernel in net.kernels:
                        actual = net.set_kernel(kernel)(x, at, mask)
                        label = f"{name}, {mask_name(mask)}, {dtype}, kernel {kernel}"
                        words = f"{label}: the result is {actual.dtype}; results have the dtype of the input"
                        expect(actual.dtype == dtype, words)
                        agree_nearly(actual, expected, label)
        at, x = arange(TOKENS), embeddings(subject, TOKENS, batch=1).to(dtype)
        for mask in two_masks:
            expected = with_gradients(exact, x.double(), at, mask)
            for kernel in net.kernels:
                actual = with_gradients(net.set_kernel(kernel), x, at, mask)
                for label, slope in expected.items():
                    if label != "output":
                        agree_in_angle(actual[label], slope, f"{label}, {mask_name(mask)}, {dtype}, kernel {kernel}")


@promise
def gradients_are_those_of_small_steps(subject: Subject) -> None:
    """The gradients of embeddings and parameters equal finite differences, float64."""
    net, at, step = subject.net(), arange(TOKENS), 1e-6
    with local_seed(8):
        upstream = torch.randn(2, TOKENS, subject.shape.dim, dtype=torch.float64)
    for mask in (masks.causal(), masks.bidirectional()):
        x = embeddings(subject, TOKENS).requires_grad_()
        leaves = {"x": x, **dict(net.encodings.named_parameters())}

        def loss(x: Tensor = x, mask: Mask = mask) -> Tensor:
            return (net(x, at, mask) * upstream).sum()

        slopes = torch.autograd.grad(loss(), list(leaves.values()), allow_unused=True)
        for (name, leaf), slope in zip(leaves.items(), slopes, strict=True):
            with local_seed(7), torch.no_grad():
                direction = torch.randn_like(leaf)
                expected = torch.zeros(()) if slope is None else (slope * direction).sum()
                ends = []
                for sign in (1, -1):
                    leaf += sign * step * direction
                    ends.append(loss())
                    leaf -= sign * step * direction
                finite_difference = (ends[0] - ends[1]) / (2 * step)
            agree(expected, finite_difference, f"gradient of {name} along a random direction, {mask_name(mask)}", 1e-5)


@promise
def every_parameter_learns(subject: Subject) -> None:
    """Every parameter gets a finite gradient, and within two steps from its initial values a non-zero one."""
    net = subject.net(perturb=False)
    parameters = list(net.encodings.named_parameters())
    if not parameters:
        raise NoMeaning(f"{subject} has no parameters")
    at = arange(subject.reach)
    names_with_gradient: set[str] = set()
    for step in range(2):
        x = embeddings(subject, subject.reach, seed=step)
        output = net.train()(x, at, masks.causal())
        with local_seed(9):
            target = torch.randn_like(output)
        net.zero_grad()
        (output - target).square().sum().backward()
        for name, parameter in parameters:
            if parameter.grad is None:
                continue
            expect(bool(parameter.grad.isfinite().all()), f"the gradient of {name} is not finite")
            if bool((parameter.grad != 0).any()):
                names_with_gradient.add(name)
            with torch.no_grad():
                parameter -= 0.01 * parameter.grad
    still = [name for name, _ in parameters if name not in names_with_gradient]
    expect(not still, f"no gradient reaches {', '.join(still)}")


@promise
def grouped_query_heads_agree(subject: Subject) -> None:
    """Grouped-query attention equals attention with each key head repeated for its group."""
    for heads, kv_heads in ((3, 1), (6, 2), (6, 3)):
        shape = replace(subject.shape, heads=heads)
        grouped_net = subject.net(shape=shape, kv_heads=kv_heads)
        full_net = subject.net(shape=shape)
        group = heads // kv_heads
        for grouped_layer, full_layer in zip(grouped_net.layers, full_net.layers, strict=True):
            state = grouped_layer.state_dict()
            for name in ("k_proj.weight", "k_proj.bias", "v_proj.weight", "v_proj.bias"):
                state[name] = state[name].unflatten(0, (kv_heads, -1)).repeat_interleave(group, 0).flatten(0, 1)
            full_layer.load_state_dict(state)
        full_net.encodings.load_state_dict(grouped_net.encodings.state_dict())
        x, at = embeddings(subject, TOKENS), arange(TOKENS)
        for mask in (masks.causal(), masks.bidirectional()):
            for kernel in grouped_net.kernels:
                try:
                    actual = grouped_net.set_kernel(kernel)(x, at, mask)
                except ValueError as error:
                    if chooses_heads(subject):
                        raise NoMeaning(f"the chosen heads cut through a group of query heads ({error})") from error
                    raise
                label = f"{heads} heads on {kv_heads} key heads, {mask_name(mask)}, kernel {kernel}"
                agree(actual, full_net.set_kernel(kernel)(x, at, mask), label)
