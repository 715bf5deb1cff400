"""A call that is refused leaves every layer's cache as it was, bit for bit, and the next one is none the wiser."""

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
    turned = {} if keys.turned is None else {"turned": keys.turned}
    return {name: fact.clone() for name, fact in {**keys.facts(), **keys.at.tensors(), **turned}.items()}


def everything(cache: Cache) -> list[dict[str, Tensor]]:
    return [facts(layer.keys) for layer in cache.layers]


def same(got: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> bool:
    return all(
        one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)
        for one, other in zip(got, expected, strict=True)
    )


class Refuses(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("no")


def a_layer_that_raises(model: Decoder, cache: Cache) -> None:
    last = model.stack.blocks[-1]
    before, last.feed_forward = last.feed_forward, Refuses()
    try:
        model(NEW, cache=cache)
    finally:
        last.feed_forward = before


def a_mask_of_another_shape(model: Decoder, cache: Cache) -> None:
    model(NEW, cache=cache, mask=torch.ones(2, 3, dtype=torch.bool))


def another_batch(model: Decoder, cache: Cache) -> None:
    model(torch.ones(3, 2, dtype=torch.long), cache=cache)


def a_kernel_that_does_not_serve(model: Decoder, cache: Cache) -> None:
    last = model.stack.blocks[-1].attention
    last.kernel, before = "flex", last.kernel
    try:
        model(NEW, cache=cache, need_weights=True)
    finally:
        last.kernel = before


REFUSALS = [a_layer_that_raises, a_mask_of_another_shape, another_batch, a_kernel_that_does_not_serve]


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("spec", sorted(names()))
def test_a_refused_call_of_a_model_changes_no_cache(spec: str, kind: str) -> None:
    try:
        model = decoder(spec)
        cache = model.cache(**CACHES[kind])
        with torch.no_grad():
            model(IDS, cache=cache)
    except ValueError:
        pytest.skip("it does not stand in a decoder of words by itself")
    before, at, twin = everything(cache), cache.held, copy.deepcopy(cache)
    for refused in REFUSALS:
        for gradients in (False, True):
            with torch.set_grad_enabled(gradients), pytest.raises(ValueError, match=r".+"):
                refused(model, cache)
            assert same(everything(cache), before), refused.__name__
            assert cache.held is at
    with torch.no_grad():
        torch.testing.assert_close(model(NEW, cache=cache), model(NEW, cache=twin), rtol=0, atol=0)
    assert same(everything(cache), everything(twin))


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(8), lambda: SlotCache(8, rolling=True)])
@pytest.mark.parametrize("part", [Attention, Block])
def test_a_refused_call_of_a_layer_changes_no_cache(part: Callable, make: Callable) -> None:
    layer, cache = part(16, heads=2, causal=True, encoding="rotary"), make()
    x, mask = torch.randn(2, 4, 16), masks.window(4)
    with torch.no_grad():
        layer(x, cache=cache, mask=mask)
        before = facts(cache.keys)
        with pytest.raises(ValueError, match="a mask broadcasts to"):
            layer(x, cache=cache, mask=masks.Mask(causal=True, window=4, given=torch.ones(3, 3, dtype=torch.bool)))
    assert same([facts(cache.keys)], [before])


def test_a_horizon_that_is_missing_puts_nothing_in() -> None:
    model = Decoder(5, 16, heads=2, layers=2, encoding="rotary(schedule=dynamic_ntk(factor=2, trained_length=4))")
    cache = model.cache()
    model(IDS, cache=cache)
    before = everything(cache)
    with pytest.raises(ValueError, match="declare it with"):
        model(NEW, cache=cache)
    assert same(everything(cache), before)
    model(NEW, cache=cache, positions=Positions.count(2, 4).with_horizon(6))
