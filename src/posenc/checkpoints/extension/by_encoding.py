"""Models stretched by their encoding: rotary with other frequencies or other distances."""

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
from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.inspection.served import check_written
from posenc.checkpoints.kinds.rotary.old_keys import unsaid
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.all_measures import OF_DECODERS
from posenc.checkpoints.vocabulary.reading import Reading
from posenc.foreign import code, files_of, read_json
from posenc.specs.syntax import files_in

VERIFIED = 1024
"""On how many tokens the written checkpoint is compared with what was measured."""

NEAR = {"float32": 1e-3, "float64": 1e-6}
"""How far (nats) the mean loss of the written checkpoint may lie from the measured one; in half precision 0.02."""

KINDS = (".json", ".txt", ".model", ".jinja")
"""Files of a tokenizer or of generation, which go along with a checkpoint."""

MADE = re.compile(r"^config\.json$|\.safetensors\.index\.json$")
"""And those of these kinds that are written anew."""


@dataclass
class ByEncoding(Stretch):
    """A decoder whose rotary encoding is stretched."""

    settings: Settings
    options: ClassVar = frozenset({"factors", "replace"})

    @classmethod
    def of(cls, loaded: Loaded, reading: Reading, settings: Settings, names: Sequence[str]) -> "ByEncoding":
        """Plan the methods of these names; raises as `methods.plan` does."""
        factors = None if settings.factors is None else methods.read_factors(Path(settings.factors))
        if factors is not None and "longrope" not in methods.names_of(names):
            raise ValueError("--longrope-factors is for the method longrope; name it with --method")
        source = loaded.path / "config.json"
        config = read_json(source, within=loaded.path) if source.is_file() else loaded.said()
        plan = methods.plan(reading, config, settings.factor, names, longrope=factors, replace=settings.replace)
        if not any(one.is_meta for one in loaded.model.parameters()):
            plan = methods.attachable(loaded.model, plan, names)
        more = {"loaded": loaded, "config": config, "fitting": OF_DECODERS, "settings": settings}
        return cls(**vars(plan), **more)

    def facts(self, method: Method, length: int) -> dict[str, Any]:
        as_it_is = method.name == "none"
        own = () if as_it_is else files_in(*method.specs)
        return {
            "specs": ["as it is"] if as_it_is else list(method.specs),
            "horizon": length if method.by_length else None,
            **({"own_files": {path: code.sha256(path) for path in own}} if own else {}),
        }

    @contextmanager
    def used(self, method: Method, length: int) -> Generator[Any]:
        with methods.attached(self.loaded.model, method, length):
            yield self.loaded.model

    def write(self, method: Method, where: Path) -> None:
        """The config changed; the weights as they lie, or, of a GGUF file, as they were loaded."""
        assert method.config is not None
        if not (self.loaded.path / "config.json").is_file():
            self.loaded.save_huggingface(where, method.config)
            return
        others = [file for file in files_of(self.loaded.path) if file.suffix in KINDS and not MADE.search(file.name)]
        write_folder(where, method.config, open_tensors(self.loaded.path).items(), copy=others)

    def verify(self, method: Method, where: Path, losses: FirstLosses) -> dict[str, Any]:
        """By transformers alone: every layer is as planned, and the mean loss of a text is what was measured."""
        assert method.config is not None and method.planned is not None
        ids, expected = losses(method, VERIFIED)
        # Two copies of a large model do not fit.
        del self.loaded
        check_written(where, method.planned)
        difference = difference_of(where, ids, expected, self.settings.dtype, self.settings.device)
        words = (
            f"transformers loads it, and its mean loss over the first {len(ids):,} tokens is that of the table to "
            f"{difference:.1g} nats."
        )
        return {"tokens": len(ids), "difference": difference, "words": " ".join((words, *unsaid(method.config)))}


def difference_of(folder: Path, ids: Tensor, expected: Tensor, dtype: str, device: str = "cpu") -> float:
    """How far (nats) the mean loss of a written checkpoint, run by transformers alone, lies from the expected one.

    Raises RuntimeError where it is not near.
    """
    from transformers import AutoModelForCausalLM

    from posenc.checkpoints.formats import load

    spread = {"device_map": load.SPREAD} if device == AUTO else {}
    with load.quietly():
        kind = AutoModelForCausalLM
        model = kind.from_pretrained(folder, dtype=load.dtype_of(dtype), local_files_only=True, **spread).eval()
    if not spread:
        model.to(torch.device(device))
    # In one piece: behind a cache, transformers' own dynamic scaling goes wrong.
    found = perplexity.losses(model, ids, chunk=len(ids))
    difference = abs(float(found.double().mean() - expected.double().mean()))
    limit = NEAR.get(dtype, 0.02)
    if not difference <= limit:
        raise RuntimeError(
            f"the written checkpoint has a mean loss of {float(found.mean()):.4f} over {len(ids)} tokens, and the "
            f"table says {float(expected.mean()):.4f}; they may differ by {limit:g} nats, so it is not kept"
        )
    return difference
