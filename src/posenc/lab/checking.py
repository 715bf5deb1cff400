"""The promises that every task owes, so that what is measured with it means something.

A promise is a function whose name is the sentence. It takes a task and raises AssertionError where the sentence is not
true, or NoMeaning where it says nothing about this task.
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
from posenc.lab.experiments.recipes import recipe, trained_length
from posenc.lab.tasks import READERS, TASKS, Batch, Task, task_of
from posenc.model.seeding import seeded
from posenc.specs import syntax
from posenc.verdicts import Held, NoMeaning, Verdict, expect, name_of, sentence_of

ROWS = 2000
"""How many sequences a share is measured on: half of them to find the best guess, half to try it."""

UNLIKELY = 1e-6
"""A share that is so unlikely by chance is none: with it, some thousand tries find nothing wrong in what is right."""

ALIKE = 10
"""How often sequences have to look alike before equal answers say something."""

Row: TypeAlias = tuple[Any, ...]


def batch_of(task: Task, length: int, rows: int, seed: int = 0) -> Batch:
    return task.batch(length, rows, Generator().manual_seed(seed))


def a_batch_can_be_made(task: Task) -> None:
    """There are lengths to train on, and a batch of the longest of them.

    What breaks it would break nearly every other promise, each with words that lead elsewhere.
    """
    lengths = list(task.lengths(trained_length(task)))
    expect(bool(lengths), f"lengths({trained_length(task)}) is empty, so there is nothing to train on")
    batch = batch_of(task, lengths[-1], 2)
    gave = f"batch({lengths[-1]}, 2, generator) gave {type(batch).__name__}"
    expect(isinstance(batch, Batch), f"{gave}, expected a Batch")


def batches_are_as_promised(task: Task) -> None:
    """Ids and targets are whole numbers below the vocabulary, and some of them count in every sequence."""
    expect(task.reads in READERS, f"reads is {task.reads!r}, expected one of {', '.join(READERS)}")
    lengths = task.lengths(trained_length(task))
    for length, rows in ((lengths[0], 1), (lengths[-1], 3)):
        batch, name = batch_of(task, length, rows), f"of batch({length}, {rows}, generator)"
        tokens = tuple(batch.ids.shape)[1:]
        of_ids(f"ids {name}", batch.ids, (rows, *tokens[:1]), task.vocab)
        of_ids(f"targets {name}", batch.targets, tuple(batch.ids.shape), task.vocab)
        answer = batch.answer
        expect(
            answer.dtype == torch.bool and tuple(answer.shape) in (tokens, (rows, *tokens)),
            f"answer {name} has shape {list(answer.shape)} and {answer.dtype}, "
            f"expected {list(tokens)} or {[rows, *tokens]} and torch.bool",
        )
        expect(bool(answer.any(-1).all()), f"answer {name} has a sequence in which nothing counts")
        axes, placed = (1, tokens[0]) if batch.positions is None else (batch.positions.axes, batch.positions.tokens)
        expect(
            (axes, placed) == (task.axes, tokens[0]),
            f"positions {name} place {placed} tokens by {axes} coordinates, expected {tokens[0]} by axes={task.axes}",
        )
        expect(
            (batch.source is not None) == (task.reads == "encoder_decoder"),
            f"a {task.reads} was given {'no ' * (batch.source is None)}source {name}; an encoder_decoder reads one",
        )
        if batch.source is not None:
            of_ids(f"source {name}", batch.source, (rows, *tuple(batch.source.shape)[1:2]), task.vocab)


def of_ids(name: str, ids: Tensor, shape: Sequence[int], vocab: int) -> None:
    """Raises AssertionError unless these are token ids of a shape [rows, tokens]."""
    expect(
        tuple(ids.shape) == tuple(shape) and ids.dim() == 2 and ids.dtype == torch.int64,
        f"{name}: shape {list(ids.shape)} and {ids.dtype}, expected [rows, tokens] and torch.int64",
    )
    least, most = int(ids.min()), int(ids.max())
    bounds = f"expected 0 to {vocab - 1}, which vocab={vocab} allows"
    expect(0 <= least and most < vocab, f"{name}: ids from {least} to {most}, {bounds}")


def lengths_are_as_said(task: Task) -> None:
    """Each length has as many tokens as said, trained and tested ones; one that cannot be made is refused."""
    longest = trained_length(task)
    lengths = list(task.lengths(longest))
    expect(
        lengths == sorted(set(lengths)) and lengths[0] >= 1 and lengths[-1] <= longest,
        f"lengths({longest}) are {lengths}, expected different ones from 1 to {longest}, shortest first",
    )
    multiples = f"beyond is {task.beyond}, expected multiples of the trained length above 1"
    expect(min(task.beyond, default=0) > 1, multiples)
    for length in lengths:
        as_said(task, length)
    for factor in (*task.beyond, 2):
        try:
            as_said(task, round(longest * factor))
        except ValueError as error:
            if not code.is_meant(error):
                raise


def as_said(task: Task, length: int) -> None:
    tokens, count = batch_of(task, length, 1).ids.shape[1], task.tokens(length)
    expect(tokens == count, f"a sequence of length {length} has {tokens} tokens, and tokens({length}) says {count}")


def a_seed_decides_everything(task: Task) -> None:
    """The same generator gives the same batch, whatever was made before, and another one another batch."""
    length = task.lengths(trained_length(task))[-1]
    first, again, other = (tensors(batch_of(task, length, 8, seed)) for seed in (1, 1, 2))
    expect(first == again, f"two batches of length {length} from generators with the same seed differ")
    expect(first != other, f"two batches of length {length} from generators with different seeds are the same")


def nothing_else_is_drawn_from(task: Task) -> None:
    """The random numbers of the process are neither used nor moved on."""
    length, batches = task.lengths(trained_length(task))[-1], []
    for seed in (1, 2):
        with seeded(seed):
            torch_state, state = torch.get_rng_state(), random.getstate()
            batches.append(tensors(batch_of(task, length, 8)))
            unmoved = torch.equal(torch_state, torch.get_rng_state()) and state == random.getstate()
            expect(unmoved, "a batch draws from the random numbers of the process, and not from the generator")
    alike = batches[0] == batches[1]
    expect(alike, "a batch depends on the seed of the process, and not on the generator alone")


def tensors(batch: Batch) -> list[Any]:
    """All that a batch holds, as lists, to be compared."""
    places = None if batch.positions is None else [batch.positions.coords.tolist(), batch.positions.order.tolist()]
    source = None if batch.source is None else batch.source.tolist()
    return [batch.ids.tolist(), batch.targets.tolist(), batch.answer.tolist(), places, source]


def the_answer_follows_from_what_is_seen(task: Task) -> None:
    """Whoever sees the same is to say the same: a decoder the tokens up to there, an encoder all of them."""
    with_exact_answers(task)
    met = 0
    for length in task.lengths(trained_length(task))[:4]:
        known: dict[Row, int] = {}
        for ids, targets, counts, *besides in rows_of(batch_of(task, length, ROWS, length)):
            for place in (i for i, one in enumerate(counts) if one):
                # A place in a sequence that is seen whole has to be said beside it.
                seen = (ids, place, *besides) if task.reads == "encoder" else (ids[: place + 1], *besides)
                before = known.setdefault(seen, targets[place])
                if before != targets[place]:
                    raise AssertionError(
                        f"in two sequences of length {length} in which the same is seen up to token {place}, "
                        f"{task.decode(list(ids if task.reads == 'encoder' else ids[: place + 1]))!r}, "
                        f"the answers are {task.decode([before])!r} and {task.decode([targets[place]])!r}"
                    )
                met += 1
        met -= len(known)
    if met < ALIKE:
        raise NoMeaning(f"no two sequences among {ROWS} are alike; hold it to this with fewer symbols")


def the_answer_does_not_stand_there(task: Task) -> None:
    """The token at which something is to be said does not tell it."""
    length = task.lengths(trained_length(task))[-1]
    rows = [(ids, targets, counts) for ids, targets, counts, *_ in rows_of(batch_of(task, length, ROWS, 1))]
    copied = sum(all(a == b for a, b, counts in zip(*row, strict=True) if counts) for row in rows)
    share = f"in {copied} of {len(rows)} sequences of length {length}"
    expect(copied < 0.99 * len(rows), f"{share}, each id is what is to be said")
    if task.reads != "encoder" or task.in_bits:
        # A decoder may say of a token what it says by itself, as that one follows another in an answer.
        return
    half = len(rows) // 2
    told: dict[tuple[int, int], Counter[int]] = {}
    for ids, targets, counts in rows[:half]:
        for place in (i for i, one in enumerate(counts) if one):
            told.setdefault((place, ids[place]), Counter())[targets[place]] += 1
    guess = {key: found.most_common(1)[0][0] for key, found in told.items()}
    right = sum(
        all(guess.get((place, ids[place])) == targets[place] for place, one in enumerate(counts) if one)
        for ids, targets, counts in rows[half:]
    )
    expect(
        at_least(right, half, task.chance(length)) >= UNLIKELY,
        f"whoever sees one token alone answers {right} of {half} sequences of length {length}, "
        f"where chance({length}) is {task.chance(length):.3g}",
    )


def chance_is_what_a_guess_answers(task: Task) -> None:
    """Whoever knows the task and not the prompt answers as many sequences as `chance` says, and not nearly all."""
    with_exact_answers(task)
    lengths = task.lengths(trained_length(task))
    for length in sorted({*lengths[:3], lengths[-1]}):
        chance, (right, tried) = task.chance(length), best_guess(batch_of(task, length, ROWS, length))
        words = f"chance({length}) is {chance:.3g}, and the best guess without a prompt answers {right} of {tried}"
        expect(min(at_least(right, tried, chance), at_least(tried - right, tried, 1 - chance)) >= UNLIKELY, words)
    expect(chance < 0.9, f"{words}, so there is hardly anything to learn")


def best_guess(batch: Batch) -> tuple[int, int]:
    """How many sequences the best guess answers, and of how many: one half suggests it, the other half tries it.

    It may depend on where the tokens stand, and not on what they are.
    """
    rows = [
        (tuple(target if one else None for target, one in zip(targets, counts, strict=True)), places)
        for _, targets, counts, _, places in rows_of(batch)
    ]
    half = len(rows) // 2
    whole: dict[Row, Counter[Row]] = {}
    by_place: list[Counter[int]] = [Counter() for _ in rows[0][0]]
    for answer, places in rows[:half]:
        whole.setdefault(places, Counter())[answer] += 1
        for place, token in enumerate(answer):
            if token is not None:
                by_place[place][token] += 1
    each = [found.most_common(1)[0][0] if found else None for found in by_place]
    first = {key: found.most_common(1)[0][0] for key, found in whole.items()}
    # Chosen by the first half, or else a guess among many would do well in the second half by luck.
    common = [token for token, _ in sum(by_place, Counter()).most_common(20)]
    constant = max(common, key=lambda token: sum(says(answer, [token]) for answer, _ in rows[:half]))
    guesses = [
        sum(first.get(places) == answer for answer, places in rows[half:]),
        sum(says(answer, each) for answer, _ in rows[half:]),
        sum(says(answer, [constant]) for answer, _ in rows[half:]),
    ]
    return max(guesses), len(rows) - half


def says(answer: Row, guess: Sequence[int | None]) -> bool:
    """Whether a guess, a token for each place or one for all, is right wherever something counts."""
    each = guess if len(guess) == len(answer) else [*guess] * len(answer)
    return all(token is None or token == one for token, one in zip(answer, each, strict=True))


def at_least(right: int, tried: int, share: float) -> float:
    """The probability of so many right answers or more, where each is right with a probability."""
    share = min(max(share, 0.0), 1.0)
    return math.fsum(math.comb(tried, n) * share**n * (1 - share) ** (tried - n) for n in range(right, tried + 1))


def a_prompt_goes_to_ids_and_back(task: Task) -> None:
    """What decode writes of a prompt, encode reads as the same ids; in text, as ids of the same text."""
    if type(task).encode is Task.encode:
        raise NoMeaning("it has no prompts that a person can write")
    length = task.lengths(trained_length(task))[-1]
    for ids, _, counts, source, _ in rows_of(batch_of(task, length, 16)):
        prompt = list(source or (ids if task.reads == "encoder" else ids[: counts.index(True) + 1]))
        # What begins every sequence, encode adds by itself.
        texts = [task.decode(prompt[1:]), task.decode(prompt)]
        again = [encoded(task, text) for text in texts]
        same_text = task.in_bits and again[0] and task.decode(again[0][1:]) == texts[0]
        words = f"the prompt {prompt} is written {texts[0]!r}, which encode reads as {again[0]}"
        expect(prompt in again or bool(same_text), words)


def encoded(task: Task, text: str) -> list[int] | None:
    """The ids of a text, or nothing where it is refused."""
    try:
        return task.encode(text)
    except ValueError:
        return None


def the_recipe_can_be_followed(task: Task) -> None:
    """The recipe names settings of an Experiment, with values that it takes."""
    known = [one.name for one in fields(Experiment)]
    unknown = [name for name in task.recipe if name not in known]
    expect(not unknown, f"the recipe names {', '.join(unknown)}; an Experiment has: {', '.join(known)}")
    recipe(spec_of(task), "none")


def the_spec_round_trips(task: Task) -> None:
    """Its repr is the spec that makes it again."""
    again = task_of(spec_of(task))
    expect(again == task, f"{task!r} read as a spec gives {again!r}, which is another task")


def spec_of(task: Task) -> str:
    """How a spec names a task."""
    name = type(task).spec_name
    if not TASKS.knows(name) and not code.is_own(name.strip("'")):
        raise NoMeaning("its class was not named by a spec; hold path/to/file.py:Class to this")
    return repr(task)


def has_a_source(task: Task) -> None:
    """It says where it comes from, and in one sentence what it is."""
    name, text = type(task).__name__, inspect.getdoc(type(task)) or ""
    expect("Source:" in text, f"the docstring of {name} has no 'Source:'")
    expect(len(text.splitlines()[0]) >= 20, f"the docstring of {name} does not begin with a sentence about the idea")


def with_exact_answers(task: Task) -> None:
    if task.in_bits:
        raise NoMeaning("it is measured in bits of text, in which much does not follow from what was before")


def rows_of(batch: Batch) -> Iterator[tuple[Row, Row, Row, Row, Row]]:
    """Of each sequence the ids, the targets, what counts, the source, and where tokens stand; () for what is not."""
    rows, at = batch.ids.shape[0], batch.positions
    nothing = batch.ids.new_empty(rows, 0)
    facts = [] if at is None else [one for one in (at.coords.flatten(1), at.order, at.document) if one is not None]
    # What is the same for all sequences tells nothing of any.
    places = torch.cat([nothing, *(one for one in facts if one.shape[0] == rows)], 1)
    source = nothing if batch.source is None else batch.source
    sides = (batch.ids, batch.targets, batch.answer.expand(rows, -1), source, places)
    yield from zip(*(map(tuple, side.tolist()) for side in sides), strict=True)


PROMISES: dict[Callable[[Task], None], str] = {
    a_batch_can_be_made: "posenc.lab.tasks.Task says what a task has to have; the other promises wait for this",
    batches_are_as_promised: "give ids, targets and answer as posenc.lab.tasks.Batch describes them",
    lengths_are_as_said: "make tokens(length) and lengths(longest) say what batch(length, ...) does",
    a_seed_decides_everything: "draw everything that differs between sequences from the generator, and nothing else",
    nothing_else_is_drawn_from: "give generator=generator to whatever draws in torch, and draw nowhere else",
    the_answer_follows_from_what_is_seen: "count in `answer` only what the tokens that the model sees decide",
    the_answer_does_not_stand_there: "move targets one token on (Batch.of_next), or mask in ids what is to be said",
    chance_is_what_a_guess_answers: "let chance(length) be the share that the best guess without the prompt answers",
    a_prompt_goes_to_ids_and_back: "let encode read what decode writes, with what begins every sequence put first",
    the_recipe_can_be_followed: "name settings of posenc.lab.experiments.experiment.Experiment, "
    "with values that it takes",
    the_spec_round_trips: "keep options as fields of a frozen dataclass, with defaults",
    has_a_source: "give the class a docstring with a sentence about the idea and 'Source: ...'",
}
"""All promises, the name of each being the sentence, and what to do about one that is broken."""


def names_a_task(spec: str) -> bool:
    """Whether a spec names a task, and not an encoding: one that ships, or a class in a file of one's own.

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
    """Hold a task to promises (default: all) and say what came out; nothing is raised for a broken one.

    promises  promises or their names

    Where not even a batch can be made, that is the one verdict, whatever was asked for.

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
    """The verdicts of `check`, each as soon as it is known.

    during  gives for the name of a promise a context to be in while it is tried
    """
    known = {name_of(one): one for one in PROMISES}
    chosen = PROMISES if promises is None else [sentence_of(one, known) for one in promises]
    found = task_of(task)
    name = task if isinstance(task, str) else repr(task)
    advice = {name_of(one): words for one, words in PROMISES.items()}
    return Held(found, name, {type(found).__module__}, advice).to_all(a_batch_can_be_made, chosen, during)
