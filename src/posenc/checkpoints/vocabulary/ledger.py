"""Read keys of a foreign dictionary, note the meaning of each, and list those that are left."""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checks import is_number
from posenc.foreign import one_line, quote, shorten

SPEAKS_OF_POSITION = re.compile(
    r"rope|rotary|rotate|alibi|posit|(?<![a-z])pos(?![a-z])|relative|bucket|yarn|ntk|xpos|theta|sinusoid|longrope|mscale"
    r"|max_seq|seq_?len|max_model_len|context_len|n_ctx|n_positions|window|chunk_size|attn_temperature|attn_scale"
    r"|floor_scale|freq_base|frequenc|inv_freq|freq_factor"
)
"""Names of keys about position: none of them may be ignored in silence."""


class Ledger:
    """The keys of a foreign dictionary. Each one that is read has a note, and the others are listed.

    entries        the dictionary; a value of None counts as absent, as in the files of transformers
    name           its path in another: "text_config"
    position_only  whether all its keys are about position, as those of `rope_parameters`
    file           the names of all keys in the file, if a library has renamed some

    Ledgers of nested dictionaries share the lists of their parent.
    Raises CannotRead for a value of another kind than requested.

    >>> ledger = Ledger({"rope_theta": 500000, "rope_magic": 3, "vocab_size": 9})
    >>> ledger.number("rope_theta", "base {}")
    500000
    >>> ledger.notes, ledger.unknown()
    ({'rope_theta': 'base 500000'}, {'rope_magic': 3})
    """

    def __init__(
        self,
        entries: Mapping[str, Any],
        name: str = "",
        *,
        position_only: bool = False,
        parent: "Ledger | None" = None,
        file: Collection[str] = (),
    ) -> None:
        self.entries, self.name, self.position_only = entries, name, position_only
        self.read_keys: set[str] = set()
        self.nested_ledgers: dict[str, Ledger] = {}
        self.notes: dict[str, str] = {} if parent is None else parent.notes
        self.contradictions: list[str] = [] if parent is None else parent.contradictions
        self.not_covered: list[str] = [] if parent is None else parent.not_covered
        self.file: Collection[str] = file if parent is None else parent.file

    def path(self, key: str) -> str:
        """Return the name of a key as in the file, with the names of the dictionaries around it."""
        path = f"{self.name}.{key}" if self.name else key
        older = (path.replace("rope_parameters", "rope_scaling"), re.sub(r"rope_(parameters|scaling)\.", "", path))
        return next((name for name in (path, *older) if name in self.file), path)

    def has(self, key: str) -> bool:
        """Whether a key has a value; this does not count as reading it."""
        return self.entries.get(key) is not None

    def peek(self, key: str, default: object = None) -> Any:
        """Return the value of a key; this does not count as reading it."""
        value = self.entries.get(key)
        return default if value is None else value

    def take(self, key: str, says: str, default: object = None) -> Any:
        """Return a key's value of any kind, and note `says`, where {} stands for the value."""
        self.read_keys.add(key)
        if not self.has(key):
            return default
        self.notes[self.path(key)] = says.replace("{}", show_value(self.entries[key]))
        return self.entries[key]

    def number(self, key: str, says: str, default: object = None) -> Any:
        """Return a finite number, as `take` does."""
        return self.of_kind(key, says, default, is_number, "a finite number")

    def whole(self, key: str, says: str, default: object = None) -> Any:
        """Return a whole number, which a file may write as 8192.0."""
        value = self.of_kind(key, says, default, lambda x: is_number(x) and x == int(x), "a whole number")
        return int(value) if is_number(value) else value

    def size(self, key: str, says: str, default: object = None) -> int:
        """Return a whole number of 1 or more; raises CannotRead if it is missing."""
        value = self.whole(key, says, default)
        if value is None:
            raise CannotRead(f"{self.path(key)} is missing; it says: {says.replace('{}', 'N')}")
        if value < 1:
            raise CannotRead(f"{self.path(key)} must be 1 or more, got {value}")
        return value

    def flag(self, key: str, says: str, default: object = None) -> Any:
        """Return true or false."""
        return self.of_kind(key, says, default, lambda x: isinstance(x, bool), "true or false")

    def word(self, key: str, says: str, default: object = None) -> Any:
        """Return a string."""
        return self.of_kind(key, says, default, lambda x: isinstance(x, str), "a word")

    def numbers(self, key: str, says: str, default: object = None) -> Any:
        """Return a list of numbers as a tuple."""
        kind = "a list of numbers"
        value = self.of_kind(key, says, default, lambda x: is_list(x) and all(map(is_number, x)), kind)
        return tuple(value) if is_list(value) else value

    def of_kind(self, key: str, says: str, default: object, fits: Callable[[Any], bool], words: str) -> Any:
        if self.has(key) and not fits(self.entries[key]):
            raise CannotRead(f"{self.path(key)} must be {words}, got {quote(self.entries[key], 80)}")
        return self.take(key, says, default)

    def first(self, keys: Sequence[str], says: str, default: object = None, kind: str = "number") -> Any:
        """Return the first value among several names of one thing.

        kind    the method that reads it: "number", "whole", "flag", "word", "numbers" or "take"

        Other values under the other names are contradictions.
        """
        readings = [(key, getattr(self, kind)(key, says)) for key in keys if self.has(key)]
        for key, value in readings[1:]:
            if value != readings[0][1]:
                self.contradict(
                    f"{self.path(readings[0][0])} is {show_value(readings[0][1])} and {self.path(key)} is "
                    f"{show_value(value)}; followed: {self.path(readings[0][0])}"
                )
        return readings[0][1] if readings else default

    def open(self, key: str, *, position_only: bool = False) -> "Ledger":
        """Return the ledger of a nested dictionary; an empty one without it."""
        if key not in self.nested_ledgers:
            mapping = self.entries.get(key)
            if mapping is not None and not isinstance(mapping, Mapping):
                raise CannotRead(f"{self.path(key)} must be a dictionary, got {quote(mapping, 80)}")
            self.read_keys.add(key)
            self.nested_ledgers[key] = Ledger(mapping or {}, self.path(key), position_only=position_only, parent=self)
        return self.nested_ledgers[key]

    def note(self, key: str, words: str) -> None:
        """Mark a key as read, with a note that replaces an earlier one."""
        self.read_keys.add(key)
        if self.has(key):
            self.notes[self.path(key)] = words

    def contradict(self, sentence: str) -> None:
        """Add a sentence on contradictory keys, and which one was followed."""
        if sentence not in self.contradictions:
            self.contradictions.append(sentence)

    def add_uncovered(self, sentence: str) -> None:
        """Add a sentence on position code that no spec covers."""
        if sentence not in self.not_covered:
            self.not_covered.append(sentence)

    def unknown(self) -> dict[str, Any]:
        """Return the keys about position that were not read, with their values, nested ones too."""
        rest = dict(unread(self.entries, self.name, self.read_keys, self.position_only))
        for ledger in self.nested_ledgers.values():
            rest |= ledger.unknown()
        return rest


def unread(entries: Mapping[str, Any], name: str, skip: set[str], position_only: bool) -> Iterator[tuple[str, Any]]:
    for key, value in entries.items():
        path = f"{name}.{key}" if name else str(key)
        # An empty list says nothing.
        if key in skip or value in (None, []):
            continue
        if isinstance(value, Mapping) and value:
            yield from unread(value, path, set(), position_only or bool(SPEAKS_OF_POSITION.search(str(key).lower())))
        elif position_only or SPEAKS_OF_POSITION.search(str(key).lower()):
            yield path, value


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, Sequence) and not isinstance(value, str)


def show_value(value: object) -> str:
    """Return the text of a value: whole floats without their point, long lists by their ends.

    >>> show_value(500000.0), show_value([1.0, 1.5, 2, 3, 4, 5, 6])
    ('500000', '[1, 1.5, ..., 6] (7 entries)')
    """
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "nothing"}[value]  # type: ignore[index]
    if isinstance(value, float) and math.isfinite(value):
        return str(int(value)) if value == int(value) and abs(value) < 1e15 else f"{value:.12g}"
    if is_list(value):
        words = [show_value(item) for item in value]
        if len(words) > 6:
            words = [*words[:2], "...", f"{words[-1]}"]
            return f"[{', '.join(words)}] ({len(value)} entries)"
        return f"[{', '.join(words)}]"
    return shorten(one_line(str(value)))
