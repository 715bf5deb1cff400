"""Stretch a model by its encoding: rotary (RoPE) with other frequencies or other distances."""

import re
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from posenc.checkpoints.extension import methods
from posenc.checkpoints.extension.methods import FirstLosses, Method, Stretch
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.files.folder_writer import write_folder
from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.formats.devices import AUTO
from posenc.checkpoints.formats.load import LoadedModel
from posenc.checkpoints.inspection.served_layers import check_written
from posenc.checkpoints.kinds.rotary.old_keys import old_key_notes
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.all_measures import DECODER_MEASURES
from posenc.checkpoints.vocabulary.reading import Reading
from posenc.foreign import code, read_json, regular_files
from posenc.specs.syntax import code_files

VERIFIED_TOKENS = 1024
"""The number of tokens on which the written checkpoint is compared with the measured model."""

LOSS_TOLERANCE = {"float32": 1e-3, "float64": 1e-6}
"""The largest difference (nats) of the mean losses of the written and the measured model; 0.02 in half precision."""

COPIED_SUFFIXES = (".json", ".txt", ".model", ".jinja")
"""The suffixes of files of a tokenizer or of generation, which are copied with a checkpoint."""

NEW_FILES = re.compile(r"^config\.json$|\.safetensors\.index\.json$")
"""Files with these suffixes that are written anew."""


@dataclass
class ByEncoding(Stretch):
    """A decoder whose rotary encoding is stretched."""

    settings: Settings
    options: ClassVar = frozenset({"factors", "replace"})

    @classmethod
    def plan(cls, checkpoint: LoadedModel, reading: Reading, settings: Settings, names: Sequence[str]) -> "ByEncoding":
        """Plan the methods of these names; raises as `plan_methods` does."""
        factors = None if settings.factors is None else methods.read_factors(Path(settings.factors))
        if factors is not None and "longrope" not in methods.method_names(names):
            raise ValueError("--longrope-factors is for the method longrope; name it with --method")
        source = checkpoint.path / "config.json"
        config = read_json(source, folder=checkpoint.path) if source.is_file() else checkpoint.config_keys()
        plan = methods.plan_methods(reading, config, settings.factor, names, longrope=factors, replace=settings.replace)
        if not any(parameter.is_meta for parameter in checkpoint.model.parameters()):
            plan = methods.attachable_plan(checkpoint.model, plan, names)
        fields = {"checkpoint": checkpoint, "config": config, "fitting": DECODER_MEASURES, "settings": settings}
        return cls(**vars(plan), **fields)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        as_it_is = method.name == "none"
        files = () if as_it_is else code_files(*method.specs)
        return {
            "specs": ["as it is"] if as_it_is else list(method.specs),
            "horizon": length if method.by_length else None,
            **({"own_files": {path: code.sha256(path) for path in files}} if files else {}),
        }

    @contextmanager
    def model_with(self, method: Method, length: int) -> Generator[Any]:
        with methods.attach_method(self.checkpoint.model, method, length):
            yield self.checkpoint.model

    def write(self, method: Method, where: Path) -> None:
        """Write the changed config, with the weights as stored, or for a GGUF file as loaded."""
        assert method.config is not None
        if not (self.checkpoint.path / "config.json").is_file():
            self.checkpoint.save_huggingface(where, method.config)
            return
        folder = self.checkpoint.path
        files = [file for file in regular_files(folder) if file.suffix in COPIED_SUFFIXES]
        copies = [file for file in files if not NEW_FILES.search(file.name)]
        write_folder(where, method.config, open_tensors(folder).items(), copy=copies)

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """Check with transformers alone that all layers are as planned and a text's mean loss as measured."""
        assert method.config is not None and method.planned_reading is not None
        ids, expected = losses(method, VERIFIED_TOKENS)
        # Two copies of a large model do not fit.
        del self.checkpoint
        check_written(where, method.planned_reading)
        difference = loss_difference(where, ids, expected, self.settings.dtype, self.settings.device)
        words = (
            f"transformers loads it, and its mean loss over the first {len(ids):,} tokens is that of the table to "
            f"{difference:.1g} nats."
        )
        return {"tokens": len(ids), "difference": difference, "words": " ".join((words, *old_key_notes(method.config)))}


def loss_difference(folder: Path, ids: Tensor, expected: Tensor, dtype: str, device: str = "cpu") -> float:
    """Return the difference (nats) of a written checkpoint's mean loss in transformers alone from the expected one.

    Raises RuntimeError for a difference above LOSS_TOLERANCE.
    """
    from transformers import AutoModelForCausalLM

    from posenc.checkpoints.formats import load

    placement = {"device_map": load.DEVICE_MAP} if device == AUTO else {}
    with load.quietly():
        kind = AutoModelForCausalLM
        model = kind.from_pretrained(folder, dtype=load.dtype_of(dtype), local_files_only=True, **placement).eval()
    if not placement:
        model.to(torch.device(device))
    # In one chunk, because transformers' own dynamic scaling goes wrong behind a cache.
    losses = perplexity.losses(model, ids, chunk=len(ids))
    difference = abs(float(losses.double().mean() - expected.double().mean()))
    limit = LOSS_TOLERANCE.get(dtype, 0.02)
    if not difference <= limit:
        raise RuntimeError(
            f"the written checkpoint has a mean loss of {float(losses.mean()):.4f} over {len(ids)} tokens, and the "
            f"table says {float(expected.mean()):.4f}; they may differ by {limit:g} nats, so it is not kept"
        )
    return difference
