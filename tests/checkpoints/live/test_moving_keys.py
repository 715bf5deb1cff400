"""Tokens moved in the caches of live transformers models: what is cached then is what the model caches there.

The oracle is the model itself, fed the kept tokens at their new places: keys of its first layer depend on a token and
its place alone, and so do the logits of a model of one layer.
"""

import copy
import gc
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

transformers = pytest.importorskip("transformers")

from checkpoints.live.test_attach import IDS, LONGROPE, MASK, make  # noqa: E402
from tiny_models import behind  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402

from posenc.checkpoints import attach, movable  # noqa: E402
from posenc.checkpoints.live.moving_keys import MovableCache  # noqa: E402
from posenc.checkpoints.live.turned_keys import AtHorizon  # noqa: E402
from posenc.positions import Positions  # noqa: E402
from posenc.schedules import SCHEDULES  # noqa: E402

# Windows are wide enough for what is done below; what they forget has tests of its own.
WIDE = {"sliding_window": 40}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": WIDE,
    "gemma3": WIDE,
    "phi3": {},
    "gpt_neox": {},
    "gptj": {},
    "glm": {},
    "deepseek_v3": {},
    "gpt_oss": WIDE,
    "cohere": {},
    "qwen2_vl": {},
    "qwen3_vl": {},
    "bloom": {},
    "mpt": {},
}
TURNING = tuple(family for family in FAMILIES if family not in ("bloom", "mpt"))
CACHES: dict[str, Callable[[Any], Any]] = {
    "growing": lambda model: DynamicCache(config=model.config),
    "static": lambda model: StaticCache(config=model.config, max_cache_len=48),
}
# transformers' MPT takes no static cache that is longer than its bias.
CASES = [(family, kind) for family in FAMILIES for kind in CACHES if (family, kind) != ("mpt", "static")]
HELD = IDS.shape[1]

Stays = tuple[tuple[int, int], ...]
"""(token, its place) of all that are held after an operation."""


def in_row(*tokens: int) -> Stays:
    return tuple((token, place) for place, token in enumerate(tokens))


# What is done, and where the tokens are then, said apart from how it is done.
OPERATIONS: dict[str, tuple[Callable[[MovableCache], None], Stays]] = {
    "crop": (lambda tokens: tokens.crop(7), in_row(*range(7))),
    "evict": (lambda tokens: tokens.evict([0, 1, 6, 7, 8, 11]), in_row(0, 1, 6, 7, 8, 11)),
    "drop": (lambda tokens: tokens.drop(slice(2, 5)), in_row(0, 1, *range(5, HELD))),
    "move": (lambda tokens: tokens.move(by=9), tuple((token, token + 9) for token in range(HELD))),
}
APART: dict[str, tuple[Callable[[MovableCache], None], Stays]] = {
    "evict in place": (
        lambda tokens: tokens.evict([0, 1, 8, 9, 11], renumber=False),
        ((0, 0), (1, 1), (8, 8), (9, 9), (11, 11)),
    ),
    "move the last": (
        lambda tokens: tokens.move(slice(8, None), to=13),
        (*in_row(*range(8)), (8, 13), (9, 14), (10, 15), (11, 16)),
    ),
    "move to the front": (
        lambda tokens: tokens.move([0, 1], to=14),
        (*((token, token) for token in range(2, HELD)), (0, 14), (1, 15)),
    ),
}


def one_layer(family: str, **options: Any) -> Any:
    """A tiny model of one layer, and its options."""
    depth = {"gptj": "n_layer", "bloom": "n_layer", "gpt2": "n_layer", "mpt": "n_layers"}.get(
        family, "num_hidden_layers"
    )
    types = {"layer_types": ["full_attention"]} if family == "gemma3" else {}
    return make(family, **{depth: 1} | types | FAMILIES.get(family, {}) | options)


def filled(model: Any, kind: str = "growing", ids: Tensor = IDS, **given: Any) -> MovableCache:
    """A cache that the model has filled, its tokens to be moved."""
    tokens = movable(model, CACHES[kind](model))
    feed(model, tokens.cache, ids, **given)
    return tokens


@torch.no_grad()
def feed(model: Any, cache: Any, ids: Tensor, **given: Any) -> Tensor:
    """The logits or states of tokens behind a cache."""
    out = behind(model, cache, ids, **given)
    return out.logits if "logits" in out else out.last_hidden_state


def afresh(model: Any, ids: Tensor, places: Tensor | None) -> tuple[Tensor, Any]:
    """The logits of a pass over these tokens at these places, and what it caches."""
    cache = DynamicCache(config=model.config)
    given = {} if places is None else {"position_ids": places.expand(len(ids), -1)}
    return feed(model, cache, ids, **given), cache


def cached(cache: Any, layer: int = 0) -> tuple[Tensor, Tensor]:
    """What a layer holds, without the free slots of a static cache."""
    held, kept = int(cache.get_seq_length()), cache.layers[layer]
    return kept.keys[:, :, :held], kept.values[:, :, :held]


def near(one: Tensor, other: Tensor, allowed: float = 1e-6) -> None:
    assert one.shape == other.shape
    assert float((one - other).norm() / other.norm()) <= allowed


# transformers' MPT takes no static cache that is longer than its bias.
@pytest.mark.parametrize(
    ("family", "kind"),
    [(family, kind) for family in FAMILIES for kind in CACHES if (family, kind) != ("mpt", "static")],
)
def test_what_is_cached_is_what_the_model_caches_there(family: str, kind: str) -> None:
    model = one_layer(family)
    apart = APART if family in TURNING and family not in ("mistral", "gpt_oss") else {}
    for name, (do, stays) in (OPERATIONS | apart).items():
        tokens = filled(model, kind)
        do(tokens)
        kept, places = zip(*sorted(stays, key=lambda stay: stay[1]), strict=True)
        at = torch.tensor([[*places, places[-1] + 1, places[-1] + 2]])
        more = IDS[:, :2]
        expected, cache = afresh(model, torch.cat((IDS[:, kept], more), 1), at if family in TURNING else None)
        for mine, theirs in zip(cached(tokens.cache), cached(cache), strict=True):
            near(mine, theirs[:, :, :-2])
        assert tokens.held is not None and tokens.held.coords.flatten().tolist() == list(places), name
        got = [feed(model, tokens.cache, more[:, n : n + 1], **tokens.inputs()) for n in range(2)]
        torch.testing.assert_close(torch.cat(got, 1), expected[:, -2:], rtol=0, atol=2e-5)
        assert tokens.held.coords[0, -1, 0] == places[-1] + 2


@pytest.mark.parametrize("family", TURNING)
def test_all_layers_move_as_one(family: str) -> None:
    model = make(family, **FAMILIES[family])
    tokens = filled(model)
    tokens.move(by=9)
    _, cache = afresh(model, IDS, torch.arange(9, 9 + HELD)[None])
    for layer in range(len(cache.layers)):
        for mine, theirs in zip(cached(tokens.cache, layer), cached(cache, layer), strict=True):
            near(mine, theirs, 1e-5)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_added_positions_cannot_be_moved(family: str) -> None:
    model = make(family)
    tokens = filled(model)
    before = [fact.clone() for fact in cached(tokens.cache)]
    for do, _ in (OPERATIONS["evict"], OPERATIONS["move"]):
        with pytest.raises(ValueError, match=r"made of embeddings with positions added; .*feed the tokens again"):
            do(tokens)
    assert all(map(torch.equal, before, cached(tokens.cache)))
    tokens.evict([0, 1, 8], renumber=False)
    _, cache = afresh(model, IDS, None)
    near(cached(tokens.cache)[0], cached(cache)[0][:, :, [0, 1, 8]])
    assert tokens.next_positions(2).tolist() == [[9, 10]]


def test_a_thousand_moves_are_one() -> None:
    model = one_layer("llama")
    tokens = filled(model)
    first = cached(tokens.cache)[0].clone()
    for step in range(1_000):
        tokens.move(by=1 if step % 3 else 5)
    far = int(tokens.held.coords[0, 0, 0])
    tokens.move(to=7)
    near(cached(tokens.cache)[0], cached(afresh(model, IDS, torch.arange(7, 7 + HELD)[None])[1])[0])
    tokens.move(to=0)
    assert far == 2336 and torch.equal(cached(tokens.cache)[0], first)


def test_half_precision_rounds_a_moved_key_once() -> None:
    model = one_layer("llama").bfloat16()
    tokens = filled(model)
    first = cached(tokens.cache)[0].float()
    for _ in range(50):
        tokens.move(by=3)
    exact = movable_in_float(model, first)
    exact.move(by=150)
    moved = cached(exact.cache)[0]
    assert torch.equal(cached(tokens.cache)[0], moved.bfloat16())


def movable_in_float(model: Any, keys: Tensor) -> MovableCache:
    cache = DynamicCache()
    cache.update(keys, torch.zeros_like(keys), 0)
    return movable(model, cache)


def test_a_window_forgets_by_itself_and_keeps_what_it_sees() -> None:
    model = one_layer("mistral", sliding_window=5)
    for kind in CACHES:
        tokens = filled(model, kind)
        tokens.evict([0, 1, *range(6, HELD)])
        kept = [0, 1, *range(6, HELD)]
        more = IDS[:, :3]
        expected, _ = afresh(model, torch.cat((IDS[:, kept], more), 1), None)
        got = [feed(model, tokens.cache, more[:, n : n + 1], **tokens.inputs()) for n in range(3)]
        torch.testing.assert_close(torch.cat(got, 1), expected[:, -3:], rtol=0, atol=2e-5)
        tokens.move(by=2)
        assert tokens.inputs()["position_ids"][0].tolist() == [len(kept) + 5]


def test_a_window_does_not_see_again_what_it_has_forgotten() -> None:
    tokens = filled(one_layer("mistral", sliding_window=5))
    before = cached(tokens.cache)[0].clone()
    for do in (lambda: tokens.crop(9), lambda: tokens.evict([0, 1, 10, 11])):
        with pytest.raises(ValueError, match=r"keeps the newest 4 tokens, and has forgotten some that it would see"):
            do()
    assert torch.equal(before, cached(tokens.cache)[0]) and tokens.held.tokens == HELD


@pytest.mark.parametrize("family", ["mistral", "bloom", "mpt"])
def test_layers_that_count_slots_have_no_gaps(family: str) -> None:
    tokens = filled(one_layer(family))
    for do, _ in APART.values():
        with pytest.raises(ValueError, match=r"counts distances in slots of the cache in layer 0 .*renumber=True"):
            do(tokens)


def test_a_bias_does_not_see_ids() -> None:
    tokens = filled(one_layer("bloom"))
    with pytest.raises(ValueError, match="counts distances in slots"):
        tokens.move(to=Positions.of(torch.arange(HELD) * 2))


def test_several_axes_move_to_positions_and_go_on_behind_the_largest() -> None:
    model = one_layer("qwen2_vl")
    axes = torch.stack([torch.arange(HELD), torch.arange(HELD) // 2, torch.arange(HELD) % 5])
    tokens = filled(model, position_ids=axes[:, None].expand(3, 2, HELD))
    assert tokens.held.axes == 3
    there = axes.flip(1) * 2
    tokens.move(to=Positions.of(there.T[None]))
    cache = DynamicCache(config=model.config)
    feed(model, cache, IDS, position_ids=there[:, None].expand(3, 2, HELD))
    near(cached(tokens.cache)[0], cached(cache)[0])
    # The largest coordinate is that of the first token, and the last one stands at 0.
    assert tokens.next_positions(2).tolist() == [[[23, 24]]] * 3
    with pytest.raises(ValueError, match="gaps close along one axis"):
        tokens.drop([0])


def test_text_behind_an_image_stands_on_all_axes() -> None:
    model = one_layer("qwen2_vl")
    axes = torch.stack([torch.arange(HELD), torch.arange(HELD) // 2, torch.arange(HELD) % 5])
    tokens = filled(model, position_ids=axes[:, None].expand(3, 2, HELD))
    feed(model, tokens.cache, IDS[:, :2], position_ids=torch.tensor([[20, 21]] * 2))
    assert tokens.held.coords[0, -2:].tolist() == [[20] * 3, [21] * 3]


def test_left_padding_and_rows_of_different_lengths() -> None:
    model = one_layer("llama")
    places = (MASK.cumsum(1) - 1).clamp(min=0)
    tokens = filled(model, attention_mask=MASK, position_ids=places)
    assert tokens.held.order[0, :5].tolist() == [-1, -1, -1, -1, 0]
    tokens.evict([0, 5, 6, 7])
    more = IDS[:, :2]
    got = feed(model, tokens.cache, more, **tokens.inputs(2))
    for row, start in enumerate((4, 0)):
        kept = IDS[row : row + 1, [start, start + 5, start + 6, start + 7]]
        expected, _ = afresh(model, torch.cat((kept, more[row : row + 1]), 1), None)
        torch.testing.assert_close(got[row], expected[0, -2:], rtol=0, atol=2e-5)
    tokens.crop(torch.tensor([2, 4]))
    assert tokens.inputs()["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    got = feed(model, tokens.cache, more[:, :1], **tokens.inputs())
    for row, (start, n) in enumerate(((4, 2), (0, 4))):
        kept = IDS[row : row + 1, [start, start + 5, start + 6, start + 7][:n]]
        expected, _ = afresh(model, torch.cat((kept, more[row : row + 1, :1]), 1), None)
        torch.testing.assert_close(got[row], expected[0, -1:], rtol=0, atol=2e-5)


def test_some_rows_alone_and_none_at_all() -> None:
    model = one_layer("llama")
    tokens = filled(model)
    tokens.drop(slice(0, 3), rows=0)
    more = IDS[:, :1]
    got = feed(model, tokens.cache, more, **tokens.inputs())
    for row, start in enumerate((3, 0)):
        expected, _ = afresh(model, torch.cat((IDS[row : row + 1, start:], more[row : row + 1]), 1), None)
        torch.testing.assert_close(got[row], expected[0, -1:], rtol=0, atol=2e-5)
    for kind in CACHES:
        tokens = filled(model, kind)
        tokens.crop(0)
        assert tokens.held is None and tokens.next_positions().tolist() == [[0]]
        feed(model, tokens.cache, IDS)
        near(cached(tokens.cache)[0], cached(afresh(model, IDS, None)[1])[0])


@pytest.mark.parametrize("kind", CACHES)
def test_what_was_cached_for_inference_alone_moves(kind: str) -> None:
    model = one_layer("llama")
    with torch.inference_mode():
        tokens = movable(model, CACHES[kind](model))
        behind(model, tokens.cache, IDS)
    tokens.move(by=4)
    tokens.rows(torch.tensor([1]))
    near(cached(tokens.cache)[0], cached(afresh(model, IDS[1:], torch.arange(4, 4 + HELD)[None])[1])[0])


@pytest.mark.parametrize("kind", CACHES)
def test_rows_and_forks_go_their_own_ways(kind: str) -> None:
    model = one_layer("llama")
    tokens = filled(model, kind)
    tokens.drop([3])
    left, right = tokens.fork(2)
    left.rows(torch.tensor([1, 1]))
    left.move(by=3)
    right.rows(torch.tensor([0]))
    kept = [n for n in range(HELD) if n != 3]
    for fork, ids, start in ((left, IDS[[1, 1]], 3), (right, IDS[:1], 0), (tokens, IDS, 0)):
        _, cache = afresh(model, ids[:, kept], torch.arange(start, start + HELD - 1)[None])
        near(cached(fork.cache)[0], cached(cache)[0])
    feed(model, left.cache, IDS[:, :1], **left.inputs())
    assert [fork.held.tokens for fork in (tokens, left, right)] == [HELD - 1, HELD, HELD - 1]
    near(cached(tokens.cache)[0], cached(afresh(model, IDS[:, kept], None)[1])[0])


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("family", ["llama", "mistral", "deepseek_v3", "bloom"])
def test_a_document_is_spliced_in(family: str, kind: str) -> None:
    model = one_layer(family)
    tokens, document = filled(model, kind), filled(model, ids=IDS[:1, 4:9])
    document.evict([0, 2, 3])
    tokens.splice(document, 2)
    whole = torch.cat((IDS[:, :2], IDS[:1, [4, 6, 7]].expand(2, -1), IDS[:, 2:]), 1)
    _, cache = afresh(model, whole, None)
    near(cached(tokens.cache)[0], cached(cache)[0])
    assert document.held.tokens == 3 and tokens.next_positions().tolist() == [[HELD + 3]]


def test_a_static_cache_has_room_or_says_so() -> None:
    model = one_layer("llama")
    tokens = movable(model, StaticCache(config=model.config, max_cache_len=15))
    feed(model, tokens.cache, IDS)
    with pytest.raises(ValueError, match=r"17 tokens have no room in a static cache of 15 slots; .*max_cache_len=17"):
        tokens.splice(filled(model, ids=IDS[:1, :5]), 0)
    assert tokens.held.tokens == HELD


def test_what_transformers_does_to_a_cache_is_followed() -> None:
    model = one_layer("llama")
    tokens = filled(model)
    tokens.move(by=5)
    tokens.cache.reorder_cache(torch.tensor([1, 0]))
    tokens.cache.crop(-2)
    tokens.cache.batch_repeat_interleave(2)
    feed(model, tokens.cache, IDS[[1, 1, 0, 0], :1], position_ids=torch.full((4, 1), 30))
    tokens.move(by=-5)
    ids = torch.cat((IDS[[1, 1, 0, 0], :-2], IDS[[1, 1, 0, 0], :1]), 1)
    _, cache = afresh(model, ids, torch.tensor([[*range(10), 25]]))
    near(cached(tokens.cache)[0], cached(cache)[0])


def test_generation_goes_on_behind_renumbered_tokens() -> None:
    model = one_layer("llama")
    tokens = filled(model, ids=IDS[:1])
    tokens.drop(slice(2, 6))
    kept = torch.cat((IDS[:1, :2], IDS[:1, 6:]), 1)
    prompt = torch.cat((kept, IDS[1:, :1]), 1)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    got = model.generate(prompt, past_key_values=tokens.cache, **options)
    assert torch.equal(got, model.generate(prompt, **options))
    assert tokens.held.tokens == got.shape[1] - 1


def test_a_filled_cache_says_where_its_tokens_stand() -> None:
    model = one_layer("llama")
    _, cache = afresh(model, IDS, torch.arange(3, 3 + HELD)[None])
    tokens = movable(model, cache, torch.arange(3, 3 + HELD))
    tokens.move(to=Positions.of(torch.arange(HELD)))
    near(cached(cache)[0], cached(afresh(model, IDS, None)[1])[0])
    with pytest.raises(ValueError, match="the cache is empty, and has no tokens to stand at positions"):
        movable(model, DynamicCache(), torch.arange(3))


def test_tokens_that_came_unseen_are_an_error() -> None:
    model = one_layer("llama")
    tokens = filled(model)
    tokens.cache.update(torch.zeros(2, 2, 1, 8), torch.zeros(2, 2, 1, 8), 0)
    with pytest.raises(ValueError, match=r"13 tokens, of which 1 came in a pass that could not be followed"):
        tokens.move(by=1)
    again = movable(model, tokens.cache, torch.arange(13))
    with pytest.raises(ValueError, match="followed by another movable"):
        tokens.move(by=1)
    again.move(by=1)


def test_frequencies_that_change_with_the_horizon() -> None:
    model = one_layer("phi3")
    tokens = filled(model)
    with pytest.raises(ValueError, match=r"changed its frequencies between horizons of 12 and 38 tokens"):
        feed(model, tokens.cache, IDS[:, :1], position_ids=torch.full((2, 1), 35))
        tokens.move(by=1)
    # All beyond the trained length are turned by the other ones.
    there = torch.arange(40, 40 + HELD)[None]
    tokens = filled(model, position_ids=there.expand(2, -1))
    tokens.move(by=8)
    near(cached(tokens.cache)[0], cached(afresh(model, IDS, there + 8)[1])[0], 5e-6)
    with pytest.raises(ValueError, match=r"changed its frequencies between horizons of 13 and 52 tokens"):
        tokens.move(to=Positions.of(torch.arange(HELD)))
    tokens = filled(model, ids=IDS.repeat(1, 3))
    with pytest.raises(ValueError, match=r"changed its frequencies between horizons of 5 and 42 tokens"):
        tokens.splice(filled(model, ids=IDS[:1, :5]), 2)
    assert tokens.horizons == (36, 36)
    schedule = SCHEDULES.read(
        "longrope(factor=2.0, short_factor=(1.0, 1.1, 1.2, 1.3), long_factor=(2.0, 3.0, 4.0, 5.0), trained_length=32)"
    )
    plain = [10_000.0 ** (-2 * pair / 8) for pair in range(4)]
    made, temperature = AtHorizon(schedule, 40)(torch.tensor(plain).double(), base=10_000.0, width=8)
    formula = AtHorizon(schedule, 40).formula(plain, base=10_000.0, width=8)
    assert made.tolist() == pytest.approx(formula[0]) and temperature == pytest.approx(formula[1])
    assert made.tolist() == pytest.approx([f / x for f, x in zip(plain, LONGROPE["long_factor"], strict=True)])


def test_a_model_whose_keys_are_other_ones_is_refused() -> None:
    model = one_layer("llama")
    module = model.model.rotary_emb
    turned = module.forward

    def other(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = turned(x, position_ids)
        return cos, -sin

    tokens = filled(model)
    module.forward = other
    with pytest.raises(ValueError, match=r"caches of tokens 8 places further on in layer 0 is not what rotary"):
        tokens.move(by=1)
    tokens.evict([0, 5], renumber=False)
    assert tokens.held.tokens == 2

    def none(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        raise KeyError("places")

    module.forward = turned
    tokens = filled(model)
    module.forward = none
    with pytest.raises(ValueError, match=r"LlamaModel could not be asked for its keys \(.*places"):
        tokens.move(by=1)


def test_what_cannot_be_followed_is_refused() -> None:
    model = make("llama")
    with pytest.raises(TypeError, match=r"expected a cache of transformers, such as DynamicCache\(\), got"):
        movable(model, [1])
    with pytest.raises(TypeError, match="expected a model of transformers"):
        movable(torch.nn.Linear(2, 2), DynamicCache())
    quantised = DynamicCache()
    quantised.layers = [object.__new__(transformers.cache_utils.QuantoQuantizedLayer)]
    with pytest.raises(ValueError, match=r"layer 0 of the cache is quantised .*use DynamicCache or StaticCache"):
        movable(model, quantised)
    states = DynamicCache()
    states.layers = [transformers.cache_utils.LinearAttentionLayer()]
    with pytest.raises(ValueError, match="is a LinearAttentionLayer, from which no single token can be taken"):
        movable(model, states)
    with pytest.raises(ValueError, match="offloaded cache"):
        movable(model, DynamicCache(offloading=True))
    with pytest.raises(ValueError, match="a cache of an encoder-decoder holds the keys of an encoder"):
        movable(model, transformers.EncoderDecoderCache(DynamicCache(), DynamicCache()))
    with pytest.raises(ValueError, match="attends in chunks of 8 tokens"):
        movable(make("llama4"), DynamicCache())
    with pytest.raises(ValueError, match="has an encoder, whose tokens have no place"):
        movable(make("t5"), DynamicCache())
    with pytest.raises(ValueError, match=r"is in training mode; call model\.eval"):
        movable(make("llama").train(), DynamicCache())
    with attach(model), pytest.raises(ValueError, match="posenc is attached to this LlamaForCausalLM"):
        movable(model, DynamicCache())
    with attach(model, "t5_bias"):
        _, cache = afresh(model, IDS, None)
    with pytest.raises(ValueError, match="holds keys that no position turned"):
        movable(model, cache)
    tokens = filled(model)
    with pytest.raises(ValueError, match="splice takes a movable cache of the same model"):
        tokens.splice(filled(make("llama")), 0)
    with pytest.raises(ValueError, match="the cache is empty; begin with"):
        movable(model, DynamicCache()).splice(tokens, 0)
    with pytest.raises(ValueError, match="holds 2 rows, and the other 3"):
        tokens.splice(filled(model, ids=IDS[[0, 0, 1]]), 0)


def test_the_model_stays_as_it_is() -> None:
    model = make("llama")
    hooks = len(model.model._forward_hooks)
    tokens = filled(model)
    assert len(model.model._forward_hooks) == hooks + 1
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    feed(twin, DynamicCache(), IDS)
    del tokens
    gc.collect()
    assert len(model.model._forward_hooks) == hooks


def test_bytes_are_those_of_the_keys_and_of_their_first_ones() -> None:
    tokens = filled(one_layer("llama"))
    one = 2 * 2 * HELD * 8 * 4
    assert tokens.bytes == 2 * one
    tokens.move(by=1)
    assert tokens.bytes == 3 * one
    assert filled(one_layer("llama"), "static").bytes == 2 * 2 * 2 * 48 * 8 * 4
