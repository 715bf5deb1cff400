"""posenc's own models as files that run without posenc: ONNX, and torch.export's .pt2.

>>> from posenc.export import export
>>> from posenc import Decoder
>>> import tempfile
>>> model = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding="rotary")
>>> done = export(model, tempfile.mkdtemp() + "/model.pt2")
>>> done.difference < 1e-4
True
"""

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from posenc.export.equality import allowed, difference, opened
from posenc.export.files import CannotExport, form_of, quiet, reason_of, require, write, written_down
from posenc.export.graphs import Graph, encodings_of, graph_of
from posenc.foreign import quoted
from posenc.lab import store
from posenc.model.config import Config
from posenc.model.decoder import Decoder
from posenc.model.generation import evaluating
from posenc.model.stack import Stack


@dataclass(frozen=True)
class Done:
    """A file that was written.

    path        the file
    about       what it says of itself
    difference  how far its logits are from the model's at most, as a share of the largest
    lengths     at which that was measured (tokens)
    """

    path: Path
    about: Mapping[str, str]
    difference: float
    lengths: tuple[int, ...]


def export(
    model: nn.Module, path: str | Path, *, cached: bool | None = None, about: Mapping[str, str] | None = None
) -> Done:
    """Write a model as one graph of PyTorch's operators (.pt2) or as ONNX (.onnx), for any batch and length.

    ids [B, T], positions [B, T] -> logits [B, T, vocab]; a decoder's graph also takes what its layers remember of
    earlier tokens and gives it back with the new ones, so that it decodes behind a cache. Positions are an input.

    model   a Decoder, Encoder or EncoderDecoder, or a module of your own that is called as model(ids, positions=...)
    cached  whether a decoder's graph has the cache; default: it has
    about   more words to be kept in the file, such as the task

    The file is run before it appears, and compared with the model at lengths from 1 to 200 tokens, with its cache too.

    Raises CannotExport, which names the encoding and the reason, where no graph can be written down or its numbers
    are not the model's to 1e-4 (8e-3 in float16, 6e-2 in bfloat16); ValueError for another ending, a model that is
    called otherwise, gives no tensor or is not on the CPU, and a cache where there is none; ModuleNotFoundError where
    posenc[onnx] is not installed.
    """
    path = Path(path)
    require(form_of(path))
    with evaluating(model):
        return of_graph(graph_of(model, cached=cached), path, words_of(model) | dict(about or {}), vocab_of(model))


def of_graph(graph: Graph, path: Path, about: dict[str, str], vocab: int) -> Done:
    """Write a graph and hold it against its model; the file appears when both are done."""
    form = form_of(path)
    versions = {name: str(found) for name, found in store.versions().items() if name in ("posenc", "torch")}
    names = {"inputs": json.dumps([*graph.inputs]), "outputs": json.dumps([*graph.outputs])}
    about = {"kind": graph.kind, "axes": str(graph.axes), **about, **versions, **names}
    subject = about["model"] if about["encoding"] == "unknown" else about["encoding"]
    with tempfile.TemporaryDirectory() as held:
        file = Path(held) / f"model{form}"
        try:
            write(written_down(graph), graph, file, about)
            run = opened(file, graph)
        except (CannotExport, ModuleNotFoundError):
            raise
        except Exception as error:
            raise CannotExport(f"{subject} cannot be exported to {form}: {reason_of(error)}") from error
        try:
            with quiet():
                worst, lengths = difference(graph, run, vocab)
        except ValueError:
            raise  # the model's own
        except Exception as error:
            raise CannotExport(f"{subject} cannot be exported to {form}: {reason_of(error)}") from error
        if not worst <= (most := allowed(graph.module)):
            wrong = f"{subject} cannot be exported to {form}: its numbers there differ from the model's "
            raise CannotExport(f"{wrong}by {worst:.2g} of the largest logit, and {most:.2g} is allowed")
        store.write(path, file.read_bytes())
    return Done(path, about, worst, tuple(lengths))


def words_of(model: nn.Module) -> dict[str, str]:
    """What a file says of a model of posenc's: its class, encodings, sizes and vocabulary."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    used = [str(encoding) for stack in stacks for encoding in stack.encoding_of] or [*map(str, encodings_of(model))]
    words = {"model": type(model).__name__, "encoding": ", ".join(dict.fromkeys(used)) or "unknown"}
    sizes = next(
        (module.config for module in model.modules() if isinstance(getattr(module, "config", None), Config)), None
    )
    if isinstance(sizes, Config):
        words["sizes"] = json.dumps(asdict(sizes))
    return words | {"vocab": str(vocab_of(model))}


def vocab_of(model: nn.Module) -> int:
    """How many ids a model takes: rows of its first table of tokens. Raises ValueError for a model without any."""
    said: Any = next((module.vocab for module in model.modules() if isinstance(getattr(module, "vocab", None), int)), 0)
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not said and not tables:
        raise ValueError(f"{type(model).__name__} has no table of tokens to tell how many ids it takes")
    return said or tables[0]


def export_trained(folder: Path, out: Path, *, cached: bool = True, own: Sequence[str] = ()) -> Done:
    """Export the model of a folder that posenc train has filled.

    own  files of one's own whose code it may ask for

    Raises ValueError for another folder, and for a model that was trained on places which no count gives; and what
    `export` raises.
    """
    from posenc.lab.experiments.places import at_evaluation, counted
    from posenc.lab.runs import checkpoint

    require(form_of(out))
    if not checkpoint.is_there(folder):
        raise ValueError(
            f"{quoted(str(folder))} is no folder that posenc train has filled; models of transformers are exported by "
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


__all__ = ["CannotExport", "Done", "export", "export_trained"]
