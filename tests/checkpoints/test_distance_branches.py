"""Attention by branches, against the distance maps' own attention."""

import pytest
import torch

from posenc import kernels, masks
from posenc.catalogue import build
from posenc.checkpoints.distance_branches import attend_by_branches, distance_map_of, why_not
from posenc.encoding import Shape
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.positions import Positions

SHAPE = Shape(32, 4, 8, 64, True)
MAPS = ("self_extend(rotary, window=4, group=3)", "rerope(rotary, window=5, leak=2)", "dual_chunk(rotary, chunk=6)")


def close(got: torch.Tensor, want: torch.Tensor, tolerance: float = 1e-6) -> None:
    assert got.shape == want.shape and float((got - want).abs().max()) <= tolerance


def heads(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*shape, 8, dtype=dtype)


def both(spec: str, q: torch.Tensor, at: Positions, keys: Keys, mask: Mask) -> tuple[torch.Tensor, torch.Tensor]:
    """By branches, and as the map itself attends."""
    encoding = build(spec, SHAPE)
    kernel = kernels.bind("reference", encoding, scale=0.3)
    return attend_by_branches(encoding, q, at, keys, mask, scale=0.3), encoding.attend(q, at, keys, mask, kernel)[0]


@pytest.mark.parametrize("spec", MAPS)
@pytest.mark.parametrize("mask", [masks.causal(), masks.window(9), masks.bidirectional(), masks.prefix(7)])
def test_it_gives_what_the_map_gives(spec, mask):
    at = Positions.count(30)
    q, k, v = heads(2, 4, 30), heads(2, 2, 30), torch.randn(2, 2, 30, 5)
    close(*both(spec, q, at, Keys(k, v, at), mask))


@pytest.mark.parametrize("spec", MAPS)
def test_more_queries_than_a_block_behind_a_cache(spec):
    keys_at = Positions.count(600)
    at = keys_at.rows(slice(300, 600))
    q, k, v = heads(1, 4, 300), heads(1, 2, 600), heads(1, 2, 600)
    close(*both(spec, q, at, Keys(k, v, keys_at), masks.causal()))


@pytest.mark.parametrize("spec", MAPS)
def test_rows_that_stand_elsewhere_with_given_masks(spec):
    seen = torch.ones(2, 12)
    seen[0, :5] = 0
    at = Positions.padded(seen)
    q, k, v = heads(2, 4, 12), heads(2, 4, 12), heads(2, 4, 12)
    allowed = torch.rand(2, 1, 12, 12) < 0.7
    logits = torch.randn(1, 4, 12, 12).masked_fill(torch.rand(1, 4, 12, 12) < 0.2, -torch.inf)
    for given in (allowed, logits, logits[:, :, :1], logits[..., :1], torch.zeros(12)):
        close(*both(spec, q, at, Keys(k, v, at), Mask(causal=True, given=given)))


def test_given_logits_are_those_of_their_rows():
    at = Positions.count(300)
    q, k, v = heads(1, 4, 300), heads(1, 2, 300), heads(1, 2, 300)
    given = torch.randn(1, 1, 300, 300)
    close(*both(MAPS[0], q, at, Keys(k, v, at), Mask(given=given)))
    last = slice(299, 300)
    close(*both(MAPS[0], q[:, :, last], at.rows(last), Keys(k, v, at), Mask(given=given[:, :, last])))


def test_a_query_that_sees_nothing_takes_zeros():
    at = Positions.count(6)
    q = heads(1, 4, 6)
    given = torch.ones(6, 6, dtype=torch.bool)
    given[2] = False
    out = attend_by_branches(build(MAPS[0], SHAPE), q, at, Keys(q, q, at), Mask(given=given), scale=1.0)
    assert float(out[:, :, 2].abs().max()) == 0 and not out.isnan().any()
    nothing = attend_by_branches(build(MAPS[0], SHAPE), q, at, Keys(q, q, at), Mask(given=given & False), scale=1.0)
    assert float(nothing.abs().max()) == 0


def test_half_precision_is_rounded_once():
    at = Positions.count(40)
    q, k, v = (heads(1, 4, 40, dtype=torch.bfloat16) for _ in range(3))
    got, want = both(MAPS[0], q, at, Keys(k, v, at), masks.causal())
    assert got.dtype == torch.bfloat16
    close(got.float(), want.float(), 0.03)


def test_what_it_serves():
    q = heads(1, 4, 3)
    keys = Keys(q, q, Positions.count(3))
    assert why_not(q, keys, dropout=0.0, weights=False) is None
    assert why_not(q, keys, dropout=0.1, weights=False) == "attention by branches has neither dropout nor weights"
    assert why_not(q, keys, dropout=0.0, weights=True) == "attention by branches has neither dropout nor weights"
    asking = q.clone().requires_grad_()
    assert why_not(asking, keys, dropout=0.0, weights=False) == "attention by branches has no gradient"
    with torch.no_grad():
        assert why_not(asking, keys, dropout=0.0, weights=False) is None
    assert why_not(q.to("meta"), keys, dropout=0.0, weights=False) == "attention by branches is for the CPU"
    together = distance_map_of(build(f"{MAPS[0]} + log_temperature", SHAPE))
    assert together is not None and together.spec_name == "self_extend"
    for spec in ("rotary", f"{MAPS[0]} + alibi", "rerope(alibi, window=4)"):
        assert distance_map_of(build(spec, SHAPE)) is None
