"""Ways to generate: each is held to what it stands for, by enumeration where chance is in it."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from tiers import rest_slow
from torch import Tensor

from posenc import Decoder
from posenc.generation import Choice, acceptance
from posenc.generation.speculative import outcomes, speculate
from posenc.seeding import seeded


def model_of(encoding="rotary", *, vocab: int = 7, seed: int = 0, layers: int = 2, max_len: int = 64) -> Decoder:
    with seeded(seed):
        model = Decoder(vocab, 8, heads=2, layers=layers, encoding=encoding, max_len=max_len).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return model


def draft_of(**sizes) -> Decoder:
    return model_of("alibi", seed=1, layers=1, **sizes)


def like(model: Decoder, noise: float) -> Decoder:
    """A draft that often agrees."""
    with seeded(5):
        draft = model_of(vocab=model.vocab)
        for parameter in draft.parameters():
            parameter.data += noise * torch.randn_like(parameter)
    return draft


# Speculative decoding


class Branches:
    """Draws that take every way, one after the other: each run of `text` goes one, and says how likely it was."""

    def __init__(self) -> None:
        self.planned: list[int] = []

    def every(self, text: Callable[[Callable[[Tensor], Tensor]], Tensor]) -> dict[tuple[int, ...], float]:
        found: dict[tuple[int, ...], float] = {}
        waiting: list[list[int]] = [[]]
        while waiting:
            self.planned, self.taken, self.likely, self.open = waiting.pop(), [], 1.0, waiting
            key = tuple(text(self.draw)[0].tolist())
            found[key] = found.get(key, 0.0) + self.likely
        return found

    def draw(self, weights: Tensor) -> Tensor:
        assert weights.shape[0] == 1
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, dtype=weights.dtype), rtol=0, atol=1e-12)
        ways = weights[0].nonzero()[:, 0].tolist()
        step = len(self.taken)
        if step == len(self.planned):
            self.open += [[*self.taken, other] for other in ways[1:]]
            self.planned = [*self.planned, ways[0]]
        self.taken.append(self.planned[step])
        self.likely *= weights[0, self.planned[step]].item()
        return torch.tensor([self.planned[step]])


@pytest.mark.parametrize("ahead", rest_slow([1, 2, 4], 1))
@pytest.mark.parametrize("top_k", [None, 2])
def test_a_draft_changes_no_probability_of_any_text(ahead: int, top_k: int | None) -> None:
    model, draft, ids = model_of(vocab=3), draft_of(vocab=3), torch.tensor([[0, 2]])
    choice = Choice(3, temperature=1.0, top_k=top_k)
    found = Branches().every(lambda draw: speculate(model, draft, ids, 3, choice, ahead=ahead, draw=draw)[:, 2:])
    for text in itertools.product(range(3), repeat=3):
        whole = torch.cat((ids, torch.tensor([text])), 1)
        with torch.no_grad():
            logits = model(whole)[0, 1:-1]
        if top_k is not None:
            logits = logits.masked_fill(logits < logits.topk(top_k).values[:, -1:], -torch.inf)
        likely = logits.softmax(-1)[range(3), text].prod().item()
        assert abs(found.pop(text, 0.0) - likely) < 1e-9
    assert not found


@pytest.mark.parametrize("ahead", rest_slow([1, 2], 1))
def test_a_draft_changes_no_probability_where_texts_stop(ahead: int) -> None:
    model, draft, ids = model_of(vocab=3), draft_of(vocab=3), torch.tensor([[0, 2]])
    choice = Choice(3, temperature=1.0, stop=1)
    found = Branches().every(lambda draw: speculate(model, draft, ids, 3, choice, ahead=ahead, draw=draw)[:, 2:])
    for text, likely in found.items():
        assert text.count(1) <= 1 and (len(text) == 3 or text[-1] == 1)
        whole = torch.cat((ids, torch.tensor([text])), 1)
        with torch.no_grad():
            weights = model(whole)[0, 1:-1].softmax(-1)
        assert abs(weights[range(len(text)), text].prod().item() - likely) < 1e-9
    assert abs(sum(found.values()) - 1) < 1e-9


def test_the_outcomes_of_drafts_are_the_papers() -> None:
    large, small = torch.rand(1, 2, 5, dtype=torch.float64), torch.rand(1, 1, 5, dtype=torch.float64)
    large, small = large / large.sum(-1, keepdim=True), small / small.sum(-1, keepdim=True)
    first = torch.zeros(5, dtype=torch.float64)
    for token in range(5):
        number, behind = outcomes(large, small, torch.tensor([[token]]))
        assert number[0, 1].item() == pytest.approx(min(1, large[0, 0, token].item() / small[0, 0, token].item()))
        torch.testing.assert_close(behind[0, 1], large[0, 1])
        first[token] += small[0, 0, token] * number[0, 1]
        first += small[0, 0, token] * number[0, 0] * behind[0, 0]
    torch.testing.assert_close(first, large[0, 0], rtol=0, atol=1e-12)


def test_what_both_models_agree_on_is_kept_for_certain() -> None:
    weights = torch.full((1, 1, 4), 0.25)
    number, behind = outcomes(weights.expand(1, 2, 4), weights, torch.tensor([[3]]))
    assert number.tolist() == [[0.0, 1.0]] and bool(behind.isfinite().all())


@pytest.mark.parametrize(
    "encoding", rest_slow(["rotary", "learned", "t5_bias", "forgetting", ("rotary", "contextual")], 2)
)
@pytest.mark.parametrize("padded", [False, True])
def test_a_draft_changes_no_greedy_text(encoding, padded: bool) -> None:
    # A learned table without a row to spare sees that no position is asked for beyond those of plain decoding.
    model, ids = model_of(encoding, max_len=15), torch.randint(7, (4, 4))
    padding = torch.tensor([[0, 0, 0, 1], [1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1]]) if padded else None
    for stop in (None, int(model.generate(ids, 5, padding=padding)[1, -1])):
        asked = {"tokens": 12, "padding": padding, "stop": stop}
        expected = model.generate(ids, **asked)
        for draft, ahead in itertools.product((draft_of(max_len=15), model), (1, 3, 20)):
            assert torch.equal(model.generate(ids, draft=draft, ahead=ahead, **asked), expected)


def test_a_prompt_of_one_token_may_be_drafted_behind() -> None:
    model, ids = model_of(), torch.tensor([[3], [1]])
    assert torch.equal(model.generate(ids, 9, draft=draft_of()), model.generate(ids, 9))


def test_a_draft_that_agrees_saves_passes_of_the_model() -> None:
    model, ids, passes = model_of(), torch.tensor([[1, 2]]), []
    handle = model.register_forward_hook(lambda *_: passes.append(1))
    draft = model_of()
    expected = model.generate(ids, 12)
    alone, passes[:] = len(passes), []
    assert torch.equal(model.generate(ids, 12, draft=draft, ahead=3), expected)
    handle.remove()
    assert (alone, len(passes)) == (12, 4)  # the prompt, and three passes of which each gives four tokens


def test_a_draft_reads_all_of_the_text_and_nothing_else() -> None:
    """Whatever a draft has read wrong changes no text: only how often it is right, and so the passes of the model."""
    model, ids = model_of(), torch.cartesian_prod(*[torch.arange(7)] * 2)[::10]
    draft, passes, read = like(model, 0.5), [], []
    of_model = model.register_forward_hook(lambda module, given, out: passes.append(tuple(given[0].shape)))

    def note(module, given, named, out) -> None:
        tokens = named["cache"].held.order.amax(1) + 1
        read.append(tokens.expand(len(given[0])).tolist())

    of_draft = draft.register_forward_hook(note, with_kwargs=True)
    got = model.generate(ids, 30, draft=draft, ahead=4).tolist()
    of_model.remove(), of_draft.remove()
    texts, expected, reads = [text[:2] for text in got], [(len(ids), 2)], [[2] * len(ids)]
    while going := [row for row in range(len(ids)) if len(texts[row]) < 32]:
        n = min(4, *(32 - len(texts[row]) - 1 for row in going))
        expected.append((len(going), n + 1))
        reads += [[len(texts[row]) + more for row in going] for more in range(n)]
        for row in going:
            guess, kept = list(texts[row]), 0
            for _ in range(n):
                guess.append(int(draft(torch.tensor([guess]))[0, -1].argmax()))
            while kept < n and guess[len(texts[row]) + kept] == got[row][len(texts[row]) + kept]:
                kept += 1
            texts[row] = got[row][: len(texts[row]) + kept + 1]
    assert passes == expected
    # Where a row wants one token more nothing is drafted, and the draft has one more to read behind that.
    assert any(now[1] == 1 < then[1] for now, then in itertools.pairwise(passes))
    assert read == reads


def test_acceptance_is_how_likely_a_drafted_token_is_kept() -> None:
    model, ids = model_of(), torch.randint(7, (2, 5))
    draft = like(model, 0.1)
    got = acceptance(model, draft, ids, temperature=0.7)
    with torch.no_grad():
        large, small = ((one(ids) / 0.7).softmax(-1) for one in (model, draft))
    expected = torch.zeros_like(got)
    for token in range(7):
        kept = (large[..., token] / small[..., token]).clamp(max=1)
        expected += small[..., token] * kept
    torch.testing.assert_close(got, expected)
    assert bool((acceptance(model, draft, ids) == (model(ids).argmax(-1) == draft(ids).argmax(-1))).all())


# Beams


def ranked(model: Decoder, ids: Tensor, tokens: int, stop: int | None, penalty: float) -> list[tuple[float, list[int]]]:
    """Every text of one prompt [1, T] that ends with its stop or has all its tokens, with its rank."""
    found = {}
    for text in itertools.product(range(model.vocab), repeat=tokens):
        if stop in text:
            text = text[: text.index(stop) + 1]
        whole = torch.cat((ids, torch.tensor([text])), 1)
        with torch.no_grad():
            weights = model(whole)[0, ids.shape[1] - 1 : -1].log_softmax(-1)
        found[text] = weights[range(len(text)), text].sum().item() / len(text) ** penalty
    return sorted(((rank, list(text)) for text, rank in found.items()), reverse=True)


@pytest.mark.parametrize("stop", [None, 1])
@pytest.mark.parametrize("penalty", [None, 0.0, 2.0])
def test_as_many_beams_as_there_are_texts_find_the_best(stop: int | None, penalty: float | None) -> None:
    model, ids = model_of(vocab=3, seed=3), torch.tensor([[0, 0, 1], [2, 1, 0]])
    padding = torch.tensor([[0, 1, 1], [1, 1, 1]])
    got = model.generate(ids, 3, beams=27, stop=stop, length_penalty=penalty, padding=padding)
    for row, begin in enumerate((1, 0)):
        best = ranked(model, ids[row : row + 1, begin:], 3, stop, 1.0 if penalty is None else penalty)
        text = got[row, 3:].tolist()
        assert text[: len(best[0][1])] == best[0][1] and set(text[len(best[0][1]) :]) <= {stop}


def test_a_penalty_finds_longer_texts() -> None:
    lengths, ids = set(), torch.tensor([[0, 1]])
    for seed in range(8):
        model = model_of(vocab=3, seed=seed)
        short, long = (
            model.generate(ids, 3, beams=27, stop=1, length_penalty=penalty)[0, 2:].tolist() for penalty in (0.0, 3.0)
        )
        assert short == padded(ranked(model, ids, 3, 1, 0.0)[0][1], len(short))
        assert long == padded(ranked(model, ids, 3, 1, 3.0)[0][1], len(long))
        lengths.add(([*short, 1].index(1), [*long, 1].index(1)))
    assert all(short <= long for short, long in lengths) and any(short < long for short, long in lengths)


def padded(text: list[int], tokens: int) -> list[int]:
    return text + [1] * (tokens - len(text))


def test_one_beam_is_the_likeliest_token_each_time() -> None:
    model, ids = model_of(), torch.randint(7, (3, 4))
    for stop in (None, 2):
        assert torch.equal(model.generate(ids, 8, beams=1, stop=stop), model.generate(ids, 8, stop=stop))


def test_beams_are_those_of_a_search_by_hand() -> None:
    model, ids = model_of(), torch.tensor([[4, 1]])
    beams = [(0.0, [4, 1])]
    for _ in range(6):
        more = []
        for score, text in beams:
            with torch.no_grad():
                weights = model(torch.tensor([text]))[0, -1].log_softmax(-1)
            more += [(score + weights[token].item(), [*text, token]) for token in range(7)]
        beams = sorted(more, reverse=True)[:3]
    assert model.generate(ids, 6, beams=3)[0].tolist() == beams[0][1]


# Samples, prompts of different lengths


def test_samples_are_drawn_as_from_prompts_that_are_repeated_and_the_prompt_is_computed_once() -> None:
    model, ids, seen = model_of(), torch.randint(7, (2, 4)), []
    padding = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    handle = model.register_forward_hook(lambda module, given, out: seen.append(tuple(given[0].shape)))
    got = model.generate(ids, 6, samples=3, temperature=1.0, seed=4, padding=padding)
    handle.remove()
    assert seen == [(2, 4)] + [(6, 1)] * 5
    repeated = ids.repeat_interleave(3, 0), padding.repeat_interleave(3, 0)
    assert torch.equal(got.flatten(0, 1), model.generate(repeated[0], 6, temperature=1.0, seed=4, padding=repeated[1]))
    assert got.shape == (2, 3, 10) and not torch.equal(got[0, 0], got[0, 1])


def test_samples_go_through_a_static_cache_as_through_one_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, slots = model_of(), torch.randint(7, (2, 4)), []
    make = model.cache
    model.cache = lambda **sizes: slots.append(sizes) or make(**sizes)
    asked = {"tokens": 5, "samples": 3, "temperature": 1.0}
    expected = model.generate(ids, **asked)
    # What is compiled computes the same; here its cache is asked.
    monkeypatch.setattr(torch, "compile", lambda step, dynamic: step)
    assert torch.equal(model.generate(ids, compiled=True, **asked), expected)
    assert slots == [{}, {"slots": 256}] and list(model.graphs) == [(6, 256, True)]


@pytest.mark.parametrize("asked", [{}, {"stop": "its fifth"}, {"beams": 3}, {"draft": "small"}], ids=str)
def test_prompts_of_different_lengths_give_what_each_gives_alone(asked: dict) -> None:
    model, prompts = model_of("t5_bias"), [torch.randint(7, (n,)) for n in (3, 1, 5)]
    if "stop" in asked:
        asked = {"stop": int(model.generate(prompts[0][None], 5)[0, -1])}
    if "draft" in asked:
        asked = {"draft": draft_of()}
    got = model.generate(prompts, 8, **asked)
    for prompt, text in zip(prompts, got, strict=True):
        assert torch.equal(text, model.generate(prompt[None], 8, **asked)[0])


def test_samples_of_prompts_of_different_lengths_are_a_list_too() -> None:
    got = model_of().generate([torch.tensor([1]), torch.tensor([1, 2])], 3, samples=2, temperature=1.0)
    assert [tuple(texts.shape) for texts in got] == [(2, 4), (2, 5)] and got[1][:, :2].tolist() == [[1, 2]] * 2


# Sinks and a window


@pytest.mark.parametrize("encoding", rest_slow(["rotary", "forgetting", "rotary + alibi", "none"], 2))
@pytest.mark.parametrize(("sinks", "window"), [(2, 9), (0, 4), (None, 16), (1, 1)])
def test_behind_sinks_the_newest_tokens_stand_as_if_nothing_had_been_between(encoding, sinks, window) -> None:
    # In one layer a key is of its own token alone, so that what is held is what these tokens give by themselves.
    model, held_at_most = model_of(encoding, layers=1), (4 if sinks is None else sinks) + window
    prompt, caches = torch.randint(7, (1, 6)), []
    make = model.cache
    model.cache = lambda **sizes: caches.append(make(**sizes)) or caches[-1]
    got = model.generate(prompt, 40, sinks=sinks, window=window)
    first = 4 if sinks is None else sinks
    text = held = prompt[0].tolist()
    for _ in range(40):
        with torch.no_grad():
            new = int(model(torch.tensor([held]))[0, -1].argmax())
        text = [*text, new]
        if len(held) >= first + window:
            held = [*held[:first], *held[len(held) - (window - max(1, window // 8)) :]]
        held = [*held, new]
    assert got[0].tolist() == text
    assert caches[0].held.tokens <= held_at_most
    assert type(caches[0].held).__name__ == "Counted" and caches[0].held.start == 0


def test_rows_of_different_lengths_forget_what_each_forgets_alone() -> None:
    model, prompts = model_of("rotary + alibi", layers=1), [torch.randint(7, (n,)) for n in (12, 3, 6)]
    together = model.generate(prompts, 4, window=8, sinks=2)
    # Rows that had room keep what they hold, until the longest asks for room.
    assert torch.equal(together[0], model.generate(prompts[0][None], 4, window=8, sinks=2)[0])
    assert torch.equal(together[1], model.generate(prompts[1][None], 4)[0])


def test_memory_is_bounded_however_long_the_text_is() -> None:
    model, bytes_held = model_of(layers=1), []
    make, caches = model.cache, []
    model.cache = lambda **sizes: caches.append(make(**sizes)) or caches[-1]
    for number, _ in enumerate(model.stream(torch.tensor([[1, 2]]), 400, sinks=2, window=16)):
        if number % 50 == 49:
            bytes_held.append(caches[0].bytes)
    assert max(bytes_held) <= 2 * 2 * 18 * 8 * 8 * 2  # room for as many again; k and v, tokens, channels, float64


# What is refused

MODEL, IDS = model_of(), torch.tensor([[1, 2, 3]])
REFUSED = {
    "length_penalty ranks beams .* give beams": lambda: MODEL.generate(IDS, 2, length_penalty=0.5),
    "ahead says how many tokens a draft gives; give draft": lambda: MODEL.generate(IDS, 2, ahead=3),
    "beams cannot be had together with draft; leave": lambda: MODEL.generate(IDS, 2, beams=2, draft=MODEL),
    "beams cannot be had together with temperature, top_k, seed, samples, compiled, sinks, window": lambda: (
        MODEL.generate(IDS, 2, beams=2, temperature=1.0, top_k=2, seed=3, samples=2, compiled=True, sinks=1, window=3)
    ),
    "a draft cannot be had together with samples, compiled, sinks, window": lambda: MODEL.generate(
        IDS, 2, draft=MODEL, samples=2, compiled=True, sinks=1, window=3
    ),
    "beams must be a whole number of 1 or more, got 0": lambda: MODEL.generate(IDS, 2, beams=0),
    "length_penalty must be a finite number, got nan": lambda: MODEL.generate(IDS, 2, beams=2, length_penalty=math.nan),
    "ahead must be a whole number of 1 or more, got 0": lambda: MODEL.generate(IDS, 2, draft=MODEL, ahead=0),
    "the draft has 3 token ids, and the model 7": lambda: MODEL.generate(IDS, 2, draft=draft_of(vocab=3)),
    "and the model 7; give one with the same": lambda: acceptance(MODEL, draft_of(vocab=3), IDS),
    "a draft is a Decoder, got 'small'": lambda: MODEL.generate(IDS, 2, draft="small"),
    "a draft is a Decoder, got 3": lambda: acceptance(MODEL, 3, IDS),
    "samples must be a whole number of 1 or more, got 0": lambda: MODEL.generate(IDS, 2, samples=0),
    "samples of it are all the same; give temperature above 0": lambda: MODEL.generate(IDS, 2, samples=2),
    "sinks stay where .* give window": lambda: MODEL.generate(IDS, 2, sinks=2),
    "sinks must be a whole number of 0 or more, got -1": lambda: MODEL.generate(IDS, 2, sinks=-1, window=3),
    "window must be a whole number of 1 or more, got 0": lambda: MODEL.generate(IDS, 2, window=0),
    "a compiled graph counts its slots, .* leave one of them out": lambda: MODEL.generate(
        IDS, 2, window=3, compiled=True
    ),
    r"tokens behind forgotten ones move up, and with learned.*Decoder\(window=...\)": lambda: model_of(
        ("rotary", "learned")
    ).generate(IDS, 2, window=3),
    "a list of prompts is padded here": lambda: MODEL.generate([IDS[0]], 2, padding=torch.ones(1, 3)),
    r"prompts are ids \[batch, tokens\], or a list of ids \[tokens\], got 'x'": lambda: MODEL.generate("x", 2),
    r"prompts are ids .* got \[\]": lambda: MODEL.generate([], 2),
    r"each prompt of a list has shape \[tokens\], .* got \[1, 3\]": lambda: MODEL.generate([IDS], 2),
    "a prompt must be a tensor, got 3": lambda: MODEL.generate([3], 2),
    "tokens to generate must be a whole number of 1 or more, got 0": lambda: MODEL.generate(IDS, 0, beams=2),
    "pad prompts on the left": lambda: MODEL.generate(IDS, 1, draft=MODEL, padding=torch.tensor([[1, 1, 0]])),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_excludes_each_other_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        REFUSED[words]()


@pytest.mark.parametrize("asked", [{"beams": 2}, {"draft": MODEL}, {"samples": 2, "temperature": 1.0}], ids=list)
def test_no_rows_give_no_rows(asked: dict) -> None:
    assert MODEL.generate(IDS[:0], 4, **asked).shape[::2] == ((0, 7) if "samples" in asked else (0,))


@pytest.mark.parametrize("asked", [{"beams": 2}, {"draft": draft_of()}], ids=list)
def test_dropout_is_off_meanwhile_and_on_again(asked: dict) -> None:
    with seeded(0):
        model = Decoder(7, 8, heads=2, layers=1, dropout=0.5).train()
    texts = {tuple(model.generate(IDS, 6, **asked)[0].tolist()) for _ in range(4)}
    assert len(texts) == 1 and model.training
