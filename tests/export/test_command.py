"""posenc export: folders of posenc train, and checkpoints in transformers' form, as files that say the same."""

from pathlib import Path

import pytest
import tiny_llama
import torch

from posenc import cli
from posenc.export import Exported, export
from posenc.lab.runs.single_run import train_one


def test_a_trained_folder_is_exported_and_says_what_it_was_trained_on(tmp_path: Path, capsys) -> None:
    train_one("rotary", "copy", 100, tmp_path / "run", 1, lambda words: None, steps=1, train_length=4, layers=1)
    path = tmp_path / "model.pt2"
    assert cli.main(["export", str(tmp_path / "run"), "--out", str(path)]) == 0
    assert f"Model: {path}" in capsys.readouterr().out
    about = Exported(path).about
    assert (about["task"], about["trained_length"], about["encoding"]) == ("copy", "4", "rotary(base=1000.0)")
    mapped = {"map": "interpolated(factor=2)", "steps": 1, "train_length": 4, "layers": 1}
    train_one("rotary", "copy", 100, tmp_path / "mapped", 1, lambda words: None, **mapped)
    assert cli.main(["export", str(tmp_path / "mapped"), "--out", str(path)]) == 2
    assert "an exported graph counts its tokens 0, 1, 2, ..., and the model of" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("form", [".pt2", ".onnx"])
def test_a_checkpoint_of_transformers_generates_the_same(form: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers", reason="posenc[hf] is not installed")
    folder, path = tiny_llama.save(tmp_path / "llama"), tmp_path / f"model{form}"
    assert cli.main(["export", str(folder), "--out", str(path)]) == 0
    exported, model, ids = Exported(path), tiny_llama.model(), torch.randint(90, (2, 5))
    assert exported.about["encoding"] == "rotary(base=500)" and exported.about["model"] == "LlamaForCausalLM"
    expected = model.generate(ids, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert exported.generate(ids, 9).equal(expected)
    with pytest.raises(ValueError, match="LlamaForCausalLM is exported with a cache; leave cached out"):
        export(model, path, cached=False)
