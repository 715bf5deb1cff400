"""Schedules of ejected files: trained lengths, schedules inside schedules, and lists as long as in released models."""

import pytest
import torch
from standalone.test_forms import module_of

from posenc import Shape, build
from posenc.standalone import eject

OPEN_LENGTHS = (
    "rotary(schedule=yarn(factor=4))", "rotary(schedule=clipped())", "rotary(schedule=dynamic_ntk(factor=2))",
    "rotary(schedule=clipped(pairs=2, inner=llama3(factor=8)))", "alibi + rotary(schedule=part_ntk(factor=4))",
    "continuous_time",
)  # fmt: skip


@pytest.mark.parametrize("spec", OPEN_LENGTHS)
def test_a_spec_that_leaves_the_trained_length_open_is_refused_until_it_is_given(spec: str) -> None:
    with pytest.raises(ValueError, match=r"depends on the trained length.*trained_length=4096"):
        eject(spec)
    assert "TRAINED_LENGTH = 2_048" in eject(spec, trained_length=2048)


@pytest.mark.parametrize("spec", ["rotary", "rotary(schedule=ntk(factor=4))", "rotary(schedule=clipped(pairs=2))"])
def test_a_spec_without_a_trained_length_needs_none(spec: str) -> None:
    assert "TRAINED_LENGTH" not in eject(spec)


def test_an_encoding_of_a_model_knows_its_trained_length() -> None:
    encoding = build("rotary(schedule=yarn(factor=4))", Shape(64, 2, 32, max_len=512))
    assert "TRAINED_LENGTH = 512" in eject(encoding)
    assert "TRAINED_LENGTH = 100 " in eject("rotary(schedule=yarn(factor=4, trained_length=100))", trained_length=2048)


def test_constants_of_schedules_inside_each_other_are_told_apart() -> None:
    text = eject("rotary(schedule=clipped(pairs=1, inner=clipped(pairs=2, inner=clipped(pairs=3))))")
    for line in ("PAIRS = 1 ", "CLIPPED_PAIRS = 2 ", "CLIPPED_CLIPPED_PAIRS = 3 "):
        assert f"\n{line}" in text
    assert text.index("Clipped RoPE") < text.index("import torch")


@pytest.mark.parametrize(("pairs", "partial"), [(48, 1.0), (48, 0.75), (64, 1.0)])
def test_lists_of_released_models_fit_the_self_test(pairs: int, partial: float) -> None:
    long, short = (tuple(round(1 + step * k / pairs, 6) for k in range(pairs)) for step in (30, 2))
    schedule = f"longrope(factor=32, short_factor={short}, long_factor={long}, trained_length=4096)"
    text = eject(f"rotary(schedule={schedule}, partial={partial})")
    exec(compile(text, "longrope.py", "exec"), {"__name__": "__main__"})
    assert len([line for line in text.splitlines() if not line.startswith("#")]) <= 150


@pytest.mark.parametrize("schedule", ["dynamic_linear()", "dynamic_ntk(factor=2)", "dynamic_yarn()"])
def test_the_default_horizon_is_the_text_so_far(schedule: str) -> None:
    cls, _ = module_of(eject(f"rotary(schedule={schedule})", trained_length=16))
    rotary, x = cls(head_dim=8), torch.randn(1, 2, 40, 8)
    q, _ = rotary(x, x)
    plain, _ = module_of(eject("rotary"))[0](head_dim=8)(x, x)
    assert rotary(x, x, horizon=40)[0].equal(q)
    assert not q.allclose(plain)
    torch.testing.assert_close(rotary(x[:, :, :16], x[:, :, :16])[0], plain[:, :, :16])
