"""The keys of a foreign dictionary: each is read under what it was taken to say, and what is left over is named."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checks import is_number
from posenc.foreign import one_line, quoted, shortened

SPEAKS_OF_POSITION = re.compile(
    r"rope|rotary|rotate|alibi|posit|(?<![a-z])pos(?![a-z])|relative|bucket|yarn|ntk|xpos|theta|sinusoid|longrope|mscale"
    r"|max_seq|seq_?len|max_model_len|context_len|n_ctx|n_positions|window|chunk_size|attn_temperature|attn_scale"
    r"|floor_scale|freq_base|frequenc|inv_freq|freq_factor"
)
"""Keys that have to do with position, whatever else they are called: none of them may be passed over in silence."""


class Ledger:
    """The keys of a foreign dictionary: each is read under what it was taken to say, and what is left over is named.

    given       the dictionary; a value of None counts as absent, as in the files of transformers
    name        where it stands in another: "text_config"
    everything  whether all its keys speak of position, as those of `rope_parameters` do
    file        the names of all keys as the file has them, where a library has given some of them other names

    Ledgers of nested dictionaries write into the same lists as the one that they were opened from.
    Raises CannotRead for a value that is not of the kind that was asked for.

    >>> ledger = Ledger({"rope_theta": 500000, "rope_magic": 3, "vocab_size": 9})
    >>> ledger.number("rope_theta", "base {}")
    500000
    >>> ledger.understood, ledger.unknown()
    ({'rope_theta': 'base 500000'}, {'rope_magic': 3})
    """

    def __init__(
        self,
        given: Mapping[str, Any],
        name: str = "",
        *,
        everything: bool = False,
        inside: "Ledger | None" = None,
        file: Collection[str] = (),
    ) -> None:
        self.given, self.name, self.everything = given, name, everything
        self.taken: set[str] = set()
        self.opened: dict[str, Ledger] = {}
        self.understood: dict[str, str] = {} if inside is None else inside.understood
        self.contradictions: list[str] = [] if inside is None else inside.contradictions
        self.not_covered: list[str] = [] if inside is None else inside.not_covered
        self.file: Collection[str] = file if inside is None else inside.file

    def path(self, key: str) -> str:
        """The name of a key as a person sees it: as the file spells it, with those of the dictionaries around it."""
        path = f"{self.name}.{key}" if self.name else key
        older = (path.replace("rope_parameters", "rope_scaling"), re.sub(r"rope_(parameters|scaling)\.", "", path))
        return next((name for name in (path, *older) if name in self.file), path)

    def has(self, key: str) -> bool:
        """Whether a key has a value; asking does not count as reading."""
        return self.given.get(key) is not None

    def peek(self, key: str, default: Any = None) -> Any:
        """The value of a key, which does not count as reading it."""
        value = self.given.get(key)
        return default if value is None else value

    def take(self, key: str, says: str, default: Any = None) -> Any:
        """The value of a key of any kind, entered as `says`, in which {} stands for the value."""
        self.taken.add(key)
        if not self.has(key):
            return default
        self.understood[self.path(key)] = says.replace("{}", in_words(self.given[key]))
        return self.given[key]

    def number(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a finite number."""
        return self.of_kind(key, says, default, is_number, "a finite number")

    def whole(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a whole number, which a file may write as 8192.0."""
        value = self.of_kind(key, says, default, lambda x: is_number(x) and x == int(x), "a whole number")
        return int(value) if is_number(value) else value

    def size(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a whole number of 1 or more, without which nothing can be read; raises where it is missing."""
        value = self.whole(key, says, default)
        if value is None:
            raise CannotRead(f"{self.path(key)} is missing; it says: {says.replace('{}', 'N')}")
        if value < 1:
            raise CannotRead(f"{self.path(key)} must be 1 or more, got {value}")
        return value

    def flag(self, key: str, says: str, default: Any = None) -> Any:
        """The same for true or false."""
        return self.of_kind(key, says, default, lambda x: isinstance(x, bool), "true or false")

    def word(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a word."""
        return self.of_kind(key, says, default, lambda x: isinstance(x, str), "a word")

    def numbers(self, key: str, says: str, default: Any = None) -> Any:
        """The same for a list of numbers, given as a tuple."""
        wanted = "a list of numbers"
        value = self.of_kind(key, says, default, lambda x: is_list(x) and all(map(is_number, x)), wanted)
        return tuple(value) if is_list(value) else value

    def of_kind(self, key: str, says: str, default: Any, fits: Any, words: str) -> Any:
        if self.has(key) and not fits(self.given[key]):
            raise CannotRead(f"{self.path(key)} must be {words}, got {quoted(self.given[key], 80)}")
        return self.take(key, says, default)

    def first(self, keys: Sequence[str], says: str, default: Any = None, kind: str = "number") -> Any:
        """One thing that goes by several names: the first that is given is followed.

        kind    the method that reads it: "number", "whole", "flag", "word", "numbers" or "take"

        Others that say something else are contradictions.
        """
        found = [(key, getattr(self, kind)(key, says)) for key in keys if self.has(key)]
        for key, value in found[1:]:
            if value != found[0][1]:
                self.contradict(
                    f"{self.path(found[0][0])} is {in_words(found[0][1])} and {self.path(key)} is {in_words(value)}; "
                    f"followed: {self.path(found[0][0])}"
                )
        return found[0][1] if found else default

    def open(self, key: str, *, everything: bool = False) -> "Ledger":
        """The ledger of a nested dictionary; an empty one where there is none."""
        if key not in self.opened:
            within = self.given.get(key)
            if within is not None and not isinstance(within, Mapping):
                raise CannotRead(f"{self.path(key)} must be a dictionary, got {quoted(within, 80)}")
            self.taken.add(key)
            self.opened[key] = Ledger(within or {}, self.path(key), everything=everything, inside=self)
        return self.opened[key]

    def say(self, key: str, words: str) -> None:
        """Enter a key as read, or put other words to one that was read."""
        self.taken.add(key)
        if self.has(key):
            self.understood[self.path(key)] = words

    def contradict(self, sentence: str) -> None:
        """Which keys cannot both be right, and which one was followed."""
        if sentence not in self.contradictions:
            self.contradictions.append(sentence)

    def leave(self, sentence: str) -> None:
        """What the model does about position that no spec says."""
        if sentence not in self.not_covered:
            self.not_covered.append(sentence)

    def unknown(self) -> dict[str, Any]:
        """The keys that speak of position and that nobody has read, with their values, nested ones too."""
        left = dict(unread(self.given, self.name, self.taken, self.everything))
        for within in self.opened.values():
            left |= within.unknown()
        return left


def unread(given: Mapping[str, Any], name: str, taken: set[str], everything: bool) -> Iterator[tuple[str, Any]]:
    for key, value in given.items():
        path = f"{name}.{key}" if name else str(key)
        # A list of nothing says nothing.
        if key in taken or value in (None, []):
            continue
        if isinstance(value, Mapping) and value:
            yield from unread(value, path, set(), everything or bool(SPEAKS_OF_POSITION.search(str(key).lower())))
        elif everything or SPEAKS_OF_POSITION.search(str(key).lower()):
            yield path, value


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def in_words(value: object) -> str:
    """A value as a person reads it: whole floats without their point, long lists by their ends.

    >>> in_words(500000.0), in_words([1.0, 1.5, 2, 3, 4, 5, 6])
    ('500000', '[1, 1.5, ..., 6] (7 entries)')
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]  # type: ignore[index]
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.12g}"
    if is_list(value):
        words = [in_words(one) for one in value]
        if len(words) > 6:
            words = [*words[:2], "...", f"{words[-1]}"]
            return f"[{', '.join(words)}] ({len(value)} entries)"
        return f"[{', '.join(words)}]"
    return shortened(one_line(str(value)))
