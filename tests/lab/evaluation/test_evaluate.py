"""Evaluation: one pass agrees with generation, and scores agree with numbers by hand."""

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc import Positions
from posenc.lab.evaluation import evaluate
from posenc.lab.evaluation.evaluate import (
    DEPTHS,
    by_depth,
    by_length,
    context_gain,
    exact_match,
    held_out_bits,
    sliding_bits,
)
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs.record import uses_context
from posenc.lab.runs.train import Run, start, train
from posenc.lab.tasks import BOS, END, Batch, task_of
from posenc.lab.tasks.text import Text
from posenc.model.decoder import Decoder


class Answering:
    """A stub of a model: logits [B, T, vocab] from a function of the ids."""

    def __init__(self, logits_of) -> None:
        self.logits_of = logits_of

    def eval(self) -> None:
        pass

    def parameters(self) -> tuple[()]:
        return ()

    def __call__(self, ids: Tensor, *, positions: Positions) -> Tensor:
        assert positions.tokens == ids.shape[1]
        return self.logits_of(ids)


def copying(ids: Tensor, wrong_at: int | None = None) -> Tensor:
    """Logits of a perfect copy: after the separator the prompt, then the end."""
    n = ids.shape[1] // 2 - 1
    answers = torch.full_like(ids, END)
    answers[:, n + 1 : -1] = ids[:, 1 : n + 1]
    if wrong_at is not None:
        answers[:, n + 1 + wrong_at] = BOS
    return F.one_hot(answers, 29).float()


class Remembering:
    """A task that stores its batches."""

    def __init__(self, task: Any) -> None:
        self.task, self.batches = task, []

    def lengths(self, longest: int) -> Any:
        return self.task.lengths(longest)

    def batch(self, *args) -> Batch:
        self.batches.append(self.task.batch(*args))
        return self.batches[-1]


@pytest.fixture
def text(tmp_path: Path) -> Any:
    """The text task on 30,000 letters in no order, a tenth of them held out."""
    letters = torch.randint(97, 123, (30_000,), generator=torch.Generator().manual_seed(5))
    (tmp_path / "letters.txt").write_bytes(bytes(letters.tolist()))
    return Text(path=str(tmp_path / "letters.txt"))


@pytest.mark.parametrize("length", [1, 5, 10])
def test_a_model_that_knows_the_answer_scores_one(length: int) -> None:
    match = exact_match(Answering(copying), task_of("copy"), length, rows=40)
    assert asdict(match) == {"exact_match": 1.0, "token_accuracy": 1.0, "sequences": 40}


def test_one_wrong_token_a_sequence_costs_the_whole_sequence_and_one_token() -> None:
    wrong = Answering(lambda ids: copying(ids, wrong_at=2))
    match = exact_match(wrong, task_of("copy"), 4, rows=40, shortest=4)
    assert match.exact_match == 0 and match.token_accuracy == pytest.approx(4 / 5)


def test_scores_are_spread_over_lengths_unless_one_is_asked_for() -> None:
    task = Remembering(task_of("copy"))
    exact_match(Answering(copying), task, 10, rows=40)
    assert [(batch.ids.shape[1] - 2) // 2 for batch in task.batches] == [2, 5, 8, 10]
    assert [len(batch.ids) for batch in task.batches] == [10] * 4
    task.batches.clear()
    exact_match(Answering(copying), task, 10, rows=40, shortest=10)
    assert [batch.ids.shape for batch in task.batches] == [(40, 22)]


def finding_late_keys(ids: Tensor) -> Tensor:
    """Logits of a model that finds a key of two symbols only in the second half of the prompt."""
    mark = task_of("pass_key").id("*")
    at = (ids == mark).int().argmax(1, keepdim=True)
    key = ids.gather(1, torch.cat((at + 1, at + 2), 1))
    answers = torch.full_like(ids, END)
    answers[:, -3:-1] = torch.where(at - 1 >= (ids.shape[1] - 7) / 2, key, mark)
    return F.one_hot(answers, task_of("pass_key").vocab).float()


def test_what_is_hidden_is_scored_by_its_place() -> None:
    run = start(recipe("pass_key", "none", 1, train_length=8, test_lengths=(16,)), to_train=False)
    run.model = cast(Any, Answering(finding_late_keys))
    rows = by_depth(run)
    assert [(row["length"], row["depth"]) for row in rows] == [(n, d) for n in (8, 16) for d in DEPTHS]
    assert [row["exact_match"] for row in rows] == [0, 0, 1, 1, 1] * 2 and rows[0]["sequences"] == 128
    assert by_depth(start(recipe("pass_key(depth=0.5)", "none", 1), to_train=False)) == []
    assert by_depth(start(recipe("copy", "none", 1), to_train=False)) == []


def half_learned(spec: str) -> Run:
    """A run that copies some prompts of two symbols and not others."""
    run = start(
        recipe("copy", spec, train_length=2, dim=32, heads=2, layers=2, steps=400, batch=16, warmup=5, cool_down=0)
    )
    while run.step < 400 and (not run.curve or run.curve[-1]["score"] < 0.15):
        train(run, stop_step=run.step + 5)
    return run


@pytest.mark.parametrize("spec", ["rotary", "learned"])
def test_one_teacher_forced_pass_finds_exactly_the_rows_that_greedy_generation_gets_right(spec: str) -> None:
    run, task = half_learned(spec), Remembering(task_of("copy"))
    match = exact_match(run.model, task, 2, rows=64, shortest=2)
    ids = torch.cat((task.batches[0].ids, task.batches[0].targets[:, -1:]), 1)
    tokens = run.model.generate(ids[:, :4], 3)
    right = int((tokens == ids).all(1).sum())
    assert match.exact_match == right / 64
    assert 0 < right < 64


def flat(vocab: int = 257) -> Decoder:
    """A model with uniform logits."""
    model = Decoder(vocab, 16, 2, 1, "none", max_len=32)
    torch.nn.init.zeros_(model.output.weight)
    torch.nn.init.zeros_(model.output.bias)
    return model


def test_a_model_without_opinion_needs_the_logarithm_of_257_bits_a_byte(text) -> None:
    assert held_out_bits(flat(), text, 32, total=2000) == pytest.approx(math.log2(257), rel=1e-6)
    assert sliding_bits(flat(), text, 32, stride=8, longest=64) == pytest.approx(math.log2(257), rel=1e-6)


def test_a_model_is_measured_as_it_is_at_rest(text) -> None:
    torch.manual_seed(0)
    model = Decoder(257, 16, 2, 1, "none", max_len=32, dropout=0.5)
    for score in (
        lambda: held_out_bits(model, text, 32, total=2000),
        lambda: sliding_bits(model, text, 32, stride=8, longest=64),
        lambda: exact_match(model, task_of("copy"), 2, rows=256, shortest=2).token_accuracy,
    ):
        model.eval()
        at_rest = score()
        model.train()
        assert score() == at_rest


def test_bits_per_byte_is_minus_the_mean_binary_logarithm_of_what_came(text) -> None:
    torch.manual_seed(0)
    unigram = torch.randn(257)
    model = Answering(lambda ids: unigram.expand(*ids.shape, 257))
    # One window over all but the last of the held-out bytes.
    total = len(text.text.test) - 1
    expected = -unigram.double().log_softmax(0)[torch.tensor(list(text.text.test.read(0, total)))].mean() / math.log(2)
    assert held_out_bits(model, text, total, total=total) == pytest.approx(float(expected), rel=1e-6)


def bytes_predicted(text, monkeypatch: pytest.MonkeyPatch, score, length: int) -> list[int]:
    """The sorted places of the predicted bytes in the held-out text."""
    places: list[int] = []

    def windows(source: Tensor, rows: Tensor, tokens: int) -> Batch:
        # Each byte is named by its place, so that targets can be recognised.
        ids = rows[:, None] + torch.arange(tokens)
        return Batch(ids, ids, torch.ones(tokens, dtype=torch.bool))

    def loss_of(model, batch: Batch, place, first: int = 0) -> Tensor:
        targets = batch.targets[:, first:]
        places.extend(targets.flatten().tolist())
        return torch.zeros_like(targets, dtype=torch.float32)

    monkeypatch.setattr(type(text), "windows", lambda self, *args: windows(*args))
    monkeypatch.setattr(evaluate, "loss_of", loss_of)
    score(length)
    return sorted(places)


def test_the_sliding_window_predicts_the_same_bytes_at_every_length(text, monkeypatch: pytest.MonkeyPatch) -> None:
    predictions = [
        bytes_predicted(text, monkeypatch, lambda n: sliding_bits(flat(), text, n, stride=16, longest=256), length)
        for length in (32, 64, 100, 256)
    ]
    assert all(places == predictions[0] for places in predictions) and len(predictions[0]) > 1000
    assert len(set(predictions[0])) == len(predictions[0])
    assert min(predictions[0]) >= 240 and max(predictions[0]) < len(text.text.test)


def test_a_byte_under_the_sliding_window_sees_at_least_the_window_less_the_stride(text, monkeypatch) -> None:
    windows = []
    monkeypatch.setattr(
        evaluate, "logits_of", lambda model, batch, place, first: windows.append(first) or model(batch.ids)[:, first:]
    )
    sliding_bits(flat(), text, 32, stride=8, longest=64)
    assert set(windows) == {32 - 8}


def test_the_perplexity_ratio_is_perplexity_at_a_length_over_perplexity_at_the_trained_one(text) -> None:
    experiment = recipe(
        "text", "sinusoidal", train_length=8, test_lengths=(16, 64), dim=16, heads=2, layers=1, text=text.text.name
    )
    run = start(experiment)
    torch.nn.init.normal_(run.model.output.weight)
    rows = by_length(run)
    assert [(row["length"], row["factor"]) for row in rows] == [(8, 1.0), (16, 2.0), (64, 8.0)]
    for row in rows:
        expected = 2 ** row["bits_per_byte"] / 2 ** rows[0]["bits_per_byte"]
        assert row["perplexity_ratio"] == pytest.approx(expected)
        assert row["exact_match"] is None and row["token_accuracy"] is None
    assert rows[0]["perplexity_ratio"] == 1.0 and rows[2]["perplexity_ratio"] != 1.0


def test_a_task_with_answers_is_scored_at_the_trained_length_first() -> None:
    rows = by_length(start(recipe("copy", "none", train_length=4, dim=16, heads=2, layers=1)))
    assert [row["length"] for row in rows] == [4, 5, 6, 8]
    assert all(0 <= row["exact_match"] <= row["token_accuracy"] <= 1 for row in rows)
    assert all(row["bits_per_byte"] is row["sliding_bits_per_byte"] is row["perplexity_ratio"] is None for row in rows)


def test_evaluation_draws_the_same_held_out_sequences_for_everybody() -> None:
    batches = []
    for spec, seed in (("none", 0), ("learned", 3)):
        task = Remembering(task_of("copy"))
        run = start(recipe("copy", spec, seed, dim=16, heads=2, layers=1))
        exact_match(run.model, task, 6, rows=8, shortest=6)
        batches.append(task.batches[0].ids)
    assert torch.equal(*batches)


class Long:
    """A stub of a held-out text of any length, whose bytes are their places modulo 251."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def windows(self, start: Tensor, length: int) -> Tensor:
        places = start[:, None] + torch.arange(length)
        assert int(places.min()) >= 0 and int(places.max()) < self.size
        return (places % 251).to(torch.uint8)


class LongText(Text):
    """The text task on the stub, which stores the places that were read."""

    def __init__(self, size: int) -> None:
        super().__init__()
        vars(self).update(text=SimpleNamespace(test=Long(size)), starts=[])

    def windows(self, source: Any, start: Tensor, length: int) -> Batch:
        self.starts.extend(start.tolist())
        return super().windows(source, start, length)


@pytest.mark.parametrize("size", [300, 2**24 + 3, 2**31 + 77, 3 * 2**40 + 1])
def test_held_out_windows_of_a_text_of_any_size_are_spread_from_its_first_byte_to_its_last(size: int) -> None:
    task, model = LongText(size), Answering(lambda ids: torch.zeros(*ids.shape, 257))
    held_out_bits(model, task, 16, total=4096, longest=64)
    blocks = task.starts[::4]
    assert len(blocks) == min(64, size // 64)
    assert blocks == [i * (size - 65) // (len(blocks) - 1) for i in range(len(blocks))]
    assert task.starts == [block + i * 16 for block in blocks for i in range(4)]
    task.starts.clear()
    sliding_bits(model, task, 32, stride=8, longest=64)
    ends = [start + 32 for start in task.starts]
    assert ends[0] == 64 and ends[-1] == size
    assert all(8 <= b - a and abs((b - a) - (size - 64) / (len(ends) - 1)) <= 1 for a, b in pairwise(ends))


def test_bits_per_byte_are_the_planted_losses_of_the_windows_that_were_drawn() -> None:
    # The byte b has the probability (b + 1) / Z, whatever came before it.
    task, logits = LongText(40_000), torch.arange(1.0, 258.0).log()
    model = Answering(lambda ids: logits.expand(*ids.shape, 257))
    total = math.fsum(range(1, 258))

    def bits(places: list[int]) -> float:
        return math.fsum(-math.log2((place % 251 + 1) / total) for place in places) / len(places)

    actual = held_out_bits(model, task, 16, total=4096, longest=64)
    assert actual == pytest.approx(bits([start + i for start in task.starts for i in range(16)]), rel=1e-6)
    task.starts.clear()
    actual = sliding_bits(model, task, 32, stride=8, longest=64)
    assert actual == pytest.approx(bits([start + i for start in task.starts for i in range(24, 32)]), rel=1e-6)


@pytest.mark.parametrize("length", [1, 7, 16, 33, 60, 63, 64])
def test_windows_of_every_length_are_asked_about_the_same_bytes_once(length: int) -> None:
    # The byte b has the probability (b + 1) / Z, whatever came before it.
    task, logits = LongText(40_000), torch.arange(1.0, 258.0).log()
    model = Answering(lambda ids: logits.expand(*ids.shape, 257))
    bits = held_out_bits(model, task, length, total=640, longest=64)
    places = [block + i for block in (n * (40_000 - 65) // 9 for n in range(10)) for i in range(64)]
    expected = math.fsum(-math.log2((place % 251 + 1) / math.fsum(range(1, 258))) for place in places) / len(places)
    assert bits == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("place", range(6))
def test_one_wrong_symbol_at_any_place_of_the_answer_costs_the_sequence(place: int) -> None:
    # The answer of copy at length 5: five symbols and the end.
    def wrong(ids: Tensor) -> Tensor:
        logits = copying(ids)
        row = torch.zeros(len(ids), dtype=torch.bool)
        row[::4] = True
        logits[row, ids.shape[1] // 2 + place] = F.one_hot(torch.tensor(BOS), 29).float()
        return logits

    match = exact_match(Answering(wrong), task_of("copy"), 5, rows=40, shortest=5)
    assert match.exact_match == 30 / 40 and match.token_accuracy == pytest.approx(1 - 10 / 240)


@pytest.mark.parametrize("place", range(4))
def test_one_wrong_value_at_any_place_of_recall_costs_the_sequence(place: int) -> None:
    task = Remembering(task_of("recall"))

    def answers_of(ids: Tensor) -> Tensor:
        logits = F.one_hot(task.batches[-1].targets, 35).float()
        # Behind BOS, four pairs and the separator every second token is a value.
        logits[0, 2 * 4 + 2 + 2 * place] = F.one_hot(torch.tensor(BOS), 35).float()
        return logits

    match = exact_match(Answering(answers_of), task, 4, rows=10, shortest=4)
    assert match.exact_match == 9 / 10 and match.token_accuracy == pytest.approx(39 / 40)


def test_what_is_wrong_outside_the_answer_costs_nothing() -> None:
    def prompt_unknown(ids: Tensor) -> Tensor:
        logits = copying(ids)
        logits[:, : ids.shape[1] // 2 - 1] = F.one_hot(torch.tensor(END), 29).float()
        return logits

    assert exact_match(Answering(prompt_unknown), task_of("copy"), 5, rows=40, shortest=5).exact_match == 1


@pytest.fixture
def sums(tmp_path: Path) -> Any:
    """The text task on letters of which each is the sum of the two before it, but for a fresh start in every sixth."""
    draws = torch.randint(26, (30_000,), generator=torch.Generator().manual_seed(7)).tolist()
    letters = draws[:2]
    for i in range(2, 30_000):
        letters.append(draws[i] if i % 6 == 0 else (letters[-1] + letters[-2]) % 26)
    (tmp_path / "sums.txt").write_bytes(bytes(97 + letter for letter in letters))
    return Text(path=str(tmp_path / "sums.txt"))


def knows_two(ids: Tensor) -> Tensor:
    """Logits of a model that adds the two previous letters, where there are two."""
    letters = ids - 97
    logits = F.one_hot(97 + (letters + letters.roll(1, 1)) % 26, 257).float() * 5
    logits[:, :2] = 0
    logits[..., 97:123] += 5
    return logits


def knows_one(table: Tensor, ids: Tensor) -> Tensor:
    """Logits of a bigram table [257, 257]."""
    return table[ids]


def verdict(model: Any, task: Any, length: int = 16) -> bool:
    bits = held_out_bits(model, task, length, total=2048)
    return uses_context(bits, context_gain(model, task, length), task.text.bigram_bits)


def test_a_model_that_needs_more_than_the_last_byte_has_learned(sums) -> None:
    assert verdict(Answering(knows_two), sums)
    # Without a second letter every one of the 26 is as likely, up to the 231 that are none.
    none_known = math.log2(26 + 231 * math.exp(-5))
    right, wrong = (-math.log2(math.exp(x) / (math.exp(10) + 25 * math.exp(5) + 231)) for x in (10, 5))
    test = sums.text.test.read(0, len(sums.text.test))
    ends = [16 + i * (len(test) - 16) // (len(test) - 17) for i in range(len(test) - 16)]
    bits = [right if (test[e - 2] + test[e - 3] - 194) % 26 == test[e - 1] - 97 else wrong for e in ends]
    expected = none_known - math.fsum(bits) / len(bits)
    assert context_gain(Answering(knows_two), sums, 16) == pytest.approx(expected, rel=1e-5)


def test_a_constant_a_table_of_pairs_and_an_untrained_model_have_not_learned(sums) -> None:
    constant = Answering(lambda ids: torch.arange(257.0).expand(*ids.shape, 257))
    assert context_gain(constant, sums, 16) == pytest.approx(0, abs=1e-9) and not verdict(constant, sums)
    # A table that has seen the held-out text itself beats the table that has not, and still is a table.
    counts = F.pad(sums.text.test.pairs().double() + 1e-9, (0, 1, 0, 1), value=1e-9)
    counts[256] = counts.sum(0)
    table = (counts / counts.sum(1, keepdim=True)).log().float()
    cheating = Answering(lambda ids: knows_one(table, ids))
    assert held_out_bits(cheating, sums, 16, total=2048) < sums.text.bigram_bits - 0.01
    assert context_gain(cheating, sums, 16) == pytest.approx(0, abs=1e-6) and not verdict(cheating, sums)
    assert not verdict(flat(), sums)


def test_no_schedule_makes_a_model_that_learns_nothing_a_model_that_has_learned(sums) -> None:
    for changes in ({"rate": 1e-12}, {"rate": 1e-12, "steps": 4, "final_rate": 0.0}):
        settings = {"text": sums.text.name, "train_length": 16, "test_lengths": (), "dim": 16, "heads": 2, "layers": 1}
        run = train(start(recipe("text", "rotary", **({"steps": 12, "evaluate_every": 2} | settings | changes))))
        assert run.curve[-1]["score"] == pytest.approx(run.curve[0]["score"], abs=0.01)
        assert not verdict(run.model, sums)


@pytest.mark.parametrize(
    ("bits", "gain", "learned"),
    [(0.0, 0.2, True), (0.1, 0.1, True), (0.15, 0.5, False), (0.0, 0.05, False), (0.7, 0.5, False)],
)
def test_both_margins_are_a_tenth_of_a_bit(bits: float, gain: float, learned: bool) -> None:
    # Numbers so small that one of the differences is the margin to the last bit.
    assert uses_context(bits, gain, bigram_bits=0.2) is learned


@pytest.mark.parametrize(("bits", "gain"), [(math.nan, 0.5), (math.inf, 0.5), (2.0, math.nan), (2.0, -math.inf)])
def test_a_loss_that_is_no_number_is_not_learned(bits: float, gain: float) -> None:
    assert uses_context(bits, gain, bigram_bits=3.0) is False


def opinion(vocab: int) -> Tensor:
    """Logits [vocab] of a model that predicts the same for every token."""
    return torch.randn(vocab, generator=torch.Generator().manual_seed(2)).double()


def bits_of_windows(task: Any, start: list[int], length: int, skip: int = 0, stop: int | None = None) -> float:
    """Bits per byte of windows under those logits, computed one by one, from `skip` to `stop` of each."""
    nats = byte_count = 0.0
    chances = opinion(task.vocab).softmax(0)
    for place in start:
        batch = task.windows(task.text.test, torch.tensor([place]), length)
        answer = batch.answer.expand(batch.targets.shape)
        for column in range(skip, length if stop is None else stop):
            at = batch.targets.shape[1] - length + column
            if answer[0, at]:
                nats -= math.log(chances[batch.targets[0, at]])
                byte_count += int(batch.bytes[0, at])
    return nats / byte_count / math.log(2)


@pytest.mark.parametrize("length", [16, 24, 48])
def test_masked_text_is_measured_in_bits_of_the_masked_bytes_and_the_same_at_every_length(text, length: int) -> None:
    task = task_of(f"masked_text(path='{text.path}')")
    model = Answering(lambda ids: opinion(258).expand(*ids.shape, 258))
    # 300 asked at 15 % are 2,000 read: 41 blocks of 48 between the first byte and the last.
    blocks = [i * (len(task.text.test) - 49) // 40 for i in range(41)]
    assert held_out_bits(model, task, length, total=300, longest=48) == pytest.approx(
        bits_of_windows(task, blocks, 48), rel=1e-6
    )


@pytest.mark.parametrize("length", [16, 24, 48])
def test_masked_bytes_are_measured_in_the_middle_of_a_sliding_window(text, length: int, monkeypatch) -> None:
    monkeypatch.setattr(evaluate, "SLIDING_BYTES", 60)
    task = task_of(f"masked_text(path='{text.path}')")
    model = Answering(lambda ids: opinion(258).expand(*ids.shape, 258))
    # 400 bytes are read, 8 at a time; the longest window has 20 on each side of them.
    ends = [i * (len(task.text.test) - 48) // 49 for i in range(50)]
    assert sliding_bits(model, task, length, stride=8, longest=48) == pytest.approx(
        bits_of_windows(task, ends, 48, 20, 28), rel=1e-6
    )


def test_the_context_of_a_masked_byte_is_what_lies_beyond_its_neighbours(text) -> None:
    task = task_of(f"masked_text(path='{text.path}')")
    lengths = []

    def logits_for(ids: Tensor) -> Tensor:
        lengths.append(ids.shape[1] - 1)
        return torch.zeros(*ids.shape, 258)

    assert context_gain(Answering(logits_for), task, 16) == pytest.approx(0, abs=1e-9) and set(lengths) == {3, 16}


def test_tokens_are_measured_in_bits_of_the_bytes_that_they_stand_for(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed; it comes with the hf extra")
    vocab = {letter: i for i, letter in enumerate("abcd ")} | {"ab": 5, "ab ": 6, "cd": 7}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, [("a", "b"), ("ab", " "), ("c", "d")]))
    tokenizer.decoder = tokenizers.decoders.Fuse()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    letters = torch.randint(0, 5, (30_000,), generator=torch.Generator().manual_seed(5))
    (tmp_path / "letters.txt").write_text("".join("abcd "[i] for i in letters))
    task = task_of(f"text(path='{tmp_path / 'letters.txt'}', tokenizer='{tmp_path / 'tokenizer.json'}')")
    model = Answering(lambda ids: opinion(9).expand(*ids.shape, 9))
    assert 1.05 < len(task.text.text.test) / len(task.text.test) < 2
    blocks = [i * (len(task.text.test) - 33) // 9 for i in range(10)]
    assert held_out_bits(model, task, 32, total=320) == pytest.approx(bits_of_windows(task, blocks, 32), rel=1e-6)
    with pytest.raises(
        ValueError, match=r"^the held-out text has 2,\d\d\d tokens, too few for a window of 2900; add text"
    ):
        held_out_bits(model, task, 2900, total=320)
