"""The extended checkpoint: written, loaded by transformers alone, and held to what was measured."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc.checkpoints.extension import perplexity
from posenc.checkpoints.extension.choice import ranked
from posenc.checkpoints.extension.methods import Method
from posenc.checkpoints.files.folder_writer import write_folder
from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.inspection.served import check_written
from posenc.checkpoints.kinds.rotary.old_keys import unsaid
from posenc.foreign import files_of

if TYPE_CHECKING:
    from posenc.checkpoints.extension.extend import Run

CHECKPOINT = "checkpoint"
"""The folder, in the folder of a run, that holds the extended checkpoint."""

VERIFIED = 1024
"""On how many tokens the written checkpoint is compared with what was measured."""

NEAR = {"float32": 1e-3, "float64": 1e-6}
"""How far (nats) the mean loss of the written checkpoint may lie from the measured one; in half precision 0.02."""


def written(run: "Run", record: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Write the checkpoint of a method and compare it, loaded by transformers alone, with what was measured."""
    method = next(method for method in run.plan.methods if method.name == name)
    if name == "none":
        return {"path": None, "words": "Nothing was written: no method is better than the model as it is."}
    if method.config is None or method.planned is None:
        other = [
            m["name"]
            for m in ranked(record["methods"], record["trained"], record["target"])
            if m["config"] is not None and m["name"] != "none"
        ]
        hint = f" Of those that can be written, {other[0]} comes first: --method {other[0]} writes it." if other else ""
        return {"path": None, "words": f"Nothing was written for {name}: {method.why_not}.{hint}"}
    where = run.out / CHECKPOINT
    if not where.exists():
        write(run, method)
    kept = run.one_pass(method, run.passes(method)[0], name)["losses"][0]
    ids = run.text.window(run.start, min(VERIFIED, run.plan.trained, len(kept) + 1))
    # Two copies of a large model do not fit.
    run.loaded = None
    expected = torch.tensor(kept)[: len(ids) - 1]
    try:
        check_written(where, method.planned)
        difference = verify(where, ids, expected, run.settings.dtype)
    except Exception:
        shutil.rmtree(where)
        raise
    words = (
        f"transformers loads it, and its mean loss over the first {len(ids):,} tokens is that of the table to "
        f"{difference:.1g} nats."
    )
    words = " ".join((words, *unsaid(method.config)))
    return {"path": str(where), "method": name, "tokens": len(ids), "difference": difference, "words": words}


def write(run: "Run", method: Method) -> None:
    """The extended checkpoint: the config changed; the weights as they lie, unless they were tuned or quantised."""
    where, source = run.out / CHECKPOINT, run.loaded.path
    assert method.config is not None
    if run.as_it_lies:
        others = [file for file in files_of(source) if is_beside(file)]
        write_folder(where, method.config, open_tensors(source).items(), copy=others)
    else:
        run.loaded.save_huggingface(where, method.config)


def is_beside(file: Path) -> bool:
    """Whether a file belongs to a tokenizer or to generation, and so goes along with a checkpoint."""
    kinds = (".json", ".txt", ".model", ".jinja")
    own = file.name in ("config.json", "fetched.json") or file.name.endswith(".safetensors.index.json")
    return file.suffix in kinds and not own


def verify(folder: Path, ids: Tensor, expected: Tensor, dtype: str) -> float:
    """How far (nats) the mean loss of a written checkpoint, run by transformers alone, lies from the expected one.

    Raises RuntimeError where it is not near.
    """
    from transformers import AutoModelForCausalLM

    from posenc.checkpoints.formats.load import dtype_of, quietly

    with quietly():
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype_of(dtype), local_files_only=True).eval()
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
