"""Decoding with a static cache is one compiled graph; a step computes only its own tokens."""

import copy

import pytest
import torch
from tiers import in_one_graph
from torch import Tensor

from posenc import Attention, Decoder, EncoderDecoder, Keys, Positions, masks
from posenc.cache import Cache, GrowingCache, SlotCache

CASES = [
    ("alibi + learned", True),
    pytest.param("rotary", False, marks=pytest.mark.slow),
    *(
        pytest.param(spec, padded, marks=pytest.mark.slow)
        for spec in ("t5_bias", "sinusoidal", "shaw", "forgetting", "rotary(schedule=dynamic_ntk())")
        for padded in (False, True)
    ),
]
"""Specs, and whether the prompts are padded on the left."""


class Graphs:
    """A back-end that runs graphs unchanged, and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, graph, inputs):
        self.count += 1
        return graph.forward


def model_of(spec: str, max_len: int = 64) -> Decoder:
    return Decoder(vocab=13, dim=16, heads=4, kv_heads=2, layers=1, encoding=spec, max_len=max_len).eval()


def decode(model, step, cache: Cache, ids: Tensor, first: Positions, tokens: Tensor) -> Tensor:
    """Return the logits of the prompt's last token and of later tokens, fed one by one."""
    out = [model(ids, positions=first, cache=cache)[:, -1:]]
    return torch.cat(out + [step(token, cache=cache) for token in tokens], 1)


@pytest.mark.parametrize(("spec", "padded"), CASES)
@in_one_graph
def test_decoding_with_a_static_cache_is_one_graph(spec: str, padded: bool) -> None:
    torch.compiler.reset()
    model = model_of(spec, max_len=8 if "dynamic" in spec else 64)
    ids, tokens = torch.randint(13, (2, 5)), torch.randint(13, (6, 2, 1))
    first = Positions.padded(torch.tensor([[0, 0, 1, 1, 1], [1] * 5])) if padded else Positions.count(5)
    first = first.with_horizon(24) if "dynamic" in spec else first
    graphs = Graphs()
    step = torch.compile(model, backend=graphs, fullgraph=True)
    with torch.no_grad():
        expected = decode(model, model, model.cache(), ids, first, tokens)
        actual = decode(model, step, model.cache(slots=16), ids, first, tokens)
    assert graphs.count == 1
    torch.testing.assert_close(actual, expected, rtol=0, atol=2e-6)


@in_one_graph
def test_a_thousand_tokens_take_one_graph() -> None:
    torch.compiler.reset()
    model = Decoder(vocab=13, dim=8, heads=2, layers=1, encoding="rotary").eval()
    graphs = Graphs()
    step = torch.compile(model, backend=graphs, fullgraph=True)
    cache = model.cache(slots=1024)
    with torch.inference_mode():
        model(torch.zeros(1, 3, dtype=torch.long), cache=cache)
        for _ in range(1000):
            logits = step(torch.zeros(1, 1, dtype=torch.long), cache=cache)
        assert graphs.count == 1
        whole = model(torch.zeros(1, 1003, dtype=torch.long), only=slice(-1, None))
    torch.testing.assert_close(logits, whole, rtol=0, atol=1e-5)


@in_one_graph
def test_a_compiled_step_beyond_the_last_slot_fails() -> None:
    torch.compiler.reset()
    model = model_of("alibi")
    step = torch.compile(model, backend="eager", fullgraph=True)
    cache = model.cache(slots=4)
    with torch.no_grad():
        model(torch.zeros(1, 3, dtype=torch.long), cache=cache)
        step(torch.zeros(1, 1, dtype=torch.long), cache=cache)
        with pytest.raises((RuntimeError, IndexError), match=r"out of (bounds|range)"):
            step(torch.zeros(1, 1, dtype=torch.long), cache=cache)


@in_one_graph
def test_eager_and_compiled_steps_may_take_turns() -> None:
    torch.compiler.reset()
    model = model_of("learned")
    step = torch.compile(model, backend="eager", fullgraph=True)
    ids = torch.randint(13, (2, 9))
    cache = model.cache(slots=9)
    with torch.no_grad():
        parts = [model(ids[:, :4], cache=cache)]
        parts += [(step if t % 2 else model)(ids[:, t : t + 1], cache=cache) for t in range(4, 9)]
        torch.testing.assert_close(torch.cat(parts, 1), model(ids), rtol=0, atol=2e-6)
        with pytest.raises(ValueError, match="the token of order 9 has no slot in a cache of 9"):
            model(ids[:, :1], cache=cache)


# Memory that a step writes, and memory that it leaves unchanged.

SPECS = {"growing": GrowingCache, "static": lambda: SlotCache(12)}


def keys_of(k: Tensor, begin: int, end: int) -> Keys:
    part = k[:, :, begin:end]
    return Keys(part, part + 1, Positions.count(end - begin, begin), {"fact": part[..., 0]})


@pytest.mark.parametrize("make", SPECS.values(), ids=SPECS)
def test_a_step_without_gradients_moves_no_key_that_is_there(make) -> None:
    k = torch.randn(2, 3, 10, 4)
    cache = make()
    with torch.no_grad():
        cache.take_in(keys_of(k, 0, 6))
        first = cache.take_in(keys_of(k, 6, 7))
        later = cache.take_in(keys_of(k, 7, 8))
    for old, new in ((first.k, later.k), (first.v, later.v), (first.memo["fact"], later.memo["fact"])):
        assert old.data_ptr() == new.data_ptr()
    assert torch.equal(later.k[:, :, :8], k[:, :, :8]) and torch.equal(later.v[:, :, :8], k[:, :, :8] + 1)
    assert torch.equal(later.memo["fact"][:, :, :8], k[:, :, :8, 0])


@pytest.mark.parametrize("make", SPECS.values(), ids=SPECS)
def test_with_gradients_earlier_keys_stay_as_they_were(make) -> None:
    layer = Attention(8, 2, encoding="rotary").double()
    x = torch.randn(2, 6, 8, dtype=torch.float64, requires_grad=True)
    cache = make()
    out = [layer(x[:, :3], positions=Positions.count(3), mask=masks.causal(), cache=cache)]
    out += [layer(x[:, t : t + 1], positions=Positions.count(1, t), mask=masks.causal(), cache=cache) for t in (3, 4)]
    with torch.no_grad():
        layer(x[:, 5:], positions=Positions.count(1, 5), mask=masks.causal(), cache=cache)
    upstream = torch.randn(2, 5, 8, dtype=torch.float64)
    [actual] = torch.autograd.grad(torch.cat(out, 1), x, upstream)
    whole = layer(x[:, :5], mask=masks.causal())
    torch.testing.assert_close(actual, torch.autograd.grad(whole, x, upstream)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("make", SPECS.values(), ids=SPECS)
def test_a_cache_may_be_filled_in_one_mode_and_go_on_in_another(make) -> None:
    k = torch.randn(1, 2, 9, 4)
    cache = make()
    modes = (torch.inference_mode, torch.no_grad, torch.enable_grad, torch.no_grad, torch.inference_mode)
    for t, mode in enumerate(modes):
        with mode():
            keys = cache.take_in(keys_of(k, t, t + 1))
    assert torch.equal(keys.k[:, :, :5], k[:, :, :5])


def test_what_a_growing_cache_gave_stays_whoever_goes_on_from_it() -> None:
    k, k2 = torch.randn(1, 2, 9, 4), torch.randn(1, 2, 9, 4)
    cache = GrowingCache()
    with torch.no_grad():
        cache.take_in(keys_of(k, 0, 4))
        cache.take_in(keys_of(k, 4, 5))
        fork = copy.copy(cache)
        one_way, cache = cache.take_in(keys_of(k, 5, 7)), fork
        other_way = cache.take_in(keys_of(k2, 5, 7))
        twin = copy.copy(cache)
        further, elsewhere = cache.take_in(keys_of(k2, 7, 8)), twin.take_in(keys_of(k, 7, 8))
    assert torch.equal(one_way.k, k[:, :, :7])
    assert torch.equal(other_way.k, torch.cat((k[:, :, :5], k2[:, :, 5:7]), 2))
    assert torch.equal(further.k[:, :, 7:], k2[:, :, 7:8]) and torch.equal(elsewhere.k[:, :, 7:], k[:, :, 7:8])
    cache.rows(torch.tensor([0]))
    with torch.no_grad():
        assert torch.equal(cache.take_in(keys_of(k, 8, 9)).k[:, :, :8], further.k)


# One query and contiguous keys


ONE_QUERY = (
    "alibi",
    "t5_bias(std=1)",
    "kerple",
    "sandwich",
    "shaw(max_distance=3)",
    "shaw(max_distance=3, values=False)",
    "transformer_xl",
    "transformer_xl(max_distance=3)",
    "deberta(buckets=4, max_distance=6)",
    "inkling(max_distance=3)",
    "tupe",
    "forgetting",
    "on(shaw(max_distance=3, values=False), heads=(0, 3))",
    "alibi + shaw(max_distance=3)",
)


def without_start(at: Positions) -> Positions:
    """Return the same positions without the fact that they are contiguous."""
    return at.with_facts(contiguous=False, extent=None)


@pytest.mark.parametrize("spec", ONE_QUERY)
@pytest.mark.parametrize(
    ("where", "keys", "mask"),
    [(11, 12, masks.causal()), (1, 2, masks.causal()), (5, 12, masks.causal()), (5, 12, masks.bidirectional())],
    ids=["last", "second", "between", "both ways"],
)
def test_one_query_and_keys_in_a_row_are_as_any_others(spec: str, where: int, keys: int, mask) -> None:
    torch.manual_seed(0)
    layer = Attention(32, heads=4, kv_heads=2, encoding=spec).double().eval()
    query, memory = torch.randn(3, 1, 32).double(), torch.randn(3, keys, 32).double()
    at, keys_at = Positions.count(1, where + 7), Positions.count(keys, 7)
    with torch.no_grad():
        actual = layer(query, memory, positions=at, key_positions=keys_at, mask=mask)
        expected = layer(query, memory, positions=without_start(at), key_positions=without_start(keys_at), mask=mask)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("spec", ["alibi", "t5_bias(std=1)"])
def test_layers_that_share_an_encoding_share_its_bias_of_one_token_and_of_one_pass(spec: str, monkeypatch) -> None:
    torch.manual_seed(0)
    model, ids = Decoder(vocab=13, dim=16, heads=4, layers=3, encoding=spec).eval(), torch.randint(13, (2, 9))
    (encoding,) = model.stack.encodings
    deltas, by_distance, cache = [], type(encoding).by_distance, model.cache()
    with torch.no_grad():
        model(ids[:, :7], cache=cache)
        monkeypatch.setattr(
            type(encoding), "by_distance", lambda self, delta: deltas.append(delta) or by_distance(self, delta)
        )
        model(ids[:, 7:8], cache=cache)
        assert len(deltas) == 1
        # The next token is a new pass, which reads the changed parameters.
        for parameter in encoding.parameters():
            parameter.data.mul_(3)
        actual = model(ids[:, 8:], cache=cache)
        monkeypatch.undo()
        again = model.cache()
        for old, new in zip(cache.layers, again.layers, strict=True):
            new.take_in(Keys(old.keys.k[:, :, :8], old.keys.v[:, :, :8], without_start(Positions.count(8))))
        expected = model(ids[:, 8:], positions=without_start(Positions.count(1, 8)), cache=again)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


def test_tokens_that_leave_a_gap_are_not_in_a_row() -> None:
    torch.manual_seed(0)
    model, ids = model_of("alibi"), torch.randint(13, (2, 6))
    cache = model.cache()
    with torch.no_grad():
        model(ids[:, :5], cache=cache)
        actual = model(ids[:, 5:], positions=9, cache=cache)
        expected = model(ids, positions=torch.tensor([0, 1, 2, 3, 4, 9]))[:, 5:]
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


# Streams, and the graph of generation


def test_a_stream_gives_each_id_as_it_comes_and_generate_all_of_them() -> None:
    model, ids = model_of("rotary"), torch.randint(13, (2, 5))
    whole = model.generate(ids, 6, temperature=1.0, seed=3)
    coming = model.stream(ids, 6, temperature=1.0, seed=3)
    assert next(coming).equal(whole[:, 5]) and torch.stack(list(coming), 1).equal(whole[:, 6:])
    two = EncoderDecoder(vocab=13, dim=16, heads=4, layers=1).eval()
    assert torch.stack(list(two.stream(ids, ids[:, :1], 4)), 1).equal(two.generate(ids, ids[:, :1], 4)[:, 1:])


def test_a_stream_that_is_closed_leaves_the_model_as_it_was() -> None:
    model, ids = model_of("rotary").train(), torch.randint(13, (2, 5))
    coming = model.stream(ids, 6)
    assert model.training
    assert not next(coming).requires_grad and not model.training and torch.is_grad_enabled()
    coming.close()
    assert model.training and model.stack.blocks[0].training


def test_a_stream_refuses_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="max_new_tokens must be a whole number of 1 or more, got 0"):
        model_of("rotary").stream(torch.zeros(1, 2, dtype=torch.long), 0)
    with pytest.raises(ValueError, match="compiled must be"):
        model_of("rotary").stream(torch.zeros(1, 2, dtype=torch.long), 3, compiled=1)


@in_one_graph
def test_generation_keeps_a_compiled_graph_for_calls_of_its_shape(monkeypatch) -> None:
    torch.compiler.reset()
    graphs, compile = Graphs(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: compile(model, backend=graphs, **options))
    model, ids = model_of("alibi"), torch.randint(13, (2, 5))
    padding = torch.tensor([[0, 0, 1, 1, 1], [1] * 5])
    expected = [model.generate(ids, 9), model.generate(ids, 9, padding=padding), model.generate(ids, 30)]
    assert graphs.count == 0
    assert model.generate(ids, 9, compiled=True).equal(expected[0]) and graphs.count == 1
    assert model.generate(ids, 30).equal(expected[2]) and graphs.count == 1
    assert model.generate(ids, 9, compiled=False).equal(expected[0])
    assert model.generate(ids, 9, padding=padding).equal(expected[1]) and graphs.count == 1
    twin = copy.deepcopy(model)
    assert twin.graphs == {} and twin.generate(ids, 9).equal(expected[0]) and graphs.count == 1
