"""The promises that every task must keep, so that its scores mean something.

A promise is a function whose name is the sentence. It takes a task and raises AssertionError where the sentence is
false, or NoMeaning where it does not apply to the task.
"""

import ast
import inspect
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields
from typing import Any, TypeAlias

import torch
from torch import Generator, Tensor

from posenc.catalogue import ENCODINGS
from posenc.foreign import code
from posenc.lab.experiments.experiment import Experiment
from posenc.lab.experiments.recipes import recipe, recipe_length
from posenc.lab.tasks import READERS, TASKS, Batch, Task, task_of
from posenc.model.seeding import local_seed
from posenc.specs import syntax
from posenc.verdicts import Checker, NoMeaning, Verdict, expect, promise_name, sentence_of

ROWS = 2000
"""The number of sequences for a share: half of them fit the best guess, half test it."""

ALPHA = 1e-6
"""The significance level: some thousand tests of a correct task find no fault."""

MIN_COMPARISONS = 10
"""The minimum number of equal contexts for a test of equal answers."""

Row: TypeAlias = tuple[Any, ...]


def batch_of(task: Task, length: int, rows: int, seed: int = 0) -> Batch:
    return task.batch(length, rows, Generator().manual_seed(seed))


def a_batch_can_be_made(task: Task) -> None:
    """There are lengths to train on, and a batch of the longest of them.

    If this fails, nearly every other promise fails with a misleading message.
    """
    lengths = list(task.lengths(recipe_length(task)))
    expect(bool(lengths), f"lengths({recipe_length(task)}) is empty, so there is nothing to train on")
    batch = batch_of(task, lengths[-1], 2)
    gave = f"batch({lengths[-1]}, 2, generator) gave {type(batch).__name__}"
    expect(isinstance(batch, Batch), f"{gave}, expected a Batch")


def batches_are_as_promised(task: Task) -> None:
    """Ids and targets are whole numbers below the vocabulary, and some of them count in every sequence."""
    expect(task.reads in READERS, f"reads is {task.reads!r}, expected one of {', '.join(READERS)}")
    lengths = task.lengths(recipe_length(task))
    for length, rows in ((lengths[0], 1), (lengths[-1], 3)):
        batch, name = batch_of(task, length, rows), f"of batch({length}, {rows}, generator)"
        tokens = tuple(batch.ids.shape)[1:]
        expect_ids(f"ids {name}", batch.ids, (rows, *tokens[:1]), task.vocab)
        expect_ids(f"targets {name}", batch.targets, tuple(batch.ids.shape), task.vocab)
        answer = batch.answer
        expect(
            answer.dtype == torch.bool and tuple(answer.shape) in (tokens, (rows, *tokens)),
            f"answer {name} has shape {list(answer.shape)} and {answer.dtype}, "
            f"expected {list(tokens)} or {[rows, *tokens]} and torch.bool",
        )
        expect(bool(answer.any(-1).all()), f"answer {name} has a sequence in which nothing counts")
        axes, count = (1, tokens[0]) if batch.positions is None else (batch.positions.axes, batch.positions.tokens)
        expect(
            (axes, count) == (task.axes, tokens[0]),
            f"positions {name} place {count} tokens by {axes} coordinates, expected {tokens[0]} by axes={task.axes}",
        )
        expect(
            (batch.source is not None) == (task.reads == "encoder_decoder"),
            f"a {task.reads} was given {'no ' * (batch.source is None)}source {name}; an encoder_decoder reads one",
        )
        if batch.source is not None:
            expect_ids(f"source {name}", batch.source, (rows, *tuple(batch.source.shape)[1:2]), task.vocab)


def expect_ids(name: str, ids: Tensor, shape: Sequence[int], vocab: int) -> None:
    """Raise AssertionError unless these are token ids of a shape [rows, tokens]."""
    expect(
        tuple(ids.shape) == tuple(shape) and ids.dim() == 2 and ids.dtype == torch.int64,
        f"{name}: shape {list(ids.shape)} and {ids.dtype}, expected [rows, tokens] and torch.int64",
    )
    lowest, highest = int(ids.min()), int(ids.max())
    bounds = f"expected 0 to {vocab - 1}, which vocab={vocab} allows"
    expect(0 <= lowest and highest < vocab, f"{name}: ids from {lowest} to {highest}, {bounds}")


def lengths_are_as_said(task: Task) -> None:
    """Each trained and tested length has as many tokens as said. A length that cannot be made is refused."""
    longest = recipe_length(task)
    lengths = list(task.lengths(longest))
    expect(
        lengths == sorted(set(lengths)) and lengths[0] >= 1 and lengths[-1] <= longest,
        f"lengths({longest}) are {lengths}, expected different ones from 1 to {longest}, shortest first",
    )
    multiples = f"beyond is {task.beyond}, expected multiples of the trained length above 1"
    expect(min(task.beyond, default=0) > 1, multiples)
    for length in lengths:
        expect_token_count(task, length)
    for factor in (*task.beyond, 2):
        try:
            expect_token_count(task, round(longest * factor))
        except ValueError as error:
            if not code.is_for_user(error):
                raise


def expect_token_count(task: Task, length: int) -> None:
    tokens, count = batch_of(task, length, 1).ids.shape[1], task.tokens(length)
    expect(tokens == count, f"a sequence of length {length} has {tokens} tokens, and tokens({length}) says {count}")


def a_seed_decides_everything(task: Task) -> None:
    """The same seed gives the same batch, whatever was drawn before, and another seed another batch."""
    length = task.lengths(recipe_length(task))[-1]
    first, same_seed, other_seed = (tensors(batch_of(task, length, 8, seed)) for seed in (1, 1, 2))
    expect(first == same_seed, f"two batches of length {length} from generators with the same seed differ")
    expect(first != other_seed, f"two batches of length {length} from generators with different seeds are the same")


def nothing_else_is_drawn_from(task: Task) -> None:
    """A batch neither reads nor advances the random state of the process."""
    length, batches = task.lengths(recipe_length(task))[-1], []
    for seed in (1, 2):
        with local_seed(seed):
            torch_state, state = torch.get_rng_state(), random.getstate()
            batches.append(tensors(batch_of(task, length, 8)))
            is_unchanged = torch.equal(torch_state, torch.get_rng_state()) and state == random.getstate()
            expect(is_unchanged, "a batch draws from the random numbers of the process, and not from the generator")
    alike = batches[0] == batches[1]
    expect(alike, "a batch depends on the seed of the process, and not on the generator alone")


def tensors(batch: Batch) -> list[Any]:
    """The content of a batch as lists, for comparisons."""
    places = None if batch.positions is None else [batch.positions.coords.tolist(), batch.positions.order.tolist()]
    source = None if batch.source is None else batch.source.tolist()
    return [batch.ids.tolist(), batch.targets.tolist(), batch.answer.tolist(), places, source]


def the_answer_follows_from_what_is_seen(task: Task) -> None:
    """Equal contexts have equal answers: the tokens up to there for a decoder, all for an encoder."""
    with_exact_answers(task)
    comparisons = 0
    for length in task.lengths(recipe_length(task))[:4]:
        answers: dict[Row, int] = {}
        for ids, targets, counts, *context in rows_of(batch_of(task, length, ROWS, length)):
            for place in (i for i, is_counted in enumerate(counts) if is_counted):
                # An encoder sees the whole sequence, so the place is part of the key.
                visible = (ids, place, *context) if task.reads == "encoder" else (ids[: place + 1], *context)
                first_answer = answers.setdefault(visible, targets[place])
                if first_answer != targets[place]:
                    raise AssertionError(
                        f"in two sequences of length {length} in which the same is seen up to token {place}, "
                        f"{task.decode(list(ids if task.reads == 'encoder' else ids[: place + 1]))!r}, "
                        f"the answers are {task.decode([first_answer])!r} and {task.decode([targets[place]])!r}"
                    )
                comparisons += 1
        comparisons -= len(answers)
    if comparisons < MIN_COMPARISONS:
        raise NoMeaning(f"no two sequences among {ROWS} are alike; hold it to this with fewer symbols")


def the_answer_does_not_stand_there(task: Task) -> None:
    """The token at the place of an answer does not reveal it."""
    length = task.lengths(recipe_length(task))[-1]
    rows = [(ids, targets, counts) for ids, targets, counts, *_ in rows_of(batch_of(task, length, ROWS, 1))]
    copy_count = sum(all(a == b for a, b, counts in zip(*row, strict=True) if counts) for row in rows)
    share = f"in {copy_count} of {len(rows)} sequences of length {length}"
    expect(copy_count < 0.99 * len(rows), f"{share}, each id equals its target")
    if task.reads != "encoder" or task.in_bits:
        # A decoder's token may reveal the next one, where one follows another in an answer.
        return
    half = len(rows) // 2
    answer_counts: dict[tuple[int, int], Counter[int]] = {}
    for ids, targets, counts in rows[:half]:
        for place in (i for i, is_counted in enumerate(counts) if is_counted):
            answer_counts.setdefault((place, ids[place]), Counter())[targets[place]] += 1
    guess = {key: counter.most_common(1)[0][0] for key, counter in answer_counts.items()}
    right = sum(
        all(guess.get((place, ids[place])) == targets[place] for place, is_counted in enumerate(counts) if is_counted)
        for ids, targets, counts in rows[half:]
    )
    expect(
        binomial_tail(right, half, task.chance(length)) >= ALPHA,
        f"a guess from one token alone answers {right} of {half} sequences of length {length}, "
        f"where chance({length}) is {task.chance(length):.3g}",
    )


def chance_is_what_a_guess_answers(task: Task) -> None:
    """The best guess without the prompt answers as many sequences as `chance` says, and not nearly all."""
    with_exact_answers(task)
    lengths = task.lengths(recipe_length(task))
    for length in sorted({*lengths[:3], lengths[-1]}):
        chance, (right, trials) = task.chance(length), best_guess(batch_of(task, length, ROWS, length))
        words = f"chance({length}) is {chance:.3g}, and the best guess without a prompt answers {right} of {trials}"
        tails = binomial_tail(right, trials, chance), binomial_tail(trials - right, trials, 1 - chance)
        expect(min(tails) >= ALPHA, words)
    expect(chance < 0.9, f"{words}, so there is hardly anything to learn")


def best_guess(batch: Batch) -> tuple[int, int]:
    """Fit the best guess on half of the sequences; return (right, tested) on the other half.

    It may depend on the positions of tokens, not on the tokens.
    """
    rows = [
        (tuple(target if is_counted else None for target, is_counted in zip(targets, counts, strict=True)), places)
        for _, targets, counts, _, places in rows_of(batch)
    ]
    half = len(rows) // 2
    answers_by_places: dict[Row, Counter[Row]] = {}
    by_place: list[Counter[int]] = [Counter() for _ in rows[0][0]]
    for answer, places in rows[:half]:
        answers_by_places.setdefault(places, Counter())[answer] += 1
        for place, token in enumerate(answer):
            if token is not None:
                by_place[place][token] += 1
    guess_by_place = [counter.most_common(1)[0][0] if counter else None for counter in by_place]
    guess_by_places = {key: counter.most_common(1)[0][0] for key, counter in answers_by_places.items()}
    # Chosen on the first half, because the best of many guesses on the second half would be biased.
    common = [token for token, _ in sum(by_place, Counter()).most_common(20)]
    constant = max(common, key=lambda token: sum(is_right(answer, [token]) for answer, _ in rows[:half]))
    guesses = [
        sum(guess_by_places.get(places) == answer for answer, places in rows[half:]),
        sum(is_right(answer, guess_by_place) for answer, _ in rows[half:]),
        sum(is_right(answer, [constant]) for answer, _ in rows[half:]),
    ]
    return max(guesses), len(rows) - half


def is_right(answer: Row, guess: Sequence[int | None]) -> bool:
    """Whether a guess is right at all places that count. It has a token for each place, or one for all."""
    tokens = guess if len(guess) == len(answer) else [*guess] * len(answer)
    return all(token is None or token == token_guess for token, token_guess in zip(answer, tokens, strict=True))


def binomial_tail(right: int, trials: int, share: float) -> float:
    """The probability of `right` or more successes in `trials`, each with probability `share`."""
    share = min(max(share, 0.0), 1.0)
    return math.fsum(math.comb(trials, n) * share**n * (1 - share) ** (trials - n) for n in range(right, trials + 1))


def a_prompt_goes_to_ids_and_back(task: Task) -> None:
    """A prompt has the same ids after decode and encode. On text, it may have other ids of the same text."""
    if type(task).encode is Task.encode:
        raise NoMeaning("it has no prompts that a person can write")
    length = task.lengths(recipe_length(task))[-1]
    for ids, _, counts, source, _ in rows_of(batch_of(task, length, 16)):
        prompt = list(source or (ids if task.reads == "encoder" else ids[: counts.index(True) + 1]))
        # encode adds the token that begins every sequence.
        texts = [task.decode(prompt[1:]), task.decode(prompt)]
        again = [encode_or_none(task, text) for text in texts]
        same_text = task.in_bits and again[0] and task.decode(again[0][1:]) == texts[0]
        words = f"the prompt {prompt} is written {texts[0]!r}, which encode reads as {again[0]}"
        expect(prompt in again or bool(same_text), words)


def encode_or_none(task: Task, text: str) -> list[int] | None:
    """The ids of a text, or None where encode refuses it."""
    try:
        return task.encode(text)
    except ValueError:
        return None


def the_recipe_can_be_followed(task: Task) -> None:
    """The recipe names settings of an Experiment, with valid values."""
    names = [f.name for f in fields(Experiment)]
    unknown_names = [name for name in task.recipe if name not in names]
    expect(not unknown_names, f"the recipe names {', '.join(unknown_names)}; an Experiment has: {', '.join(names)}")
    recipe(task_spec(task), "none")


def the_spec_round_trips(task: Task) -> None:
    """Its repr is the spec that makes it again."""
    again = task_of(task_spec(task))
    expect(again == task, f"{task!r} read as a spec gives {again!r}, which is another task")


def task_spec(task: Task) -> str:
    """The spec of a task."""
    name = type(task).spec_name
    if not TASKS.knows(name) and not code.is_class_path(name.strip("'")):
        raise NoMeaning("its class was not named by a spec; hold path/to/file.py:Class to this")
    return repr(task)


def has_a_source(task: Task) -> None:
    """The docstring has a source, and begins with a sentence about the idea."""
    name, text = type(task).__name__, inspect.getdoc(type(task)) or ""
    expect("Source:" in text, f"the docstring of {name} has no 'Source:'")
    expect(len(text.splitlines()[0]) >= 20, f"the docstring of {name} does not begin with a sentence about the idea")


def with_exact_answers(task: Task) -> None:
    if task.in_bits:
        raise NoMeaning("it is measured in bits of text, in which much does not follow from what was before")


def rows_of(batch: Batch) -> Iterator[tuple[Row, Row, Row, Row, Row]]:
    """Yield ids, targets, answer mask, source and positions of each sequence; () for a missing one."""
    rows, at = batch.ids.shape[0], batch.positions
    empty = batch.ids.new_empty(rows, 0)
    facts = [] if at is None else [fact for fact in (at.coords.flatten(1), at.order, at.document) if fact is not None]
    # Positions that all sequences share carry no information.
    places = torch.cat([empty, *(fact for fact in facts if fact.shape[0] == rows)], 1)
    source = empty if batch.source is None else batch.source
    sides = (batch.ids, batch.targets, batch.answer.expand(rows, -1), source, places)
    yield from zip(*(map(tuple, side.tolist()) for side in sides), strict=True)


PROMISES: dict[Callable[[Task], None], str] = {
    a_batch_can_be_made: "posenc.lab.tasks.Task lists what a task needs; the other promises wait for this",
    batches_are_as_promised: "give ids, targets and answer as posenc.lab.tasks.Batch describes them",
    lengths_are_as_said: "make tokens(length) and lengths(longest) agree with batch(length, ...)",
    a_seed_decides_everything: "draw everything that differs between sequences from the generator, and nothing else",
    nothing_else_is_drawn_from: "give generator=generator to whatever draws in torch, and draw nowhere else",
    the_answer_follows_from_what_is_seen: "count in `answer` only what the tokens that the model sees decide",
    the_answer_does_not_stand_there: "move targets one token on (Batch.of_next), or mask the targets in ids",
    chance_is_what_a_guess_answers: "let chance(length) be the share that the best guess without the prompt answers",
    a_prompt_goes_to_ids_and_back: "let encode read what decode writes, after the token that begins every sequence",
    the_recipe_can_be_followed: "name settings of posenc.lab.experiments.experiment.Experiment, "
    "with values that it takes",
    the_spec_round_trips: "keep options as fields of a frozen dataclass, with defaults",
    has_a_source: "give the class a docstring with a sentence about the idea and 'Source: ...'",
}
"""Every promise, with the advice for one that is broken."""


def names_a_task(spec: str) -> bool:
    """Whether a spec names a task: one that ships, or a class in the user's file.

    >>> names_a_task("copy(symbols=10)"), names_a_task("rotary + alibi")
    (True, False)
    """
    tree = syntax.tree_of(spec, remedy=ENCODINGS.remedy)
    name = syntax.name_of(tree.func if isinstance(tree, ast.Call) else tree)
    try:
        return bool(name) and issubclass(TASKS.find(name), Task)
    except ValueError:
        return False


def check(task: Task | str, promises: Iterable[str | Callable[..., None]] | None = None) -> list[Verdict]:
    """Test a task's promises (default: all) and return the verdicts, also of broken ones.

    promises  promises or their names

    Where no batch can be made, that is the only verdict.

    Raises ValueError for an unknown promise, and for what is no task.

    >>> [verdict.word for verdict in check("copy", ["has_a_source", "a_seed_decides_everything"])]
    ['kept', 'kept']
    """
    return list(verdicts(task, promises))


def verdicts(
    task: Task | str,
    promises: Iterable[str | Callable[..., None]] | None = None,
    during: Callable[[str], AbstractContextManager[Any]] = nullcontext,
) -> Iterator[Verdict]:
    """Yield the verdicts of `check` one by one.

    during  returns a context for the test of a promise, by its name
    """
    promise_by_name = {promise_name(promise): promise for promise in PROMISES}
    selection = PROMISES if promises is None else [sentence_of(promise, promise_by_name) for promise in promises]
    target = task_of(task)
    name = task if isinstance(task, str) else repr(task)
    advice = {promise_name(promise): words for promise, words in PROMISES.items()}
    return Checker(target, name, {type(target).__module__}, advice).verdicts(a_batch_can_be_made, selection, during)
