"""`posenc export` exports the models of `posenc train` folders, and rejects other folders."""

import json
from pathlib import Path

import pytest
import tiny_llama
import torch

from posenc import cli
from posenc.export import export
from posenc.lab.runs.single_run import train_run


@pytest.mark.slow
def test_a_trained_folder_is_exported_and_says_what_it_was_trained_on(tmp_path: Path, capsys) -> None:
    train_run("rotary", "copy", 100, tmp_path / "run", 1, lambda words: None, steps=1, train_length=4, layers=1)
    path = tmp_path / "model.pt2"
    assert cli.main(["export", str(tmp_path / "run"), "--out", str(path)]) == 0
    assert f"Model: {path}" in capsys.readouterr().out
    torch.export.load(path, extra_files=(files := {"about.json": ""}))
    metadata = json.loads(files["about.json"])
    assert (metadata["task"], metadata["trained_length"], metadata["encoding"]) == ("copy", "4", "rotary(base=1000.0)")
    options = {"map": "interpolated(factor=2)", "steps": 1, "train_length": 4, "layers": 1}
    train_run("rotary", "copy", 100, tmp_path / "mapped", 1, lambda words: None, **options)
    assert cli.main(["export", str(tmp_path / "mapped"), "--out", str(path)]) == 2
    assert "an exported graph counts its tokens 0, 1, 2, ..., and the model of" in capsys.readouterr().err


def test_models_of_transformers_are_sent_to_optimum(tmp_path: Path, capsys) -> None:
    pytest.importorskip("transformers", reason="posenc[hf] is not installed")
    folder, path = tiny_llama.save(tmp_path / "llama"), tmp_path / "model.pt2"
    assert cli.main(["export", str(folder), "--out", str(path)]) == 2
    assert "is no folder that posenc train has filled; models of transformers are exported by optimum-onnx" in (
        capsys.readouterr().err
    )
    with pytest.raises(ValueError, match=r"a LlamaForCausalLM is not called as model\(ids, positions=\.\.\.\)"):
        export(tiny_llama.model(), path)
    assert not path.exists()
