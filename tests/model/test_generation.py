"""Each way of generating gives the result of its definition."""

import pytest
import torch
from tiers import rest_slow

from posenc import Decoder
from posenc.model.seeding import local_seed


def model_of(encoding="rotary", *, vocab: int = 7, seed: int = 0, layers: int = 2, max_len: int = 64) -> Decoder:
    with local_seed(seed):
        model = Decoder(vocab, 8, heads=2, layers=layers, encoding=encoding, max_len=max_len).double().eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
    return model


# Samples, prompts of different lengths


def test_samples_are_drawn_as_from_prompts_that_are_repeated_and_the_prompt_is_computed_once() -> None:
    model, ids, shapes = model_of(), torch.randint(7, (2, 4)), []
    padding = torch.tensor([[0, 1, 1, 1], [1, 1, 1, 1]])
    handle = model.register_forward_hook(lambda module, args, out: shapes.append(tuple(args[0].shape)))
    out = model.generate(ids, 6, samples=3, temperature=1.0, seed=4, padding=padding)
    handle.remove()
    assert shapes == [(2, 4)] + [(6, 1)] * 5
    expected = ids.repeat_interleave(3, 0), padding.repeat_interleave(3, 0)
    assert torch.equal(out.flatten(0, 1), model.generate(expected[0], 6, temperature=1.0, seed=4, padding=expected[1]))
    assert out.shape == (2, 3, 10) and not torch.equal(out[0, 0], out[0, 1])


def test_samples_go_through_a_static_cache_as_through_one_that_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids, slots = model_of(), torch.randint(7, (2, 4)), []
    make = model.cache
    model.cache = lambda **sizes: slots.append(sizes) or make(**sizes)
    options = {"max_new_tokens": 5, "samples": 3, "temperature": 1.0}
    expected = model.generate(ids, **options)
    # The compiled model computes the same; this checks its cache.
    monkeypatch.setattr(torch, "compile", lambda step, dynamic: step)
    assert torch.equal(model.generate(ids, compiled=True, **options), expected)
    assert slots == [{}, {"slots": 256}] and list(model.graphs) == [(6, 256, True)]


@pytest.mark.parametrize("options", [{}, {"eos_token_id": "its fifth"}], ids=str)
def test_prompts_of_different_lengths_give_what_each_gives_alone(options: dict) -> None:
    model, prompts = model_of("t5_bias"), [torch.randint(7, (n,)) for n in (3, 1, 5)]
    if "eos_token_id" in options:
        options = {"eos_token_id": int(model.generate(prompts[0][None], 5)[0, -1])}
    actual = model.generate(prompts, 8, **options)
    for prompt, text in zip(prompts, actual, strict=True):
        assert torch.equal(text, model.generate(prompt[None], 8, **options)[0])


def test_samples_of_prompts_of_different_lengths_are_a_list_too() -> None:
    actual = model_of().generate([torch.tensor([1]), torch.tensor([1, 2])], 3, samples=2, temperature=1.0)
    assert [tuple(texts.shape) for texts in actual] == [(2, 4), (2, 5)] and actual[1][:, :2].tolist() == [[1, 2]] * 2


# Sinks and a window


@pytest.mark.parametrize("encoding", rest_slow(["rotary", "forgetting", "rotary + alibi", "none"], 2))
@pytest.mark.parametrize(("sinks", "window"), [(2, 9), (0, 4), (None, 16), (1, 1)])
def test_behind_sinks_the_newest_tokens_stand_as_if_nothing_had_been_between(encoding, sinks, window) -> None:
    # In a single layer a key depends only on its own token, so the cache equals that of the kept tokens alone.
    model, held_at_most = model_of(encoding, layers=1), (4 if sinks is None else sinks) + window
    prompt, caches = torch.randint(7, (1, 6)), []
    make = model.cache
    model.cache = lambda **sizes: caches.append(make(**sizes)) or caches[-1]
    actual = model.generate(prompt, 40, sinks=sinks, window=window)
    first = 4 if sinks is None else sinks
    text = kept_ids = prompt[0].tolist()
    for _ in range(40):
        with torch.no_grad():
            new = int(model(torch.tensor([kept_ids]))[0, -1].argmax())
        text = [*text, new]
        if len(kept_ids) >= first + window:
            kept_ids = [*kept_ids[:first], *kept_ids[len(kept_ids) - (window - max(1, window // 8)) :]]
        kept_ids = [*kept_ids, new]
    assert actual[0].tolist() == text
    assert caches[0].held.tokens <= held_at_most
    assert type(caches[0].held).__name__ == "CountedPositions" and caches[0].held.start == 0


def test_rows_of_different_lengths_forget_what_each_forgets_alone() -> None:
    model, prompts = model_of("rotary + alibi", layers=1), [torch.randint(7, (n,)) for n in (12, 3, 6)]
    together = model.generate(prompts, 4, window=8, sinks=2)
    # Rows with free slots keep their tokens until the longest row needs space.
    assert torch.equal(together[0], model.generate(prompts[0][None], 4, window=8, sinks=2)[0])
    assert torch.equal(together[1], model.generate(prompts[1][None], 4)[0])


def test_memory_is_bounded_however_long_the_text_is() -> None:
    model, bytes_held = model_of(layers=1), []
    make, caches = model.cache, []
    model.cache = lambda **sizes: caches.append(make(**sizes)) or caches[-1]
    for number, _ in enumerate(model.stream(torch.tensor([[1, 2]]), 400, sinks=2, window=16)):
        if number % 50 == 49:
            bytes_held.append(caches[0].bytes)
    assert max(bytes_held) <= 2 * 2 * 18 * 8 * 8 * 2  # twice the needed slots; k and v, tokens, channels, float64


# Rejected inputs

MODEL, IDS = model_of(), torch.tensor([[1, 2, 3]])
REFUSALS = {
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
    "max_new_tokens must be a whole number of 1 or more, got 0": lambda: MODEL.generate(IDS, 0),
    "pad prompts on the left": lambda: MODEL.generate(IDS, 1, padding=torch.tensor([[1, 1, 0]])),
}


@pytest.mark.parametrize("words", REFUSALS)
def test_what_excludes_each_other_is_refused(words: str) -> None:
    with pytest.raises(ValueError, match=words):
        REFUSALS[words]()


def test_no_rows_give_no_rows() -> None:
    assert MODEL.generate(IDS[:0], 4, samples=2, temperature=1.0).shape == (0, 2, 7)


def test_dropout_is_off_meanwhile_and_on_again() -> None:
    with local_seed(0):
        model = Decoder(7, 8, heads=2, layers=1, dropout=0.5).train()
    texts = {tuple(model.generate(IDS, 6)[0].tolist()) for _ in range(4)}
    assert len(texts) == 1 and model.training
