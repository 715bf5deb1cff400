"""Rotations of ejected files: axes of q and k, shared and cached keys, initial weights, far positions, compiling."""

import inspect

import pytest
import torch
from standalone.test_forms import HEAD_DIM, HEADS, LENGTH, ROTATIONS, SHAPE, module_of, pair_of, samples
from tiers import daily_third
from torch import Tensor, nn

from posenc import build
from posenc.encoding.base import Encoding
from posenc.standalone import eject
from posenc.tokens.positions import Positions, as_positions

FORMS = [
    "rotary", "proportional_rotary", "multimodal_rotary", "axial_rotary", "image_rotary", "mixed_rotary", "xpos",
    "learned_rotary", "fourier_rotary", "polar",
]  # fmt: skip
OPTIONS = [spec for spec in ROTATIONS if not spec.startswith("rotary_values")]
SPECS = [*FORMS, *daily_third(OPTIONS)]
SPECS_OF_GROUPS = daily_third(s for s in [*FORMS, *OPTIONS] if not s.startswith("mixed_rotary") or "groups" in s)


def coordinates(encoding: Encoding) -> Tensor:
    """Return coordinates [2, 7, axes] that an encoding reads."""
    axes = len(getattr(encoding, "sections_in_use", ())) or encoding.axes or 1
    return torch.arange(2 * 7 * axes).view(2, 7, axes)


def rotate(module: nn.Module, q: Tensor, k: Tensor, at: Tensor) -> list[Tensor]:
    one_axis = at.shape[-1] == 1 and "offset" in inspect.signature(module.forward).parameters
    return list(module(q, k, at[..., 0] if one_axis else at))


@pytest.mark.parametrize("spec", SPECS)
def test_tokens_may_have_another_axis(spec: str) -> None:
    encoding, module = pair_of(spec)
    text = eject(spec, seq_dim=1, trained_length=LENGTH)
    exec(compile(text, "other.py", "exec"), {"__name__": "__main__"})
    cls, arguments = module_of(text)
    second_module = cls(**arguments).double()
    second_module.load_state_dict(module.state_dict())
    q, k, at = samples(2, HEADS, 7, HEAD_DIM), samples(2, HEADS, 7, HEAD_DIM, start=0.5), coordinates(encoding)
    for ids in (at, at[1]):
        expected = rotate(second_module, q.transpose(1, 2), k.transpose(1, 2), ids)
        torch.testing.assert_close([x.transpose(1, 2) for x in expected], rotate(module, q, k, ids))


@pytest.mark.parametrize("seq_dim", [1, 2])
@pytest.mark.parametrize("spec", SPECS_OF_GROUPS)
def test_query_heads_may_share_keys(spec: str, seq_dim: int) -> None:
    encoding, module = pair_of(spec)
    cls, arguments = module_of(eject(spec, seq_dim=seq_dim, trained_length=LENGTH))
    second_module = cls(**arguments).double()
    second_module.load_state_dict(module.state_dict())
    q, k, at = samples(2, HEADS, 7, HEAD_DIM), samples(2, HEADS // 2, 7, HEAD_DIM, start=0.5), coordinates(encoding)
    expected = rotate(second_module, q.movedim(2, seq_dim), k.movedim(2, seq_dim), at)
    torch.testing.assert_close([x.movedim(seq_dim, 2) for x in expected], list(encoding(q, k, as_positions(at))))


@pytest.mark.parametrize("spec", SPECS)
def test_weights_are_those_of_the_library_before_training(spec: str) -> None:
    cls, arguments = module_of(eject(spec, trained_length=LENGTH))
    torch.manual_seed(3)
    encoding = build(spec, SHAPE)
    torch.manual_seed(3)
    torch.testing.assert_close(dict(cls(**arguments).state_dict()), dict(encoding.state_dict()))


@pytest.mark.parametrize("spec", [spec for spec in FORMS if spec != "xpos"])
def test_angles_are_exact_at_far_positions(spec: str) -> None:
    encoding, module = pair_of(spec)
    far = coordinates(encoding) + 1_000_000
    q, k = samples(2, HEADS, 7, HEAD_DIM), samples(2, HEADS, 7, HEAD_DIM, start=0.5)
    torch.testing.assert_close(rotate(module, q, k, far), list(encoding(q, k, as_positions(far))), rtol=1e-6, atol=1e-6)
    expected = rotate(module.half(), q.half(), k.half(), far)
    actual = list(encoding.half()(q.half(), k.half(), as_positions(far)))
    torch.testing.assert_close(expected, actual, rtol=2**-10, atol=2**-10)


@pytest.mark.parametrize("spec", FORMS)
def test_a_file_compiles_without_a_break(spec: str) -> None:
    encoding, module = pair_of(spec)
    q, k, at = samples(2, HEADS, 7, HEAD_DIM), samples(2, HEADS, 7, HEAD_DIM, start=0.5), coordinates(encoding)
    at = at[..., 0] if at.shape[-1] == 1 else at
    compiled_module = torch.compile(module, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled_module(q, k, at), module(q, k, at))


@pytest.mark.parametrize("seq_dim", [1, 2])
@pytest.mark.parametrize("partial", [0.5, 1.0])
def test_a_schedule_by_horizon_turns_all_cached_keys_anew(seq_dim: int, partial: float) -> None:
    spec = f"rotary(schedule=dynamic_ntk(factor=2, trained_length=16), partial={partial})"
    encoding = build(spec, SHAPE)
    cls, arguments = module_of(eject(spec, seq_dim=seq_dim))
    q, k = samples(2, HEADS, 2, HEAD_DIM), samples(2, HEADS, 40, HEAD_DIM, start=0.5)
    at = Positions.count(40).with_horizon(40)
    expected = cls(**arguments)(q.movedim(2, seq_dim), k.movedim(2, seq_dim))
    actual = encoding.query(q, at.rows(slice(38, 40))), encoding.key(k, at)
    torch.testing.assert_close([x.movedim(seq_dim, 2) for x in expected], list(actual))
