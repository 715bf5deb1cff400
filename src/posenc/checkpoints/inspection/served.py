"""What transformers serves for a config, held to what is planned: every layer and all of its pairs, with its numbers.

Before anything expensive is done the config that will be written is held, and afterwards the folder that was.
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


def check_written(folder: Path, planned: Reading) -> None:
    """Hold a written folder to what was planned, as `inspect` reads it and as transformers' AutoConfig does.

    Raises RuntimeError, with what differs.
    """
    unlike = [f"planned and served: {sentence}" for sentence in differences(planned, inspect(folder))]
    config = read_json(folder / "config.json", within=folder)
    if MARK not in config and huggingface.filled(config) is not None:
        from transformers import AutoConfig

        with quietly():
            theirs = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        unlike += unlike_planned(theirs, planned)
    if unlike:
        sentences = "; ".join(dict.fromkeys(unlike))
        raise RuntimeError(f"what was written says something else than planned: {sentences}")


def unlike_planned(config: Any, planned: Reading) -> list[str]:
    """Where the model that transformers makes of a config differs from a plan, in sentences; none where it does not.

    config  a dictionary as in config.json, or a configuration of transformers

    Held to the plan is what the config is read as (encodings, windows, scales of the logits, sizes, lengths). Reading
    it holds the rotary modules themselves to that, number by number and at every length that changes them; where they
    hand out others it says so. An architecture that transformers does not know is read by its keys alone.
    """
    try:
        served = huggingface.read(config)
    except CannotRead as error:
        return [f"transformers does not take it: {error}"]
    # What the plan leaves open may stay so.
    left = [sentence for sentence in served.not_covered if sentence not in planned.not_covered]
    return [f"planned and served: {one}" for one in differences(planned, served)] + [f"served: {one}" for one in left]
