"""Lesson 11: RoPE turns queries and keys, so that a logit sees the distance."""

from types import ModuleType

import torch

from posenc import Rotary
from posenc.lessons import answer, tensor

PLACE = 11


def rotary_turns_neighbouring_channels(theirs: ModuleType) -> None:
    """rotary(x, base) turns the pair (2k, 2k + 1) of token p by p base^(-2k/channels) radians"""
    rotary = answer(theirs, "rotary")
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))

    def turned(layout: str, base: float) -> torch.Tensor:
        return Rotary(8, base=base, layout=layout).query(x[None, None])[0, 0]

    given = tensor("rotary(x, 100)", rotary(x, 100.0), (12, 8)).to(x)
    assert not torch.allclose(given, turned("interleaved", 100.0)[:, [0, 2, 4, 6, 1, 3, 5, 7]], atol=1e-4), (
        "the pairs are turned rightly and put out in another order: 2k and 2k + 1 go back to their own places"
    )
    assert torch.allclose(given[0], x[0], atol=1e-5), "the token at position 0 must stay as it is: its angle is 0"
    assert torch.allclose(given.norm(dim=1), x.norm(dim=1), atol=1e-4), (
        "lengths change, so it is no rotation: a pair (a, b) becomes (a cos - b sin, b cos + a sin)"
    )
    assert not torch.allclose(given, turned("half", 100.0), atol=1e-4), (
        "it pairs channel k with k + channels/2: in the interleaved layout 2k goes with 2k + 1"
    )
    other_way = Rotary(8, base=100.0, layout="interleaved").query(x[None, None], positions=-torch.arange(12.0))[0, 0]
    assert not torch.allclose(given, other_way, atol=1e-4), (
        "it turns the other way round: a gets - b sin, and b gets + a sin"
    )
    assert torch.allclose(given, turned("interleaved", 100.0), atol=1e-4), (
        "the angles are others: pair k of token p turns by p base^(-2k/channels), k from 0"
    )
    given = rotary(x, 10_000.0).to(x)
    assert torch.allclose(given, turned("interleaved", 10_000.0), atol=1e-4), "it does not read the base"


def to_half_puts_even_channels_first(theirs: ModuleType) -> None:
    """to_half(channels) lists channels so that pair k of the interleaved layout, 2k and 2k + 1, gets k and k + half"""
    to_half = answer(theirs, "to_half")
    given = [int(channel) for channel in to_half(8)]
    assert sorted(given) == list(range(8)), f"each of the 8 channels has to stand in it once, got {given}"
    back = [0, 4, 1, 5, 2, 6, 3, 7]
    assert given != back, "this is the way back, from half to interleaved: place k takes channel 2k"
    assert given == [0, 2, 4, 6, 1, 3, 5, 7], (
        f"got {given}: the first channel of every pair comes first, then the second"
    )


EXERCISES = (rotary_turns_neighbouring_channels, to_half_puts_even_channels_first)
