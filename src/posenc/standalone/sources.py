"""The readable forms, as the sources of the file of one encoding: its options stand in their constants."""

import ast
import inspect
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Any

from posenc.catalogue import names
from posenc.encoding.base import Encoding, constructor_arguments
from posenc.schedules import Schedule
from posenc.standalone.bundle import PACKAGE, SCHEDULES, Piece, Source, rename_definitions, specialised_source
from posenc.standalone.glue import Member
from posenc.standalone.self_tests import HORIZON, expected_numbers

FOLDER = files(PACKAGE)
MODEL_ARGUMENTS = ("dim", "heads", "head_dim", "max_len")


class Forms(dict[str, Source]):
    """The forms that the file of an encoding may read, by their modules, with its options as their constants."""

    def __init__(self, encoding: Encoding, flags: dict[str, Any]) -> None:
        options = constructor_arguments(encoding)
        schedule = options.pop("schedule", None)
        check_options(encoding.spec_name, encoding, options)
        self.encoding, self.flags = encoding, flags | {"EXPECTED": expected_numbers(encoding)}
        if schedule is not None:
            self.flags |= {"SCHEDULE": True, **schedule_flags(schedule)}
            self.update(schedule_forms(schedule))
        self[f"{PACKAGE}.{encoding.spec_name}"] = form(encoding.spec_name, encoding, self.flags)

    def add_embedding_of_tokens(self, spec: str, pieces: Sequence[Piece]) -> None:
        """Add the form of the embedding of tokens, with the class of the encoding as its positions."""
        (piece, *other_pieces) = pieces
        member = Member(piece.main_class, self.encoding.spec_name)
        if other_pieces or member.kind != "embed":
            raise ValueError(f"tokens are embedded with learned or sinusoidal, not with {spec}; leave tokens out")
        module = f"{PACKAGE}.token_position"
        slot = "forms.learned import LearnedPositionalEncoding as"
        target = f"forms.{self.encoding.spec_name} import {member.tree.name} as"
        text = FOLDER.joinpath("token_position.py").read_text(encoding="utf-8").replace(slot, target)
        text = text.replace("forms.learned import STD", f"forms.{self.encoding.spec_name} import STD")
        arguments = ", ".join(member.parameters("__init__"))
        text = text.replace("Encoding(d_model, max_seq_len)", f"Encoding({arguments})")
        self[module] = specialised_source(text, {"TABLE": "STD" in piece.definitions})

    def __missing__(self, module: str) -> Source:
        self[module] = form(module.removeprefix(f"{PACKAGE}."), self.encoding, self.flags)
        return self[module]


def schedule_forms(schedule: Schedule) -> Iterator[tuple[str, Source]]:
    """Yield the form of a schedule in the place of linear, which forms import, then those of the schedules inside it.

    Names of inner ones get a prefix: `yarn_frequencies`, `YARN_FACTOR`.
    """
    module, prefixes = f"{SCHEDULES}linear", [""]
    while True:
        inner: Schedule | None = getattr(schedule, "inner", None)
        flags = {"INNER": inner is not None, **schedule_flags(schedule)}
        check_options(f"schedules.{schedule.spec_name}", schedule, vars(schedule))
        source = form(f"schedules.{schedule.spec_name}", schedule, flags)
        prefix = prefixes[-1]
        names = {name: (prefix.upper() if name.isupper() else prefix) + name for name in source.definitions}
        if inner is None:
            yield module, rename_definitions(source, names)
            return
        prefix = f"{inner.spec_name}_"
        while prefix in prefixes:
            prefix = f"{inner.spec_name}_{prefix}"
        prefixes.append(prefix)
        source = rename_definitions(source, names | {"inner_frequencies": f"{prefix}frequencies"})
        source.imports[f"{prefix}frequencies"] = (f"{module}.inner", f"{prefix}frequencies")
        yield module, source
        module, schedule = f"{module}.inner", inner


def schedule_flags(schedule: Schedule) -> dict[str, bool]:
    """Return whether a schedule reads the horizon, and whether it multiplies cosines and sines by a factor."""
    by_horizon = schedule.by_horizon
    while inner := getattr(schedule, "inner", None):
        schedule = inner
    plain = [100.0 ** (-k / 4) for k in range(4)]
    factors = {schedule.formula(plain, base=100.0, width=8, horizon=horizon)[1] for horizon in (1, HORIZON)}
    return {"BY_HORIZON": by_horizon, "HAS_TEMPERATURE": factors != {1}}


def check_options(name: str, owner: Encoding | Schedule, options: dict[str, Any]) -> None:
    """Raise ValueError for an option that the form of its owner does not have.

    `REPLACED_OPTIONS` of a form lists options that other constants make up for, `REFUSED_VALUES` values without a form.
    """
    source = Source(text_of_form(name, owner))
    definitions, constants = source.definitions, {*source.definitions}
    for module in {module for module, _ in source.imports.values() if module.startswith(PACKAGE)}:
        constants |= Source(text_of_form(module.removeprefix(f"{PACKAGE}."), owner)).definitions.keys()
    replaced_options = module_constant(definitions, "REPLACED_OPTIONS")
    refused_values = module_constant(definitions, "REFUSED_VALUES")
    defaults = inspect.signature(type(owner)).parameters
    for option, value in options.items():
        is_known = option.upper() in constants or option in replaced_options or option in MODEL_ARGUMENTS
        if value in refused_values or not (is_known or value == defaults[option].default):
            raise ValueError(f"{owner} has no readable form yet with {option}={value!r}; leave the option out")


def text_of_form(name: str, owner: Encoding | Schedule) -> str:
    """Return the text of a form as it was written. Raises ValueError without one."""
    path = FOLDER.joinpath(*name.split(".")[:-1], f"{name.split('.')[-1]}.py")
    if not path.is_file():
        raise ValueError(f"{owner} has no readable form{why_no_form(owner)}; those that have: {', '.join(readable())}")
    return path.read_text(encoding="utf-8")


def form(name: str, owner: Encoding | Schedule, flags: dict[str, Any]) -> Source:
    """Return the source of a form; a constant may be named after a flag or any attribute of the owner."""
    text = text_of_form(name, owner)
    definitions = Source(text).definitions
    constants = {constant: flags[constant] for constant in definitions if constant in flags}
    for constant in definitions:
        if constant.isupper() and constant not in flags and hasattr(owner, constant.lower()):
            constants[constant] = getattr(owner, constant.lower())
    source = specialised_source(text, constants)
    return heads_last(source) if flags.get("SEQ_DIM") == 1 else source


def heads_last(source: Source) -> Source:
    """Return the source with the axes of q and k in the docstrings of its classes as [batch, seq_len, heads, ..]."""
    text = source.text
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef) and (words := ast.get_docstring(node, clean=False)):
            text = text.replace(words, words.replace("heads, seq_len, head_dim]", "seq_len, heads, head_dim]"))
    return Source(text)


def why_no_form(owner: Encoding | Schedule) -> str:
    """Return the reason why there is no form of an encoding, for an error; " yet" without one."""
    if isinstance(owner, Encoding) and not owner.doors:
        return ", because it adds nothing"
    if isinstance(owner, Encoding) and (owner.wraps or "attend" in owner.doors):
        return f", because it {'changes another encoding' if owner.wraps else 'replaces attention itself'}"
    return " yet"


def module_constant(definitions: dict[str, ast.stmt], name: str) -> tuple[str, ...]:
    """Return a tuple of words that a form defines; () without it."""
    node: Any = definitions.get(name)
    return ast.literal_eval(node.value) if node else ()


def readable() -> list[str]:
    """Return the names of the encodings that have a readable form."""
    return sorted(name for name in names() if FOLDER.joinpath(f"{name}.py").is_file())
