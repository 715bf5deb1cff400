"""Compare what transformers makes of a config with a plan: the numbers of every layer and pair.

The config is compared before any expensive work, and the written folder afterwards.
"""

from pathlib import Path
from typing import Any

from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.formats.config_json import MARK
from posenc.checkpoints.formats.load import quietly
from posenc.checkpoints.inspection.inspect import inspect
from posenc.checkpoints.vocabulary.differences import differences
from posenc.checkpoints.vocabulary.reading import CannotRead, Reading
from posenc.foreign import read_json


def check_written(folder: Path, plan: Reading) -> None:
    """Compare a written folder with its plan, as `inspect` reads it and as transformers' AutoConfig does.

    Raises RuntimeError that names the differences.
    """
    faults = [f"planned and served: {sentence}" for sentence in differences(plan, inspect(folder))]
    config = read_json(folder / "config.json", folder=folder)
    if MARK not in config and huggingface.build_config(config) is not None:
        from transformers import AutoConfig

        with quietly():
            hf_config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        faults += served_differences(hf_config, plan)
    if faults:
        sentences = "; ".join(dict.fromkeys(faults))
        raise RuntimeError(f"what was written says something else than planned: {sentences}")


def served_differences(config: Any, plan: Reading) -> list[str]:
    """Return where the model that transformers makes of a config differs from a plan, in sentences.

    config  a dictionary as in config.json, or a configuration of transformers

    Encodings, windows, scales of the logits, sizes and lengths are compared. Reading the config checks the rotary
    modules themselves, number by number and at every length that changes them. An architecture that transformers does
    not know is read by its keys alone.
    """
    try:
        reading = huggingface.read(config)
    except CannotRead as error:
        return [f"transformers does not take it: {error}"]
    # The plan may leave the same things open.
    sentences = [sentence for sentence in reading.not_covered if sentence not in plan.not_covered]
    return [f"planned and served: {s}" for s in differences(plan, reading)] + [f"served: {s}" for s in sentences]
