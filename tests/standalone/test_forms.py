"""Each readable form, ejected and run as a user would: alone, and held to the library in values and gradients."""

import ast
import inspect
from functools import cache, partial
from typing import Any

import pytest
import torch
from tiers import daily_third
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posenc import Keys, Mask, Positions, Shape, build
from posenc.encoding.base import Encoding
from posenc.encoding.biases import BIASES, total
from posenc.encoding.score_mods import index_grids
from posenc.encodings.rules.rotary_values import RotaryValues
from posenc.kernels import bind
from posenc.standalone import eject, readable
from posenc.tokens.positions import as_positions

DIM, HEADS, HEAD_DIM, LENGTH = 32, 4, 8, 64
SHAPE = Shape(DIM, HEADS, HEAD_DIM, LENGTH)
ARGUMENTS = {"d_model": DIM, "num_heads": HEADS, "head_dim": HEAD_DIM, "max_seq_len": LENGTH}

LINES = {"rotary": 60, "alibi": 40, "sinusoidal": 40}
"""The most lines of these as they are; 150 of all others."""
ADDED = (
    "learned(overrun='clamp')", "sinusoidal(layout='concatenated')", "sinusoidal(layout='cosines_first')",
    "sinusoidal(layout='sines_first')", "sinusoidal(endpoint=True, base=500)", "sinusoidal(scaled=True)",
    "sinusoidal(axes=2)", "sinusoidal(axes=3, layout='concatenated', scaled=True)", "sinusoidal(axes=3, base=500)",
    "sinusoidal(axes=2, layout='cosines_first')", "sinusoidal(axes=2, layout='sines_first', endpoint=True)",
    "learned_grid(grid=(64, 40))", "learned_grid(grid=(64, 32, 30), prefix=2, std=0.1)",
    "learned_grid(grid=(5, 4), overrun='clamp')", "learned_grid(grid=(8, 8), prefix=3, overrun='clamp')",
    "learned_factorised(fold=False)", "learned_factorised(fold=False, combine='summed', std=0.1)",
    "learned_factorised(grid=(5, 13))", "learned_factorised(grid=(3, 5, 7), widths=(4, 8, 20))",
    "learned_factorised(combine='summed', overrun='clamp', grid=(4, 5))",
    "learned_factorised(fold=False, grid=(9, 6, 4), overrun='clamp')",
    "continuous_time(size=5)", "continuous_time(trained_length=7)",
    "fourier_features(axes=2)", "fourier_features(axes=3, kind='log2', centres=True)",
    "fourier_features(kind='log2', max_freq=10)", "fourier_features(axes=2, max_freq=7)",
    "fourier_features(kind='gaussian', scale=2.5, seed=3)", "fourier_features(kind='gaussian', axes=2, centres=True)",
    "fourier_features(kind='learned', hidden=5)", "fourier_features(kind='learned', axes=3, scale=0.5)",
)  # fmt: skip
ROTATIONS = (
    "rotary(layout='interleaved')", "rotary(layout='swapped', base=500)", "rotary(partial=0.5)",
    "rotary(layout='interleaved', partial=0.5)", "rotary(layout='swapped', partial=0.5)",
    "axial_rotary(base=50)", "axial_rotary(layout='interleaved')", "axial_rotary(layout='half_by_axis')",
    "axial_rotary(axes=1)", "axial_rotary(axes=3)", "axial_rotary(axes=3, layout='half_by_axis')",
    "axial_rotary(split=(2, 4))", "axial_rotary(split=(4, 2), layout='half_by_axis')",
    "axial_rotary(frequencies='dealt')", "axial_rotary(frequencies='dealt', split=(2, 2), layout='interleaved')",
    "axial_rotary(frequencies='pixel')", "axial_rotary(frequencies='pixel', resolution=8, split=(2, 4, 2), axes=3)",
    "axial_rotary(frequencies='log_pixel', resolution=8)", "axial_rotary(frequencies='log_pixel', axes=1)",
    "image_rotary(base=50)", "image_rotary(layout='interleaved')", "image_rotary(axes=1)", "image_rotary(axes=3)",
    "mixed_rotary(base=50, layout='interleaved')", "mixed_rotary(groups=1)", "mixed_rotary(groups=2)",
    "mixed_rotary(axes=1)", "mixed_rotary(axes=3, groups=2, layout='interleaved')",
    "multimodal_rotary(order='interleaved', base=500)", "multimodal_rotary(order='time_last', layout='interleaved')",
    "multimodal_rotary(sections=(1, 2, 1))", "multimodal_rotary(sections=(1, 1), partial=0.5, order='time_last')",
    "multimodal_rotary(sections=(2, 1, 1), order='interleaved', schedule=yarn(factor=4, beta_fast=4))",
    "multimodal_rotary(sections=(0, 1, 3), order='time_last')",
    "proportional_rotary(partial=0.75, base=500, layout='interleaved')", "proportional_rotary(partial=1.0)",
    "proportional_rotary(partial=0.5, schedule=yarn(factor=4, beta_fast=4))",
    "xpos(layout='interleaved', base=500)", "xpos(scale_base=64, gamma=0.2, centre=30)",
    "learned_rotary(layout='interleaved', base=500)", "learned_rotary(per_head=True)",
    "fourier_rotary(layout='interleaved', base=500)", "fourier_rotary(gain=0.6, seed=3, silenced='doubled')",
    "fourier_rotary(per_head=False)", "fourier_rotary(learned=True)", "fourier_rotary(learned=True, per_head=False)",
    "polar(phases='uniform', base=500)", "polar(phases='none')",
    "rotary_values(layout='interleaved', base=500)", "rotary_values(partial=0.5)",
    "rotary_values(partial=0.5, trailing=True, layout='interleaved')",
)  # fmt: skip
SCHEDULES = (
    "rotary(schedule=linear(factor=3))", "rotary(schedule=ntk(factor=3))", "rotary(schedule=ntk_fixed(factor=3))",
    "rotary(schedule=ntk_mixed(factor=3, power=0.5), base=500)", "rotary(schedule=part_ntk(factor=3), base=50)",
    "rotary(schedule=ntk_by_parts(factor=3, beta=8))", "rotary(schedule=ntk_by_parts(factor=3, alpha=2, beta=2))",
    "rotary(schedule=llama3(factor=3))", "rotary(schedule=llama3(factor=3, low=2, high=2))",
    "rotary(schedule=yarn(factor=4), partial=0.5)", "rotary(schedule=yarn(factor=4, beta_fast=4, truncate=False))",
    "rotary(schedule=yarn(factor=4, beta_fast=5, beta_slow=0.5, ramp='turns'))",
    "rotary(schedule=yarn(factor=4, beta_fast=1, ramp='turns'))", "rotary(schedule=yarn(factor=4, attention_factor=2))",
    "rotary(schedule=yarn(factor=40, mscale=0.7, mscale_all_dim=1, mscale_rule='apart'))",
    "rotary(schedule=dynamic_linear())", "rotary(schedule=dynamic_ntk(factor=2))", "rotary(schedule=dynamic_yarn())",
    "rotary(schedule=dynamic_yarn(factor=2, beta_fast=4, beta_slow=0.5, truncate=False))",
    "rotary(schedule=longrope(factor=4, short_factor=(1, 1.1, 1.2, 1.3), long_factor=(1, 2, 3, 4)))",
    "rotary(schedule=longrope(factor=4, short_factor=(1, 1.1), long_factor=(1, 2), attention_factor=2), partial=0.5)",
    "rotary(schedule=longrope(factor=4, short_factor=(1, 1, 1, 2), long_factor=(1, 2, 3, 4), long_mscale=2))",
    "rotary(schedule=longrope(factor=4, short_factor=(1, 1, 1, 2), long_factor=(1, 2, 3, 4), short_mscale=3))",
    "rotary(schedule=clipped(pairs=2))", "rotary(schedule=clipped(soft=False))", "rotary(schedule=clipped(), base=90)",
    "rotary(schedule=clipped(inner=clipped(inner=clipped(pairs=3, inner=yarn(factor=4)), pairs=1)))",
    "rotary(schedule=resonance())", "rotary(schedule=resonance(inner=clipped(inner=dynamic_yarn(), soft=False)))",
    "proportional_rotary(schedule=resonance(inner=linear(factor=3)))",
    "multimodal_rotary(schedule=clipped(inner=yarn(factor=3)))",
)  # fmt: skip
DISTANCES = (
    "alibi(form='asymmetric')", "alibi(form='falcon')", "alibi(learned=True)", "alibi(bias_max=4)",
    "alibi(form='asymmetric', learned=True)", "alibi(form='falcon', learned=True)",
    "t5_bias(buckets=8, max_distance=20)", "t5_bias(causal=False)",
    "t5_bias(causal=False, buckets=8, max_distance=20, std=0.1)", "kerple(kind='power')", "kerple(form='paper')",
    "kerple(kind='power', form='paper')", "sandwich(width=16, base=500)",
    "fire(width=5, rate=0.3, length=20, eps=0.01)", "fire(shared=True)", "mlp_bias(width=8, depth=1)",
    "mlp_bias(log=True)", "mlp_bias(axes=2, log=True)", "mlp_bias(axes=3, depth=1)", "grid_bias(window=(5,))",
    "grid_bias(window=(9, 4), std=0)", "grid_bias(window=(3, 3, 9))", "log_grid_bias(window=12, width=8)",
    "log_grid_bias(axes=1)", "log_grid_bias(axes=3)",
)  # fmt: skip
TEMPERATURES = (
    "log_temperature(trained_length=16, least=1)", "log_temperature(least=0.5)",
    "scalable_softmax(start=1, constant=True)", "step_temperature(interval=8)",
    "step_temperature(interval=8, form='ministral')", "step_temperature(interval=8, form='inkling', strength=0.5)",
)  # fmt: skip
CONTENT = (
    "shaw(max_distance=5)", "shaw(std=0.1)", "shaw(mutual=True)", "shaw(values=False)",
    "shaw(values=False, mutual=True)", "transformer_xl(base=50, layout='interleaved')", "transformer_xl(std=0.1)",
    "transformer_xl(max_distance=5)", "deberta(buckets=6, max_distance=40)", "deberta(buckets=8, max_distance=None)",
    "deberta(terms='content_to_position')", "deberta(terms='position_to_content', std=0.1)", "deberta(mirror=False)",
    "tupe(untie_first=False, std=0.1)", "contextual(positions=3)", "contextual(divided=False)",
    "forgetting(start=5, std=0.1)", "inkling(max_distance=6, rank=3, std=0.1)",
)  # fmt: skip
OPTIONS = (*ADDED, *ROTATIONS, *SCHEDULES, *DISTANCES, *TEMPERATURES, *CONTENT)
SPECS = [*readable(), *daily_third(OPTIONS)]
file_of = cache(partial(eject, trained_length=LENGTH))


def samples(*shape: int, dtype: torch.dtype = torch.float64, start: float = 0.0) -> Tensor:
    return (torch.arange(torch.Size(shape).numel(), dtype=torch.float64) + start).sin().view(shape).to(dtype)


def module_of(text: str) -> tuple[type[nn.Module], dict[str, Any]]:
    """Return the class of an ejected file, and its constructor's arguments for the shape of these tests."""
    scope: dict[str, Any] = {"__name__": "ejected"}
    exec(compile(text, "ejected.py", "exec"), scope)
    classes = [value for value in scope.values() if inspect.isclass(value) and value.__module__ == "ejected"]
    (cls,) = [cls for cls in classes if issubclass(cls, nn.Module)]
    return cls, {name: ARGUMENTS[name] for name in inspect.signature(cls).parameters if name in ARGUMENTS}


def pair_of(spec: str, *, seq_dim: int = 2, flex: bool = False) -> tuple[Encoding, nn.Module]:
    """Return the library's encoding and the module of its file, with the same weights, in float64."""
    encoding = build(spec, SHAPE).double()
    cls, arguments = module_of(file_of(spec, seq_dim=seq_dim, flex=flex))
    module = cls(**arguments).double()
    with torch.no_grad():
        for start, parameter in enumerate(encoding.parameters()):
            parameter.copy_(0.3 * samples(*parameter.shape, start=start))
    module.load_state_dict(encoding.state_dict())
    return encoding, module


def places(axes: int, kind: str) -> tuple[Tensor | None, dict[str, Any]]:
    """Return the ids that both are given, and how the file is called."""
    batch = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [3, 4, 9, 10, 11, 30, 61]])
    ids = {"ids": batch[1], "batch": batch, "offset": torch.arange(50, 57)}[kind]
    if axes > 1:
        ids = torch.stack([ids // (axis + 1) for axis in range(axes)], -1)
        return ids, {"position_ids": ids}
    return ids, {"offset": 50} if kind == "offset" else {"position_ids": ids}


def reads_content(encoding: Encoding) -> bool:
    if isinstance(encoding, RotaryValues):
        return False
    return "biases" in encoding.doors or ("attend" in encoding.doors and "turn" not in encoding.doors)


def content_results(
    encoding: Encoding,
    module: nn.Module,
    kind: str,
    dtype: torch.dtype,
    *,
    key_heads: int = HEADS,
    mask: Tensor | None = None,
    seq_dim: int = 2,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return the same for a rule of attention, or a bias that reads more than positions; the library's in float64."""
    encoding, ids = encoding.double(), places(1, kind)[0]
    keys_at = Positions.count(57) if kind == "offset" else as_positions(ids)
    at = keys_at.rows(slice(-7, None)) if kind == "offset" else keys_at  # queries behind cached keys
    tokens = keys_at.tokens
    q, x = samples(2, HEADS, 7, HEAD_DIM, dtype=dtype), samples(2, tokens, DIM, dtype=dtype)
    k, v = (samples(2, key_heads, tokens, HEAD_DIM, dtype=dtype, start=start) for start in (0.5, 0.7))
    inputs = [tensor.requires_grad_() for tensor in (q, k, v, x)]

    exact_q, exact_k, exact_v, exact_x = (tensor.double() for tensor in inputs)
    facts = encoding.remember(exact_x, keys_at)
    keys = Keys(exact_k, exact_v, keys_at, facts, {name: fact[:, :, -7:] for name, fact in facts.items()})
    if "attend" in encoding.doors:
        kernel = bind("reference", encoding, scale=HEAD_DIM**-0.5)
        expected = encoding.attend(exact_q, at, keys, Mask(tensor=mask), kernel)[0]
    else:
        bias = total(encoding.biases(exact_q, at, keys), torch.float64)
        assert bias is not None
        expected = bias.expand(2, HEADS, 7, tokens)

    q, k, v = (tensor.movedim(2, seq_dim) for tensor in (q, k, v))
    options = {"q": q, "k": k, "v": v, "x": x[:, -7:], "mask": mask}
    if kind != "offset":
        options |= {"position_ids": ids, "key_position_ids": ids}
    elif hasattr(module, "log_gates"):
        options["past_log_gates"] = module.log_gates(x[:, :-7])
    actual = module(**{name: options[name] for name in inspect.signature(module.forward).parameters if name in options})
    return expected, actual.movedim(seq_dim, 2) if "attend" in encoding.doors else actual.expand_as(expected), inputs


def results(
    encoding: Encoding, module: nn.Module, kind: str, dtype: torch.dtype
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return what the library and the file make of the same tensors, and these tensors."""
    if reads_content(encoding):
        return content_results(encoding, module, kind, dtype)
    axes = len(getattr(encoding, "sections_in_use", ())) or encoding.axes or 2
    axes = 1 if kind == "offset" and hasattr(encoding, "sections_in_use") else axes  # text
    ids, options = places(axes, kind)
    at = as_positions(ids[None] if axes > 1 and ids.dim() == 2 else ids)
    if getattr(encoding, "turns_when_attending", False):
        horizon = {"ids": 150, "batch": 40, "offset": 57}[kind]
        at, options = at.with_horizon(horizon), options if kind == "offset" else options | {"horizon": horizon}
    q, k = samples(2, HEADS, 7, HEAD_DIM, dtype=dtype), samples(2, HEADS, 7, HEAD_DIM, dtype=dtype, start=0.5)
    x = samples(2, 7, DIM, dtype=dtype)
    inputs = [tensor.requires_grad_() for tensor in (q, k, x)]
    parameters = list(inspect.signature(module.forward).parameters)
    if "turn" in encoding.doors and not {"offset", "key_position_ids"} & {*parameters}:
        options = {"position_ids": ids if axes > 1 else ids[..., None]}
    if parameters[0] == "v":
        expected = torch.cat([encoding.rotated(q, at, direction) for direction in (1, -1)])
        return expected, torch.cat((module(q, **options), module(q, **options, inverse=True))), inputs
    if encoding.doors & BIASES and "offset" in options:  # queries behind cached keys
        ids, options = torch.arange(57), {}
        k = samples(2, HEADS, 57, HEAD_DIM, dtype=dtype, start=0.5).requires_grad_()
        inputs[1] = k
    if "embed" in encoding.doors:
        return encoding(x, positions=at), module(x, **options), inputs
    if encoding.doors & BIASES:
        keys_at, at = (at, at) if "position_ids" in options else (as_positions(ids), as_positions(ids[-7:]))
        bias = encoding.bias(at, keys_at, q=q, k=k)
        return bias, module(q, k, **options).expand_as(bias), inputs
    if parameters[:2] == ["q", "position_ids"]:
        return encoding.query(q, at), module(q, **options), inputs
    return torch.cat(encoding(q, k, at)), torch.cat(module(q, k, **options)), inputs


@pytest.mark.parametrize("spec", SPECS)
def test_a_file_is_short_and_imports_torch_and_math_alone(spec: str) -> None:
    text = file_of(spec)
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    assert names | {node.module for node in imports if isinstance(node, ast.ImportFrom)} <= {"torch", "math"}
    assert text.count("\n") <= LINES.get(spec, 150)
    assert all(len(line) <= 120 or line.startswith("# posenc") for line in text.splitlines())
    assert spec not in LINES or text == eject(spec, trained_length=LENGTH)


@pytest.mark.parametrize("spec", SPECS)
def test_the_self_test_of_a_file_passes_and_fails_with_another_number(spec: str) -> None:
    text = file_of(spec)
    exec(compile(text, "right.py", "exec"), {"__name__": "__main__"})
    first = text.index("EXPECTED = (") + len("EXPECTED = (")
    with pytest.raises(AssertionError):
        exec(compile(text[:first] + "1 + " + text[first:], "wrong.py", "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("kind", ["ids", "batch", "offset"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_file_gives_the_librarys_values_and_gradients(spec: str, kind: str) -> None:
    encoding, module = pair_of(spec)
    # posenc computes biases at whole distances in float32, so these are not the same to the last digit.
    expected, actual, inputs = results(encoding, module, kind, torch.float64)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    weights = samples(*expected.shape)
    gradients: list[list[Tensor | None]] = []
    for output, owner in ((expected, encoding), (actual, module)):
        for tensor in inputs:
            tensor.grad = None
        if output.requires_grad:
            (output * weights).sum().backward()
        gradients.append([tensor.grad for tensor in [*inputs, *owner.parameters()]])
    for wanted_gradient, gradient in zip(*gradients, strict=True):
        if wanted_gradient is not None and wanted_gradient.any():
            torch.testing.assert_close(gradient, wanted_gradient, rtol=1e-6, atol=1e-6)
        else:
            assert gradient is None or not gradient.any()


@pytest.mark.parametrize("spec", SPECS)
def test_in_half_precision_a_file_is_within_one_rounding(spec: str) -> None:
    encoding, module = pair_of(spec)
    exact, _, _ = results(encoding, module, "ids", torch.float64)
    expected, actual, _ = results(encoding.to(torch.bfloat16), module.to(torch.bfloat16), "ids", torch.bfloat16)
    assert actual.dtype == torch.bfloat16
    one_rounding = 2**-8 * exact.abs().clamp(min=2**-8)
    assert ((actual.double() - expected.double()).abs() <= 2 * one_rounding).all()


READERS = [spec for spec in (*readable(), *CONTENT) if reads_content(build(spec, SHAPE))]
RULES = [spec for spec in READERS if "attend" in build(spec, SHAPE).doors]


@pytest.mark.parametrize("spec", READERS)
def test_query_heads_may_share_keys_and_tokens_may_have_another_axis(spec: str) -> None:
    encoding, module = pair_of(spec)
    expected, actual, _ = content_results(encoding, module, "offset", torch.float64, key_heads=2)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    cls, arguments = module_of(file_of(spec, seq_dim=1))
    second_module = cls(**arguments).double()
    second_module.load_state_dict(module.state_dict())
    for kind in ("offset", "batch"):
        expected, actual, _ = content_results(encoding, second_module, kind, torch.float64, key_heads=2, seq_dim=1)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", RULES)
def test_a_rule_attends_to_no_masked_key_and_gives_zeros_where_there_is_none(spec: str) -> None:
    encoding, module = pair_of(spec)
    for mask in (samples(2, 1, 7, 57) > 0.2, samples(57) > 0.2, torch.zeros(7, 1, dtype=torch.bool)):
        expected, actual, inputs = content_results(encoding, module, "offset", torch.float64, mask=mask)
        torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
        actual.sum().backward()
        assert all(tensor.grad is None or tensor.grad.isfinite().all() for tensor in inputs)
    assert not actual.any()


@pytest.mark.parametrize("spec", TEMPERATURES)
def test_queries_of_a_temperature_may_have_another_axis_of_tokens(spec: str) -> None:
    encoding, module = pair_of(spec, seq_dim=1)
    for kind in ("offset", "batch"):
        ids, options = places(1, kind)
        q = samples(2, HEADS, 7, HEAD_DIM)
        actual = module(q.transpose(1, 2), **options).transpose(1, 2)
        torch.testing.assert_close(actual, encoding.query(q, as_positions(ids)), rtol=1e-6, atol=1e-6)


BIAS_SPECS = [spec for spec in (*readable(), *DISTANCES) if build(spec, SHAPE).doors & BIASES]
CLOSURES = [spec for spec in BIAS_SPECS if build(spec, SHAPE).axes == 1 and ("fire" in spec or spec not in READERS)]


class ResultTypes(TorchDispatchMode):
    """Record the dtypes of all tensors that are computed."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.dtypes |= {leaf.dtype for leaf in torch.utils._pytree.tree_leaves(result) if isinstance(leaf, Tensor)}
        return result


@pytest.mark.parametrize("offset", [0, 50])
@pytest.mark.parametrize("spec", CLOSURES)
def test_a_closure_for_flex_attention_adds_the_librarys_bias(spec: str, offset: int) -> None:
    encoding, module = pair_of(spec, flex=True)
    score = samples(2, HEADS, 7, 57)
    at, keys_at = as_positions(torch.arange(offset, offset + 7)), as_positions(57)
    expected = encoding.bias(at, keys_at, q=samples(2, HEADS, 7, HEAD_DIM)).expand_as(score)
    actual = module.score_mod(offset)(score, *index_grids(score)) - score
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    gradients = [
        torch.autograd.grad(bias, list(owner.parameters()), samples(*score.shape, start=0.5))
        for bias, owner in ((actual, module), (expected, encoding))
        if list(encoding.parameters())
    ]
    for pair in zip(*gradients, strict=True):
        torch.testing.assert_close(*pair, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("spec", CLOSURES)
def test_a_closure_for_flex_attention_computes_nothing_in_float64(spec: str) -> None:
    _, module = pair_of(spec, flex=True)
    score = samples(2, HEADS, 7, 57, dtype=torch.float32)
    add_bias, grids = module.float().score_mod(3), [grid.int() for grid in index_grids(score)]
    with ResultTypes() as types:
        result = add_bias(score, *grids)
    assert result.dtype == torch.float32
    assert torch.float64 not in types.dtypes


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("rotary + alibi", "rotary has no bias"),
        ("scalable_softmax", "scalable_softmax has no bias"),
        ("shaw", "the bias of shaw reads content"),
        ("grid_bias", "the positions of grid_bias have 2 axes"),
        ("on(alibi, heads=(0, 1))", "alibi is on some heads"),
    ],
)
def test_flex_says_why_an_encoding_has_no_closure(spec: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        eject(spec, flex=True)
