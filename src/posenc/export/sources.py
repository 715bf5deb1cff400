"""From a folder to what is exported: what posenc train has made, or a checkpoint in somebody else's form."""

from collections.abc import Sequence
from pathlib import Path

from posenc.export import Done, export
from posenc.export.files import form_of, require
from posenc.foreign import quoted


def export_folder(folder: str, out: Path, *, cached: bool = True, own: Sequence[str] = ()) -> Done:
    """Export the model of a folder that posenc train has filled, or a checkpoint that transformers reads.

    folder  such a folder, a GGUF file, or a model of the hub as owner/name
    own     files of one's own whose code a trained model may ask for

    Raises ValueError for a model that was trained on places which no count gives, and what `export` raises.
    """
    from posenc.lab.runs import checkpoint

    require(form_of(out))
    if Path(folder).is_dir() and checkpoint.is_there(Path(folder)):
        return export_trained(Path(folder), out, cached=cached, own=own)
    return export_checkpoint(folder, out, cached=cached)


def export_trained(folder: Path, out: Path, *, cached: bool, own: Sequence[str]) -> Done:
    from posenc.lab.experiments.places import at_evaluation, counted
    from posenc.lab.runs import checkpoint
    from posenc.model import Decoder

    run = checkpoint.load(folder, own, to_train=False)
    experiment = run.experiment
    if at_evaluation(experiment) is not counted:
        raise ValueError(
            f"an exported graph counts its tokens 0, 1, 2, ..., and the model of {quoted(folder)} was trained on the "
            f"places that {experiment.test_map or experiment.map} gives to whole sequences; train it without a map"
        )
    about = {"task": experiment.task, "trained_length": str(experiment.train_length), "step": str(run.step)}
    return export(run.model, out, cached=cached and isinstance(run.model, Decoder), about=about)


def export_checkpoint(path: str, out: Path, *, cached: bool) -> Done:
    from posenc.checkpoints import attach
    from posenc.checkpoints.formats.load import load

    model = load(path, dtype="float32").model
    found = ", ".join(dict.fromkeys(attach(model).replaced.values()))
    return export(model, out, cached=None if cached else False, about={"task": "text", "encoding": found or "unknown"})
