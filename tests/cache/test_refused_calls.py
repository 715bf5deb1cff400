"""A refused call leaves every layer's cache bit-identical, and the next call is right."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from posenc import Attention, Block, Decoder, Positions, masks
from posenc.cache import Cache, GrowingCache, SlotCache
from posenc.catalogue import names
from posenc.encoding.keys import Keys

CACHES = {"growing": {}, "static": {"slots": 16}, "rolling": {"slots": 8, "rolling": True}}
IDS = torch.arange(8).view(2, 4) % 5
NEW = torch.tensor([[1, 2], [3, 4]])


def decoder(spec: str) -> Decoder:
    torch.manual_seed(0)
    return Decoder(5, 16, heads=2, layers=2, max_len=24, encoding=spec, window=6).eval()


def facts(keys: Keys | None) -> dict[str, Tensor]:
    if keys is None:
        return {}
    rotated = {} if keys.turned is None else {"turned": keys.turned}
    return {name: fact.clone() for name, fact in {**keys.facts(), **keys.at.tensors(), **rotated}.items()}


def all_facts(cache: Cache) -> list[dict[str, Tensor]]:
    return [facts(layer.keys) for layer in cache.layers]


def are_equal(actual: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> bool:
    return all(
        a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
        for a, b in zip(actual, expected, strict=True)
    )


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


def run_failing_layer(model: Decoder, cache: Cache) -> None:
    last = model.stack.blocks[-1]
    feed_forward, last.feed_forward = last.feed_forward, Refuses()
    try:
        model(NEW, cache=cache)
    finally:
        last.feed_forward = feed_forward


def pass_wrong_mask(model: Decoder, cache: Cache) -> None:
    model(NEW, cache=cache, mask=torch.ones(2, 3, dtype=torch.bool))


def pass_other_batch(model: Decoder, cache: Cache) -> None:
    model(torch.ones(3, 2, dtype=torch.long), cache=cache)


def use_wrong_kernel(model: Decoder, cache: Cache) -> None:
    last = model.stack.blocks[-1].attention
    last.kernel, kernel = "flex", last.kernel
    try:
        model(NEW, cache=cache, need_weights=True)
    finally:
        last.kernel = kernel


REFUSALS = [run_failing_layer, pass_wrong_mask, pass_other_batch, use_wrong_kernel]


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("spec", sorted(names()))
def test_a_refused_call_of_a_model_changes_no_cache(spec: str, kind: str) -> None:
    try:
        model = decoder(spec)
        cache = model.cache(**CACHES[kind])
        with torch.no_grad():
            model(IDS, cache=cache)
    except ValueError:
        pytest.skip("this encoding alone does not run in a decoder of text")
    state, at, twin = all_facts(cache), cache.held, copy.deepcopy(cache)
    for refuse in REFUSALS:
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients), pytest.raises(ValueError, match=r".+"):
                refuse(model, cache)
            assert are_equal(all_facts(cache), state), refuse.__name__
            assert cache.held is at
    with torch.no_grad():
        torch.testing.assert_close(model(NEW, cache=cache), model(NEW, cache=twin), rtol=0, atol=0)
    assert are_equal(all_facts(cache), all_facts(twin))


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(8), lambda: SlotCache(8, rolling=True)])
@pytest.mark.parametrize("part", [Attention, Block])
def test_a_refused_call_of_a_layer_changes_no_cache(part: Callable, make: Callable) -> None:
    layer, cache = part(16, heads=2, causal=True, encoding="rotary"), make()
    x, mask = torch.randn(2, 4, 16), masks.window(4)
    with torch.no_grad():
        layer(x, cache=cache, mask=mask)
        state = facts(cache.keys)
        with pytest.raises(ValueError, match="a mask broadcasts to"):
            layer(x, cache=cache, mask=masks.Mask(causal=True, window=4, tensor=torch.ones(3, 3, dtype=torch.bool)))
    assert are_equal([facts(cache.keys)], [state])


def test_a_horizon_that_is_missing_puts_nothing_in() -> None:
    model = Decoder(5, 16, heads=2, layers=2, encoding="rotary(schedule=dynamic_ntk(factor=2, trained_length=4))")
    cache = model.cache()
    model(IDS, cache=cache)
    state = all_facts(cache)
    with pytest.raises(ValueError, match="declare it with"):
        model(NEW, cache=cache)
    assert are_equal(all_facts(cache), state)
    model(NEW, cache=cache, positions=Positions.count(2, 4).with_horizon(6))
