"""From a folder of posenc train to what is exported."""

from collections.abc import Sequence
from pathlib import Path

from posenc.export import Done, export
from posenc.export.files import form_of, require
from posenc.foreign import quoted


def export_trained(folder: Path, out: Path, *, cached: bool = True, own: Sequence[str] = ()) -> Done:
    """Export the model of a folder that posenc train has filled.

    own  files of one's own whose code it may ask for

    Raises ValueError for another folder, and for a model that was trained on places which no count gives; and what
    `export` raises.
    """
    from posenc.lab.experiments.places import at_evaluation, counted
    from posenc.lab.runs import checkpoint
    from posenc.model import Decoder

    require(form_of(out))
    if not checkpoint.is_there(folder):
        raise ValueError(
            f"{quoted(folder)} is no folder that posenc train has filled; models of transformers are exported by "
            f"optimum-onnx, as docs/guides/export.md shows"
        )
    run = checkpoint.load(folder, own, to_train=False)
    experiment = run.experiment
    if at_evaluation(experiment) is not counted:
        raise ValueError(
            f"an exported graph counts its tokens 0, 1, 2, ..., and the model of {quoted(folder)} was trained on the "
            f"places that {experiment.test_map or experiment.map} gives to whole sequences; train it without a map"
        )
    about = {"task": experiment.task, "trained_length": str(experiment.train_length), "step": str(run.step)}
    return export(run.model, out, cached=cached and isinstance(run.model, Decoder), about=about)
