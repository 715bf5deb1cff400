"""What is asked of long texts: keys among sentences, chains of values, words that stand often, the place of a mark.

After the tasks of RULER (Hsieh et al. 2024, arXiv:2404.06654, section 3), in sentences of our own, from a seed alone.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from posenc.checkpoints.measures.questions import Draw, Ids, common_start

FILLER = (
    "The tide comes in. ",
    "The tide goes out. ",
    "Boats lie in the harbour. ",
    "A gull sits on the wall. ",
    "It was like this before. ",
)
"""What the texts are made long with, unless a text is given: nothing in it is a number or a key."""

WORDS = tuple(
    "apple arrow baker basket bell bird boat book bottle bridge brush butter button cabin camel candle carpet castle "
    "chair cherry circle clock cloud coat copper corner cotton dance desert doctor dragon drum eagle earth engine "
    "farmer feather fence finger flag flower forest fork garden gate ghost glass goat guitar hammer hat honey horse "
    "house ice island jacket jewel judge jungle key king kitchen kite knife ladder lake lamp leaf lemon letter lion "
    "magnet maple market mirror monkey moon mountain needle nest night ocean olive onion orange oven owl paint palace "
    "paper pencil piano pillow planet pocket queen quilt rabbit radio rain ribbon river rocket rope salt school "
    "shadow silver spoon star stone table tiger tower train tree turtle umbrella uncle valley velvet village violin "
    "wagon water whale window wolf yard yellow zebra zero".split()
)
"""What is asked for and listed: plain words, some for each letter."""

KEYS, ASKED = 8, 4
"""Keys of several, and how many of them, or of the values of one, are asked for."""

NUMBERS = range(10_000, 100_000)

CHAINS, STEPS = 4, 4
"""Chains of assignments, and how many variables each has."""

LISTED, COMMON, FREQUENT = 24, 4, 3
"""Different words in a list, and how many of them stand out."""

PARTS = 8
"""Parts of a text in one of which there is a mark."""


@dataclass(frozen=True)
class Task:
    """One kind of question.

    name   as the user asks for it
    words  what the model is asked
    draw   makes the trials of one text, of random numbers, how deep in the text (0 to 1) each is to lie, the sentences
           that fill the text, and the model's tokens
    most   how many trials one text takes: a model reads what they have in common once
    """

    name: str
    words: str
    draw: Callable[[random.Random, Sequence[float], Sequence[str], Ids], list[Draw]]
    most: int = 1


def hidden(sentences: Sequence[tuple[float, str]], filler: Sequence[str], steps: int) -> list[str]:
    """So many sentences of the filler, with others among them, each behind its share of the text."""
    text = [filler[n % len(filler)] for n in range(steps)]
    out, done = [], 0
    for depth, sentence in sorted(sentences, key=lambda one: one[0]):
        place = round(depth * steps)
        out += [*text[done:place], sentence]
        done = place
    return out + text[done:]


def spread(depth: float, count: int) -> list[float]:
    """So many places, one in each even share of the text, each as deep in its share."""
    return [(n + depth) / count for n in range(count)]


def find_keys(
    draws: random.Random,
    depths: Sequence[float],
    filler: Sequence[str],
    ids: Ids,
    *,
    keys: int,
    values: int,
    asked: int,
) -> list[Draw]:
    """Numbers of keys among the filler: each trial asks for those of `asked` other keys, and each has so many."""
    names = draws.sample(WORDS, keys)
    numbers = draws.sample(NUMBERS, keys * values)
    of = {name: numbers[n * values : (n + 1) * values] for n, name in enumerate(names)}
    wanted = [names[n * asked : (n + 1) * asked] for n in range(len(depths))]
    places = {name: spread(draws.random(), values) for name in names}
    for together, depth in zip(wanted, depths, strict=True):
        if asked == 1:
            places[together[0]] = spread(depth, values)
        else:
            # Keys that are asked for come in an order of their own, one in each share of the text.
            shares = zip(draws.sample(together, asked), spread(depth, asked), strict=True)
            places |= {name: [place] for name, place in shares}
    said = "The number of" if values == 1 else "The next number of"
    sentences = [
        (place, f"{said} {name} is {number}. ")
        for name in names
        for place, number in zip(places[name], of[name], strict=True)
    ]

    def question(together: Sequence[str]) -> str:
        listed = ", ".join(together[:-1]) + f" and {together[-1]}" if asked > 1 else together[0]
        if asked * values == 1:
            return f"\n\nThe number of {listed} is"
        return f"\n\nThe numbers of {listed}, in {'this' if asked > 1 else 'their'} order, are"

    return [
        Draw(
            "Numbers of words are hidden in the following text. Remember them: they are asked for at the end.\n\n",
            partial(hidden, sentences, filler),
            question(together),
            tuple(str(n) for name in together for n in of[name]),
            # One number alone in a text is one among all numbers for whoever does not read it.
            keys * values if keys > 1 else len(NUMBERS),
        )
        for together in wanted
    ]


def follow_variables(draws: random.Random, depths: Sequence[float], filler: Sequence[str], ids: Ids) -> list[Draw]:
    """Chains of assignments: which variables have the number that the first of one of them was given?"""
    names = draws.sample(WORDS, CHAINS * STEPS)
    chains = [names[n * STEPS : (n + 1) * STEPS] for n in range(CHAINS)]
    values = draws.sample(NUMBERS, CHAINS)
    # The first chains are those that are asked for.
    places = [*depths, *(draws.random() for _ in chains[len(depths) :])]
    sentences = []
    for chain, value, depth in zip(chains, values, places, strict=True):
        given = [f"The value of {chain[0]} is {value}. "]
        given += [f"The value of {new} is the value of {old}. " for old, new in pairwise(chain)]
        sentences += list(zip(spread(depth, STEPS), given, strict=True))
    return [
        Draw(
            "Words are given values in the following text. Remember which: they are asked for at the end.\n\n",
            partial(hidden, sentences, filler),
            f"\n\nThe words with the value {value}, in the order of the text, are",
            tuple(chain),
            len(names),
        )
        for chain, value, _ in zip(chains, values, depths, strict=False)
    ]


def listed_words(draws: random.Random, ids: Ids) -> list[str]:
    """Words for a list, of which the model's first token that is not common to all tells which it is.

    Raises ValueError for a tokenizer that has too few such tokens.
    """
    words = draws.sample(WORDS, len(WORDS))
    alike = common_start([ids(f" {word}") for word in words])
    found: dict[int, str] = {}
    for word in words:
        found.setdefault(ids(f" {word}")[alike], word)
    if len(found) < LISTED:
        raise ValueError(
            f"a list of words takes {LISTED} that begin with different tokens, and this tokenizer has {len(found)}; "
            f"leave the tasks with lists out"
        )
    return list(found.values())[:LISTED]


def shuffled(counts: Sequence[tuple[str, int]], seed: float, steps: int) -> list[str]:
    """A list of words in a random order, each as often as said for every step."""
    words = [f" {word}" for word, count in counts for _ in range(count * steps)]
    random.Random(f"{seed} {steps}").shuffle(words)
    return words


def common_words(draws: random.Random, depths: Sequence[float], filler: Sequence[str], ids: Ids) -> list[Draw]:
    """Which words stand often in a list, where the others stand seldom?"""
    words = listed_words(draws, ids)
    counts = [(word, 6 if n < COMMON else 1) for n, word in enumerate(words)]
    return [
        Draw(
            "In the following list some words stand often. Remember which: they are asked for at the end.\n\n",
            partial(shuffled, counts, draws.random()),
            f"\n\nThe {COMMON} words that stand most often in the list are",
            tuple(words[:COMMON]),
            LISTED,
            any_order=True,
        )
    ]


def frequent_words(draws: random.Random, depths: Sequence[float], filler: Sequence[str], ids: Ids) -> list[Draw]:
    """Which words stand most often, in a list where the counts of words fall as 1, 1/2, 1/3, ...?"""
    words = listed_words(draws, ids)
    counts = [(word, max(1, 12 // (n + 1))) for n, word in enumerate(words)]
    return [
        Draw(
            "Count the words of the following list: the most frequent ones are asked for at the end.\n\n",
            partial(shuffled, counts, draws.random()),
            f"\n\nThe {FREQUENT} most frequent words of the list, the most frequent first, are",
            tuple(words[:FREQUENT]),
            LISTED,
        )
    ]


def place_of_mark(draws: random.Random, depths: Sequence[float], filler: Sequence[str], ids: Ids) -> list[Draw]:
    """In which of so many equal parts of a text does a mark stand?"""
    part, within = round(depths[0] * (PARTS - 1)), draws.random()

    def body(steps: int) -> list[str]:
        out: list[str] = []
        for number in range(PARTS):
            mark = [(within, "Here is the mark. ")] if number == part else []
            out += [*hidden(mark, filler, steps), *(["\n\n"] if number < PARTS - 1 else [])]
        return out

    return [
        Draw(
            f"The following text has {PARTS} parts with an empty line between, and in one of them there is a mark.\n\n",
            body,
            "\n\nThe number of the part with the mark is",
            (str(part + 1),),
            PARTS,
        )
    ]


TASKS = {
    task.name: task
    for task in (
        Task(
            "one-key",
            "the number of a word, in a text where nothing else is a number",
            partial(find_keys, keys=1, values=1, asked=1),
        ),
        Task(
            "several-keys",
            f"the number of one of {KEYS} words",
            partial(find_keys, keys=KEYS, values=1, asked=1),
            most=KEYS,
        ),
        Task(
            "several-values",
            f"the {ASKED} numbers of one of {ASKED} words, in the order of the text",
            partial(find_keys, keys=ASKED, values=ASKED, asked=1),
            most=ASKED,
        ),
        Task(
            "several-queries",
            f"the numbers of {ASKED} of {KEYS} words",
            partial(find_keys, keys=KEYS, values=1, asked=ASKED),
            most=KEYS // ASKED,
        ),
        Task(
            "variables",
            f"the {STEPS} words that were given one value, each from the one before",
            follow_variables,
            most=CHAINS,
        ),
        Task("common-words", f"the {COMMON} words of a list that stand six times as often as the others", common_words),
        Task("frequent-words", f"the {FREQUENT} most frequent words of a list, in order", frequent_words),
        Task("mark", f"in which of {PARTS} equal parts of a text a mark stands", place_of_mark),
    )
}
"""The tasks by name."""
