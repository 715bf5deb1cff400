"""Export models of posenc to files that run without it: ONNX, and torch.export's .pt2.

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

from posenc.export.equality import largest_difference, load_run, tolerance_for
from posenc.export.files import CannotExport, exported_program, file_format, quiet, reason_of, require, write
from posenc.export.graphs import Graph, encodings_of, graph_of
from posenc.foreign import quote
from posenc.lab import store
from posenc.model.config import Config
from posenc.model.decoder import Decoder
from posenc.model.generation import eval_mode
from posenc.model.stack import Stack


@dataclass(frozen=True)
class ExportedFile:
    """A written file.

    path        the file
    about       its metadata
    difference  the largest difference of its logits from the model's, as a share of the largest logit
    lengths     the lengths at which that was measured (tokens)
    """

    path: Path
    about: Mapping[str, str]
    difference: float
    lengths: tuple[int, ...]


def export(
    model: nn.Module, path: str | Path, *, cached: bool | None = None, about: Mapping[str, str] | None = None
) -> ExportedFile:
    """Write a model as one graph of PyTorch's operators (.pt2) or as ONNX (.onnx).

    ids [B, T], positions [B, T] -> logits [B, T, vocab], for any B and T. A decoder's graph also takes the KV cache of
    earlier tokens, and returns it with the new ones. Positions are an input.

    model   a Decoder, Encoder or EncoderDecoder, or your own module, called as model(ids, positions=...)
    cached  whether a decoder's graph has the cache; default: it has
    about   further metadata for the file, such as the task

    Before the file appears, it is run and compared with the model at lengths from 1 to 200 tokens, with its cache too.

    Raises CannotExport, which names the encoding and the reason, if no graph can be traced, or its logits differ from
    the model's by more than 1e-4 (8e-3 in float16, 6e-2 in bfloat16); ValueError for another file extension, a model of
    another signature, without a tensor as result or not on the CPU, and for a cache of a model without one;
    ModuleNotFoundError without posenc[onnx].
    """
    path = Path(path)
    require(file_format(path))
    with eval_mode(model):
        graph = graph_of(model, cached=cached)
        return export_graph(graph, path, model_metadata(model) | dict(about or {}), vocab_of(model))


def export_graph(graph: Graph, path: Path, metadata: dict[str, str], vocab: int) -> ExportedFile:
    """Write a graph and compare it with its model; the file appears when both are done."""
    form = file_format(path)
    versions = {name: str(version) for name, version in store.versions().items() if name in ("posenc", "torch")}
    names = {"inputs": json.dumps([*graph.inputs]), "outputs": json.dumps([*graph.outputs])}
    metadata = {"kind": graph.kind, "axes": str(graph.axes), **metadata, **versions, **names}
    subject = metadata["model"] if metadata["encoding"] == "unknown" else metadata["encoding"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"model{form}"
        try:
            write(exported_program(graph), graph, file, metadata)
            run = load_run(file, graph)
        except (CannotExport, ModuleNotFoundError):
            raise
        except Exception as error:
            raise CannotExport(f"{subject} cannot be exported to {form}: {reason_of(error)}") from error
        try:
            with quiet():
                worst, lengths = largest_difference(graph, run, vocab)
        except ValueError:
            raise  # an error of the model itself
        except Exception as error:
            raise CannotExport(f"{subject} cannot be exported to {form}: {reason_of(error)}") from error
        if not worst <= (limit := tolerance_for(graph.module)):
            wrong = f"{subject} cannot be exported to {form}: its numbers there differ from the model's "
            raise CannotExport(f"{wrong}by {worst:.2g} of the largest logit, and {limit:.2g} is allowed")
        store.write(path, file.read_bytes())
    return ExportedFile(path, metadata, worst, tuple(lengths))


def model_metadata(model: nn.Module) -> dict[str, str]:
    """Return the metadata of a model: its class, encodings, sizes and vocabulary."""
    stacks = [module for module in model.modules() if isinstance(module, Stack)]
    specs = [str(encoding) for stack in stacks for encoding in stack.encoding_of] or [*map(str, encodings_of(model))]
    words = {"model": type(model).__name__, "encoding": ", ".join(dict.fromkeys(specs)) or "unknown"}
    sizes = next(
        (module.config for module in model.modules() if isinstance(getattr(module, "config", None), Config)), None
    )
    if isinstance(sizes, Config):
        words["sizes"] = json.dumps(asdict(sizes))
    return words | {"vocab": str(vocab_of(model))}


def vocab_of(model: nn.Module) -> int:
    """Return the vocabulary size of a model, from its first token table. Raises ValueError without one."""
    size: Any = next((module.vocab for module in model.modules() if isinstance(getattr(module, "vocab", None), int)), 0)
    tables = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    if not size and not tables:
        raise ValueError(f"{type(model).__name__} has no table of tokens to tell how many ids it takes")
    return size or tables[0]


def export_trained(folder: Path, out: Path, *, cached: bool = True, trusted_files: Sequence[str] = ()) -> ExportedFile:
    """Export the model of a folder that posenc train has filled.

    trusted_files  the users' files whose code the folder may name

    Raises ValueError for another folder, and for a model that was trained with a coordinate map; and what `export`
    raises.
    """
    from posenc.lab.experiments.places import eval_places, natural
    from posenc.lab.runs import checkpoint

    require(file_format(out))
    if not checkpoint.has_checkpoint(folder):
        raise ValueError(
            f"{quote(str(folder))} is no folder that posenc train has filled; models of transformers are exported by "
            f"optimum-onnx, as docs/guides/export.md shows"
        )
    run = checkpoint.load(folder, trusted_files, to_train=False)
    experiment = run.experiment
    if eval_places(experiment) is not natural:
        raise ValueError(
            f"an exported graph counts its tokens 0, 1, 2, ..., and the model of {quote(folder)} was trained on the "
            f"places that {experiment.test_map or experiment.map} gives to whole sequences; train it without a map"
        )
    metadata = {"task": experiment.task, "trained_length": str(experiment.train_length), "step": str(run.step)}
    return export(run.model, out, cached=cached and isinstance(run.model, Decoder), about=metadata)


__all__ = ["CannotExport", "ExportedFile", "export", "export_trained"]
