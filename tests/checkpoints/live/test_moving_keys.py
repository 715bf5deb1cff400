"""Tokens removed from caches of live models: the moved keys are those that the model caches there.

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
from tiers import rest_slow
from torch import Tensor

transformers = pytest.importorskip("transformers")

from checkpoints.live.test_attach import IDS, MASK, make  # noqa: E402
from tiny_models import call_with_cache  # noqa: E402
from transformers import DynamicCache, StaticCache  # noqa: E402

from posenc.checkpoints import attach, movable  # noqa: E402
from posenc.checkpoints.kinds.calls import cache_argument  # noqa: E402
from posenc.checkpoints.live.moving_keys import MovableCache  # noqa: E402

# Windows are wide enough for the tests below; narrow ones have tests of their own.
WINDOW = {"sliding_window": 40}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "mistral": WINDOW,
    "gemma3": WINDOW,
    "phi3": {},
    "gpt_neox": {},
    "gptj": {},
    "glm": {},
    "deepseek_v3": {},
    "gpt_oss": WINDOW,
    "cohere": {},
    "qwen2_vl": {},
    "qwen3_vl": {},
    "bloom": {},
    "mpt": {},
}
ROTATING = tuple(family for family in FAMILIES if family not in ("bloom", "mpt"))
FIRST = ("llama", "mistral", "gemma3", "deepseek_v3", "cohere", "phi3", "qwen2_vl")
TOKENS = IDS.shape[1]

Placement = tuple[tuple[int, int], ...]
"""(token, position) of all tokens in the cache after an operation."""


def in_row(*tokens: int) -> Placement:
    return tuple((token, place) for place, token in enumerate(tokens))


# Operations, each with the expected tokens and positions.
OPERATIONS: dict[str, tuple[Callable[[MovableCache], None], Placement]] = {
    "crop": (lambda tokens: tokens.crop(7), in_row(*range(7))),
    "evict": (lambda tokens: tokens.evict([0, 1, 6, 7, 8, 11]), in_row(0, 1, 6, 7, 8, 11)),
    "drop": (lambda tokens: tokens.drop(slice(2, 5)), in_row(0, 1, *range(5, TOKENS))),
}
IN_PLACE: dict[str, tuple[Callable[[MovableCache], None], Placement]] = {
    "evict in place": (
        lambda tokens: tokens.evict([0, 1, 8, 9, 11], renumber=False),
        ((0, 0), (1, 1), (8, 8), (9, 9), (11, 11)),
    ),
}


def one_layer(family: str, **options: Any) -> Any:
    """A tiny model of one layer, and its options."""
    depth = {"gptj": "n_layer", "bloom": "n_layer", "gpt2": "n_layer", "mpt": "n_layers"}.get(
        family, "num_hidden_layers"
    )
    types = {"layer_types": ["full_attention"]} if family == "gemma3" else {}
    return make(family, **{depth: 1} | types | FAMILIES.get(family, {}) | options)


def fill(model: Any, ids: Tensor = IDS, **inputs: Any) -> MovableCache:
    """Return the movable tokens of a cache that the model has filled."""
    tokens = movable(model, DynamicCache())
    feed(model, tokens.cache, ids, **inputs)
    return tokens


@torch.no_grad()
def feed(model: Any, cache: Any, ids: Tensor, **inputs: Any) -> Tensor:
    """Return the logits or states of tokens after a cache."""
    out = call_with_cache(model, cache, ids, **inputs)
    return out.logits if "logits" in out else out.last_hidden_state


def forward(model: Any, ids: Tensor, places: Tensor | None) -> tuple[Tensor, Any]:
    """Return the logits of a pass over tokens at these positions, and its cache."""
    cache = DynamicCache(config=model.config)
    inputs = {} if places is None else {"position_ids": places.expand(len(ids), -1)}
    return feed(model, cache, ids, **inputs), cache


def pair(cache: Any, layer: int = 0) -> tuple[Tensor, Tensor]:
    """Return the keys and values of a layer."""
    return cache.layers[layer].keys, cache.layers[layer].values


def agree(actual: Tensor, expected: Tensor, tolerance: float = 1e-6) -> None:
    assert actual.shape == expected.shape
    assert float((actual - expected).norm() / expected.norm()) <= tolerance


@pytest.mark.parametrize("family", rest_slow(sorted(FAMILIES, key=lambda name: name not in ("llama", "mistral")), 2))
def test_what_is_cached_is_what_the_model_caches_there(family: str) -> None:
    model = one_layer(family)
    in_place = IN_PLACE if family in ROTATING and family not in ("mistral", "gpt_oss") else {}
    for name, (do, stays) in (OPERATIONS | in_place).items():
        tokens = fill(model)
        do(tokens)
        columns, places = zip(*sorted(stays, key=lambda stay: stay[1]), strict=True)
        at = torch.tensor([[*places, places[-1] + 1, places[-1] + 2]])
        suffix = IDS[:, :2]
        expected, cache = forward(model, torch.cat((IDS[:, columns], suffix), 1), at if family in ROTATING else None)
        for actual, reference in zip(pair(tokens.cache), pair(cache), strict=True):
            agree(actual, reference[:, :, :-2])
        assert tokens.held is not None and tokens.held.coords.flatten().tolist() == list(places), name
        steps = [feed(model, tokens.cache, suffix[:, n : n + 1], **tokens.inputs()) for n in range(2)]
        torch.testing.assert_close(torch.cat(steps, 1), expected[:, -2:], rtol=0, atol=2e-5)
        assert tokens.held.coords[0, -1, 0] == places[-1] + 2


@pytest.mark.parametrize("family", rest_slow(sorted(ROTATING, key=lambda name: name not in FIRST), len(FIRST)))
def test_all_layers_move_as_one(family: str) -> None:
    """After invisible tokens a text computes what it computes alone at the same positions."""
    model = make(family, **FAMILIES[family])
    unseen = torch.zeros(3 + TOKENS, 3 + TOKENS).masked_fill(torch.ones(3 + TOKENS, 3 + TOKENS).triu(1).bool(), -1e9)
    unseen[3:, :3] = -1e9
    tokens = fill(model, torch.cat((IDS[:, :3], IDS), 1), attention_mask=unseen[None, None].expand(2, 1, -1, -1))
    tokens.drop(slice(0, 3))
    _, cache = forward(model, IDS, torch.arange(TOKENS)[None])
    for layer in range(len(cache.layers)):
        for actual, expected in zip(pair(tokens.cache, layer), pair(cache, layer), strict=True):
            agree(actual, expected, 1e-5)


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_added_positions_cannot_be_moved(family: str) -> None:
    model = make(family)
    tokens = fill(model)
    old_cache = [fact.clone() for fact in pair(tokens.cache)]
    for do, _ in (OPERATIONS["evict"], OPERATIONS["drop"]):
        with pytest.raises(ValueError, match=r"made of embeddings with positions added; .*feed the tokens again"):
            do(tokens)
    assert all(map(torch.equal, old_cache, pair(tokens.cache)))
    tokens.evict([0, 1, 8], renumber=False)
    _, cache = forward(model, IDS, None)
    agree(pair(tokens.cache)[0], pair(cache)[0][:, :, [0, 1, 8]])
    assert tokens.next_positions(2).tolist() == [[9, 10]]


def test_two_hundred_moves_are_one() -> None:
    model, text = one_layer("llama"), torch.randint(1, 90, (2, 210))
    tokens, reference = fill(model, text), fill(model, text)
    for _ in range(200):
        tokens.drop([0])
    reference.drop(slice(0, 200))
    assert torch.equal(pair(tokens.cache)[0], pair(reference.cache)[0])
    # The model itself rounds the angles of 200 positions.
    agree(pair(tokens.cache)[0], pair(forward(model, text[:, 200:], torch.arange(10)[None])[1])[0], 1e-5)


def test_half_precision_rounds_a_moved_key_once() -> None:
    model = one_layer("llama").bfloat16()
    tokens = fill(model, torch.randint(1, 90, (2, 60)))
    keys = pair(tokens.cache)[0].float()
    cache = DynamicCache()
    cache.update(keys, torch.zeros_like(keys), 0)
    exact = movable(model, cache)
    exact.drop(slice(0, 50))
    for _ in range(50):
        tokens.drop([0])
    assert torch.equal(pair(tokens.cache)[0], pair(exact.cache)[0].bfloat16())


def test_under_a_window_all_tokens_are_kept_and_the_newest_are_seen() -> None:
    model = one_layer("mistral", sliding_window=5)
    tokens = fill(model)
    columns = [0, 1, *range(6, TOKENS)]
    tokens.evict(columns)
    suffix = IDS[:, :3]
    expected, _ = forward(model, torch.cat((IDS[:, columns], suffix), 1), None)
    steps = [feed(model, tokens.cache, suffix[:, n : n + 1], **tokens.inputs()) for n in range(3)]
    torch.testing.assert_close(torch.cat(steps, 1), expected[:, -3:], rtol=0, atol=2e-5)
    assert tokens.inputs()["position_ids"][0].tolist() == [len(columns) + 3]


@pytest.mark.parametrize("family", ["mistral", "bloom", "mpt"])
def test_layers_that_count_slots_have_no_gaps(family: str) -> None:
    tokens = fill(one_layer(family))
    for do, _ in IN_PLACE.values():
        with pytest.raises(ValueError, match=r"counts distances in slots of the cache in layer 0 .*renumber=True"):
            do(tokens)


def test_on_several_axes_text_moves_and_what_stands_apart_is_refused() -> None:
    model = one_layer("qwen2_vl")
    alike = torch.arange(TOKENS).expand(3, 2, TOKENS)
    tokens = fill(model, position_ids=alike)
    tokens.drop([0])
    agree(pair(tokens.cache)[0], pair(forward(model, IDS[:, 1:], None)[1])[0])
    apart = torch.stack([torch.arange(TOKENS), torch.arange(TOKENS) // 2, torch.arange(TOKENS) % 5])
    tokens = fill(model, position_ids=apart[:, None].expand(3, 2, TOKENS))
    with pytest.raises(ValueError, match="tokens stand apart on 3 axes, and in a cache of transformers they are moved"):
        tokens.drop([0])
    with pytest.raises(ValueError, match="tokens stand apart on 3 axes"):
        movable(model, tokens.cache, apart.T[None])


def test_left_padding_and_rows_of_different_lengths() -> None:
    model = one_layer("llama")
    places = (MASK.cumsum(1) - 1).clamp(min=0)
    tokens = fill(model, attention_mask=MASK, position_ids=places)
    assert tokens.held.order[0, :5].tolist() == [-1, -1, -1, -1, 0]
    tokens.evict([0, 5, 6, 7])
    suffix = IDS[:, :2]
    actual = feed(model, tokens.cache, suffix, **tokens.inputs(2))
    for row, start in enumerate((4, 0)):
        prefix = IDS[row : row + 1, [start, start + 5, start + 6, start + 7]]
        expected, _ = forward(model, torch.cat((prefix, suffix[row : row + 1]), 1), None)
        torch.testing.assert_close(actual[row], expected[0, -2:], rtol=0, atol=2e-5)
    tokens.crop(torch.tensor([2, 4]))
    assert tokens.inputs()["attention_mask"].tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]
    actual = feed(model, tokens.cache, suffix[:, :1], **tokens.inputs())
    for row, (start, n) in enumerate(((4, 2), (0, 4))):
        prefix = IDS[row : row + 1, [start, start + 5, start + 6, start + 7][:n]]
        expected, _ = forward(model, torch.cat((prefix, suffix[row : row + 1, :1]), 1), None)
        torch.testing.assert_close(actual[row], expected[0, -1:], rtol=0, atol=2e-5)


def test_rows_may_forget_other_tokens_and_all_of_them() -> None:
    model = one_layer("llama")
    tokens = fill(model)
    tokens.drop(slice(0, 3), rows=0)
    suffix = IDS[:, :1]
    actual = feed(model, tokens.cache, suffix, **tokens.inputs())
    for row, start in enumerate((3, 0)):
        expected, _ = forward(model, torch.cat((IDS[row : row + 1, start:], suffix[row : row + 1]), 1), None)
        torch.testing.assert_close(actual[row], expected[0, -1:], rtol=0, atol=2e-5)
    tokens = fill(model)
    tokens.crop(0)
    assert tokens.held is None and tokens.next_positions().tolist() == [[0]]
    feed(model, tokens.cache, IDS)
    agree(pair(tokens.cache)[0], pair(forward(model, IDS, None)[1])[0])


def test_what_was_cached_for_inference_alone_moves() -> None:
    model = one_layer("llama")
    with torch.inference_mode():
        tokens = movable(model, DynamicCache(config=model.config))
        call_with_cache(model, tokens.cache, IDS)
    tokens.drop(slice(0, 4))
    agree(pair(tokens.cache)[0], pair(forward(model, IDS[:, 4:], None)[1])[0])


def test_what_transformers_does_to_a_cache_is_followed() -> None:
    model = one_layer("llama")
    tokens = fill(model)
    tokens.drop(slice(0, 3))
    tokens.rows(torch.tensor([1, 0]))
    tokens.cache.crop(-2)
    tokens.cache.batch_repeat_interleave(2)
    feed(model, tokens.cache, IDS[[1, 1, 0, 0], :1], position_ids=torch.full((4, 1), 30))
    tokens.drop([0])
    ids = torch.cat((IDS[[1, 1, 0, 0], 4:-2], IDS[[1, 1, 0, 0], :1]), 1)
    _, cache = forward(model, ids, torch.tensor([[*range(6), 29]]))
    agree(pair(tokens.cache)[0], pair(cache)[0])


def test_generation_goes_on_behind_renumbered_tokens() -> None:
    model = one_layer("llama")
    tokens = fill(model, IDS[:1])
    tokens.drop(slice(2, 6))
    prefix = torch.cat((IDS[:1, :2], IDS[:1, 6:]), 1)
    prompt = torch.cat((prefix, IDS[1:, :1]), 1)
    options = {"max_new_tokens": 5, "min_new_tokens": 5, "do_sample": False}
    generated_ids = model.generate(prompt, **{cache_argument(model): tokens.cache}, **options)
    assert torch.equal(generated_ids, model.generate(prompt, **options))
    assert tokens.held.tokens == generated_ids.shape[1] - 1


def test_tokens_may_stand_elsewhere_and_no_cache_is_shared() -> None:
    model = one_layer("llama")
    tokens = fill(model)
    tokens.move(by=5)
    agree(pair(tokens.cache)[0], pair(forward(model, IDS, torch.arange(5, 5 + TOKENS)[None])[1])[0])
    with pytest.raises(ValueError, match="a cache of transformers is not shared"):
        tokens.fork(2)


def test_a_filled_cache_says_where_its_tokens_stand() -> None:
    model = one_layer("llama")
    _, cache = forward(model, IDS, torch.arange(3, 3 + TOKENS)[None])
    tokens = movable(model, cache, torch.arange(3, 3 + TOKENS))
    tokens.drop(slice(0, 2))
    agree(pair(cache)[0], pair(forward(model, IDS[:, 2:], torch.arange(3, 1 + TOKENS)[None])[1])[0])
    with pytest.raises(ValueError, match="the cache is empty, and has no tokens to stand at positions"):
        movable(model, DynamicCache(), torch.arange(3))


def test_tokens_that_came_unseen_are_an_error() -> None:
    model = one_layer("llama")
    tokens = fill(model)
    tokens.cache.update(torch.zeros(2, 2, 1, 8), torch.zeros(2, 2, 1, 8), 0)
    with pytest.raises(ValueError, match=r"13 tokens, of which 1 came in a pass that could not be followed"):
        tokens.drop([0])
    again = movable(model, tokens.cache, torch.arange(13))
    with pytest.raises(ValueError, match="followed by another movable"):
        tokens.drop([0])
    again.drop([0])


def test_frequencies_that_change_with_the_horizon() -> None:
    model = one_layer("phi3")
    tokens = fill(model)
    feed(model, tokens.cache, IDS[:, :1], position_ids=torch.full((2, 1), 35))
    with pytest.raises(ValueError, match=r"changed its frequencies between horizons of 12 and 36 tokens"):
        tokens.drop([0])
    # Past the trained length, the other frequencies apply.
    there = torch.arange(40, 40 + TOKENS)[None]
    tokens = fill(model, position_ids=there.expand(2, -1))
    tokens.drop(slice(0, 3))
    agree(pair(tokens.cache)[0], pair(forward(model, IDS[:, 3:], there[:, :-3])[1])[0], 5e-6)
    tokens = fill(model, IDS.repeat(1, 3))
    with pytest.raises(ValueError, match=r"changed its frequencies between horizons of 7 and 36 tokens"):
        tokens.drop(slice(0, 30))
    assert tokens.horizons == (36, 36)


def test_a_model_whose_keys_are_other_ones_is_refused() -> None:
    model = one_layer("llama")
    module = model.model.rotary_emb
    forward = module.forward

    def inverse_rotation(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = forward(x, position_ids)
        return cos, -sin

    tokens = fill(model)
    module.forward = inverse_rotation
    with pytest.raises(ValueError, match=r"caches of tokens 8 places further on in layer 0 is not what rotary"):
        tokens.drop([0])
    tokens.evict([0, 5], renumber=False)
    assert tokens.held.tokens == 2

    def failing_rotation(x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        raise KeyError("places")

    module.forward = forward
    tokens = fill(model)
    module.forward = failing_rotation
    with pytest.raises(ValueError, match=r"LlamaModel could not be asked for its keys \(.*places"):
        tokens.drop([0])


def test_what_cannot_be_followed_is_refused() -> None:
    model = make("llama")
    with pytest.raises(TypeError, match=r"expected a cache of transformers, such as DynamicCache\(\), got"):
        movable(model, [1])
    with pytest.raises(TypeError, match="expected a model of transformers"):
        movable(torch.nn.Linear(2, 2), DynamicCache())
    static = StaticCache(config=model.config, max_cache_len=15)
    with pytest.raises(
        ValueError, match=r"layer 0 of the cache is a StaticLayer, which .*use DynamicCache\(\), without"
    ):
        movable(model, static)
    mistral = make("mistral")
    with pytest.raises(ValueError, match="is a DynamicSlidingWindowLayer, which forgets tokens"):
        movable(mistral, DynamicCache(config=mistral.config))
    states = DynamicCache()
    states.layers = [transformers.cache_utils.LinearAttentionLayer()]
    with pytest.raises(ValueError, match="is a LinearAttentionLayer, which"):
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
        _, cache = forward(model, IDS, None)
    with pytest.raises(ValueError, match="holds keys that no position turned"):
        movable(model, cache)


def test_the_model_stays_as_it_is() -> None:
    model = make("llama")
    hooks = len(model.model._forward_hooks)
    tokens = fill(model)
    assert len(model.model._forward_hooks) == hooks + 1
    twin = pickle.loads(pickle.dumps(copy.deepcopy(model)))
    feed(twin, DynamicCache(), IDS)
    del tokens
    gc.collect()
    assert len(model.model._forward_hooks) == hooks


def test_bytes_are_those_of_the_keys_and_of_their_first_ones() -> None:
    tokens = fill(one_layer("llama"))
    size = 2 * 2 * TOKENS * 8 * 4
    assert tokens.bytes == 2 * size
    tokens.drop([0])
    # Values and original keys are views of the old tensors; the moved keys are new.
    assert tokens.bytes == 2 * size + size * (TOKENS - 1) // TOKENS
