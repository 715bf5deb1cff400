"""Encodings of the last channels of a head, against the same encodings on those channels alone."""

import pytest
import torch

from posenc import Rotary
from posenc.catalogue import build
from posenc.checkpoints.live.latent_heads import OnLastChannels, on_last_channels
from posenc.encoding.base import Encoding, Shape
from posenc.tokens.positions import Positions

SHAPE = Shape(32, 4, 8, 64, True)


def test_the_last_channels_turn_and_the_others_pass():
    q, at = torch.randn(2, 4, 5, 20), Positions.count(5, 3)
    plain = Rotary(8)
    last = on_last_channels(plain, 8)
    for door in ("query", "key"):
        actual, expected = getattr(last, door)(q, at), getattr(plain, door)(q[..., 12:], at)
        assert actual[..., :12].equal(q[..., :12])
        assert actual[..., 12:].equal(expected)
    assert str(last) == "rotary on the last 8 channels"


def test_parts_that_turn_nothing_stay_as_they_are():
    alibi = build("alibi", SHAPE)
    assert on_last_channels(alibi, 8) is alibi
    parts = on_last_channels(build("rotary + log_temperature", SHAPE), 8).parts
    assert [type(part).__name__ for part in parts] == ["OnLastChannels", "LogTemperature"]
    self_extend = on_last_channels(build("self_extend(rotary, window=4, group=2)", SHAPE), 8)
    assert isinstance(self_extend.encoding, OnLastChannels) and (self_extend.window, self_extend.group) == (4, 2)


def test_channels_in_another_order_turn_in_another_layout():
    rotary = build("rotary(base=500, layout='interleaved', schedule=dynamic_ntk(trained_length=8))", SHAPE)
    half_rotary = on_last_channels(rotary, 8, layout="half")
    assert (half_rotary.encoding.layout, half_rotary.encoding.base) == ("half", 500)
    assert half_rotary.turns_when_attending
    trained_rotary = build("learned_rotary(layout='interleaved')", SHAPE)
    assert any(True for _ in trained_rotary.parameters())
    with pytest.raises(ValueError, match=r"learned_rotary.* has parameters for another order of channels"):
        on_last_channels(trained_rotary, 8, layout="half")


def test_heads_of_another_width_are_left_to_the_encodings_own_error():
    assert isinstance(on_last_channels(Rotary(16), 8), Rotary)
    assert isinstance(on_last_channels(Rotary(8), 8), Encoding)
