"""Settings files: `posenc train --config run.toml`, and the settings.toml that each run writes.

The names are those of the flags. A file is turned into flags before they are parsed, so each setting is parsed in one
place; a flag wins over the file. TOML and not YAML: Python reads it, and in YAML the rate 1e-3 is a string and `no` a
boolean.
"""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_origin, get_type_hints

from posenc.foreign import CannotRead, code, quote, read_toml, suggestion, toml_text
from posenc.lab import store
from posenc.lab.experiments.execution import Execution
from posenc.lab.experiments.experiment import Experiment, rename_old_settings

FILE = "settings.toml"
"""The settings of a run, beside its checkpoints."""

NOT_IN_FILES = ("config", "json")


def write_config(folder: Path, experiment: Experiment, execution: Execution) -> None:
    """Write the settings of a run that have a value, as `--config` reads them. Raises CannotWrite."""
    settings = asdict(experiment) | asdict(execution)
    del settings["own_files"]
    settings["spec"] = ", ".join(experiment.specs)
    settings["bias"] = () if experiment.bias is True else list(experiment.bias or ("none",))
    if experiment.window is not None:
        windows = experiment.window if isinstance(experiment.window, tuple) else (experiment.window,)
        settings["window"] = [size or 0 for size in windows]
    store.write(folder / FILE, toml_text({name: v for name, v in settings.items() if v not in (None, ())}).encode())


def add_file_options(options: Mapping[str, list[str]], verb: Any) -> dict[str, list[str]]:
    """Return a verb's options with those that only its `--config` file sets.

    options  name -> words; those of the field `spec`, which has no flag, have the name ""
    verb     the dataclass of the verb

    Raises ValueError for a file that is not TOML; CannotRead for a file that cannot be read, an unknown setting, a
    value that no flag takes, and code that only the file names.
    """
    types, file = get_type_hints(verb), Path(options["config"][0])
    if file.suffix.lower() != ".toml":
        raise ValueError(f"settings are read from a .toml file, got {quote(str(file))}; write them as TOML")
    file_options = dict[str, list[str]]()
    for key, value in rename_old_settings(read_toml(file)).items():
        name = key.replace("-", "_")
        if name not in types or name in NOT_IN_FILES:
            names = [key_name for key_name in types if key_name not in NOT_IN_FILES]
            hint = suggestion(name, names, "posenc train --help")
            raise CannotRead(f"there is no setting {quote(key)}{hint}", file=file)
        if not (options[""] if name == "spec" else name in options):
            file_options["" if name == "spec" else name] = option_words(name, value, types[name], file)
    return {**options, **file_options}


def option_words(name: str, value: Any, kind: Any, file: Path) -> list[str]:
    """The command line words of a setting. Raises CannotRead."""
    is_list = get_origin(kind) is tuple
    values = value if isinstance(value, list) else [value]
    plain = all(isinstance(v, (str, int, float)) for v in values)
    if not plain or isinstance(value, list) != is_list or any(isinstance(v, bool) != (kind is bool) for v in values):
        expected = "true or false" if kind is bool else "a list" if is_list else "a word or a number"
        raise CannotRead(f"expected {expected}, got {quote(value, 80)}", file=file, field=name)
    for v in values:
        if isinstance(v, str) and code.CLASS_PATH.search(v):
            wrong = f"it names code to run, {quote(v)}, and code that a file names is run only where you name it too"
            raise CannotRead(wrong, file=file, field=name, remedy="give this setting on the command line")
    return [str(value).lower()] if kind is bool else [*map(str, values)]
