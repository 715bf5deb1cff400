"""A file of settings in place of flags: `posenc train --config run.toml`, and the file that a run writes of its own.

Its names are those of the flags. It becomes flags before anything reads them, so there is one way in which a setting is
understood; what is also given as a flag is the flag's. TOML, and not YAML: it comes with Python, and in YAML the rate
1e-3 is a word and the encoding `none` stands beside a `no` that is not one.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from posenc.foreign import CannotRead, code, near, quoted, read_toml, written_toml
from posenc.lab import store
from posenc.lab.experiments.execution import Execution
from posenc.lab.experiments.experiment import Experiment, in_new_names

FILE = "settings.toml"
"""The settings of a run, beside its checkpoints."""

NOT_IN_FILES = ("config", "json")


def write(folder: Path, experiment: Experiment, execution: Execution) -> None:
    """Write the settings of a run, each that has a value, as `--config` reads them. Raises CannotWrite."""
    said = asdict(experiment) | asdict(execution)
    del said["own_files"]
    said["spec"] = ", ".join(experiment.specs)
    said["bias"] = () if experiment.bias is True else list(experiment.bias or ("none",))
    if experiment.window is not None:
        windows = experiment.window if isinstance(experiment.window, tuple) else (experiment.window,)
        said["window"] = [size or 0 for size in windows]
    store.write(folder / FILE, written_toml({name: v for name, v in said.items() if v not in (None, ())}).encode())


def with_file(given: Mapping[str, list[str]], verb: Any) -> dict[str, list[str]]:
    """The words of a verb's options, and what the file of its `--config` says and they do not.

    given  name -> words; those of the field `spec`, which has no option, stand under no name
    verb   the dataclass of the verb

    Raises ValueError for a name that the verb does not have, and a value that no flag has; CannotRead for a file that
    cannot be read, and for code that only the file names.
    """
    types, file = get_type_hints(verb), Path(given["config"][0])
    if file.suffix.lower() != ".toml":
        raise ValueError(f"settings are read from a .toml file, got {quoted(str(file))}; write them as TOML")
    more = dict[str, list[str]]()
    for key, value in in_new_names(read_toml(file)).items():
        name = key.replace("-", "_")
        if name not in types or name in NOT_IN_FILES:
            known = [one for one in types if one not in NOT_IN_FILES]
            hint = near(name, known, "posenc train --help")
            raise CannotRead(f"there is no setting {quoted(key)}{hint}", file=file)
        if not (given[""] if name == "spec" else name in given):
            more["" if name == "spec" else name] = words_of(name, value, types[name], file)
    return {**given, **more}


def words_of(name: str, value: Any, kind: Any, file: Path) -> list[str]:
    """What is typed behind an option for a setting. Raises CannotRead."""
    listed = get_origin(kind) is tuple
    values = value if isinstance(value, list) else [value]
    plain = all(isinstance(one, (str, int, float)) for one in values)
    if not plain or isinstance(value, list) != listed or any(isinstance(one, bool) != (kind is bool) for one in values):
        wanted = "true or false" if kind is bool else "a list" if listed else "a word or a number"
        raise CannotRead(f"expected {wanted}, got {quoted(value, 80)}", file=file, field=name)
    for one in values:
        if isinstance(one, str) and code.OWN.search(one):
            wrong = f"it names code to run, {quoted(one)}, and code that a file names is run only where you name it too"
            raise CannotRead(wrong, file=file, field=name, remedy="give this setting on the command line")
    return [str(value).lower()] if kind is bool else [*map(str, values)]
