"""A file of settings in place of flags: `posenc train --config run.toml`, and the file that a run writes of its own.

Its names are those of the flags. It becomes flags before anything reads them, so there is one way in which a setting is
understood; what is also given as a flag is the flag's. TOML, and not YAML: it comes with Python, and in YAML the rate
1e-3 is a word and the encoding `none` stands beside a `no` that is not one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from posenc.foreign import CannotRead, code, near, quoted, read_toml, written_toml
from posenc.lab import store
from posenc.lab.experiments.execution import Execution
from posenc.lab.experiments.experiment import Experiment

FILE = "settings.toml"
"""The settings of a run, beside its checkpoints."""

NOT_IN_FILES = ("config", "json")


def write(folder: Path, experiment: Experiment, execution: Execution) -> None:
    """Write the settings of a run, each that has a value, as `--config` reads them. Raises CannotWrite."""
    said = asdict(experiment) | asdict(execution)
    del said["own_files"]
    said["spec"] = ", ".join(experiment.specs)
    if experiment.window is not None:
        windows = experiment.window if isinstance(experiment.window, tuple) else (experiment.window,)
        said["window"] = [size or 0 for size in windows]
    store.write(folder / FILE, written_toml({name: v for name, v in said.items() if v not in (None, ())}).encode())


def with_file(arguments: Sequence[str], verb: Any) -> list[str]:
    """The arguments of a verb, and behind them what the file of its `--config` says and they do not.

    verb  the dataclass of the verb; its field `spec` is the one argument without a name

    Raises ValueError for a name that the verb does not have, and a value that no flag has; CannotRead for a file that
    cannot be read, and for code that only the file names.
    """
    types = get_type_hints(verb)
    given = spelled(arguments, types)
    if "config" not in given or not given["config"]:
        return list(arguments)
    file = Path(given["config"][0])
    if file.suffix.lower() != ".toml":
        raise ValueError(f"settings are read from a .toml file, got {quoted(str(file))}; write them as TOML")
    more, spec = list[str](), list[str]()
    for key, value in read_toml(file).items():
        name = key.replace("-", "_")
        if name not in types or name in NOT_IN_FILES:
            known = [one for one in types if one not in NOT_IN_FILES]
            hint = near(name, known, "posenc train --help")
            raise CannotRead(f"there is no setting {quoted(key)}{hint}", file=file)
        if name not in given:
            (spec if name == "spec" else more).extend(flags(name, value, types[name], file))
    # In front, where no list of values takes it in.
    return [*arguments[:1], *spec, *arguments[1:], *more]


def spelled(arguments: Sequence[str], types: Mapping[str, Any]) -> dict[str, list[str]]:
    """Which settings stand on the command line, by name, and their values."""
    found: dict[str, list[str]] = {}
    name = ""
    for argument in arguments[1:]:
        if argument.startswith("--"):
            option, equals, value = argument[2:].partition("=")
            name = option.replace("-", "_")
            name = name if name in types else name.removeprefix("no_")
            found[name] = [value] if equals else []
        elif name in types and (get_origin(types[name]) is tuple or not (types[name] is bool or found[name])):
            found[name].append(argument)
        else:
            # What no option takes is the argument without a name.
            found["spec"] = [argument]
    return found


def flags(name: str, value: Any, kind: Any, file: Path) -> list[str]:
    """What is typed for a setting. Raises CannotRead."""
    flag, listed = f"--{name.replace('_', '-')}", get_origin(kind) is tuple
    values = value if isinstance(value, list) else [value]
    plain = all(isinstance(one, (str, int, float)) for one in values)
    if not plain or isinstance(value, list) != listed or any(isinstance(one, bool) != (kind is bool) for one in values):
        wanted = "true or false" if kind is bool else "a list" if listed else "a word or a number"
        raise CannotRead(f"expected {wanted}, got {quoted(value, 80)}", file=file, field=name)
    for one in values:
        if isinstance(one, str) and code.OWN.search(one):
            raise CannotRead(
                f"it names code to run, {quoted(one)}, and code that a file names is run only where you name it too",
                file=file,
                field=name,
                remedy="give this setting on the command line",
            )
    if kind is bool:
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    if name == "spec":
        return [str(value)]
    return [flag, *map(str, values)] if listed and values else [] if listed else [f"{flag}={value}"]
