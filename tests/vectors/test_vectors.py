"""Test vectors: the same bytes each time, replayed by NumPy alone, and the library's numbers."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from posenc import cli, vectors
from posenc.vectors import vector_reader


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vectors")
    vectors.write(((name, vectors.vectors(spec)) for name, spec in vectors.FAMILIES.items()), path)
    return path


def test_twenty_families_are_small_and_the_same_each_time(folder: Path, tmp_path: Path) -> None:
    assert not cli.main(["vectors", "all", "--out", str(tmp_path)])
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert files == {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert len(files) == 41 and sum(map(len, files.values())) < 10_000_000


def test_the_reader_is_short_and_replays_rotary_without_torch(folder: Path) -> None:
    reader = folder / "vector_reader.py"
    assert len(reader.read_text().splitlines()) <= 80
    code = f"""
import runpy, sys
sys.argv[1:] = [{str(folder)!r}]
try:
    runpy.run_path({str(reader)!r}, run_name="__main__")
except SystemExit as end:
    assert not end.code, end.code
assert not {{"torch", "posenc"}} & sys.modules.keys()
"""
    run = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "rotary replayed: the largest difference is" in run.stdout


def test_the_reader_sees_another_layout(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    description = json.loads((folder / "rotary-half.json").read_text())
    (tmp_path / "rotary.json").write_text(json.dumps(description | {"layout": "interleaved"}))
    (tmp_path / "rotary.npz").write_bytes((folder / "rotary-half.npz").read_bytes())
    assert vector_reader.main(tmp_path) == 1


def test_cases_agree_with_each_other_and_with_formulas(folder: Path) -> None:
    description, arrays = vector_reader.read(folder, "rotary-yarn")
    assert description["cases"] == ["counted", "ends", "beyond", "packed", "padded", "decoded", "moved"]
    assert np.array_equal(arrays["q/decoded"], arrays["q/counted"][:, :, -1:])
    assert arrays["q_positions/packed"].tolist() == [[0, 1, 0, 0, 1, 2]]
    assert arrays["q_positions/beyond"][0, :3].tolist() == [512, 513, 2048]
    assert arrays["mask/packed"][0].tolist()[2] == [0, 0, 1, 0, 0, 0]
    replayed_keys = vector_reader.rotate(arrays["k"], arrays["k_positions/moved"], description)
    assert np.abs(replayed_keys - arrays["k/moved"]).max() < 1e-5 and arrays["k_positions/moved"][0, 0] == 3
    _, arrays = vector_reader.read(folder, "alibi")
    slopes = 2.0 ** (-2 * np.arange(1, 5))
    assert np.allclose(arrays["bias/decoded"][0, :, 0], -slopes[:, None] * np.arange(5, -1, -1))


def test_what_an_encoding_refuses_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not cli.main(["vectors", "learned(max_len=16)", "--out", str(tmp_path)])
    output = capsys.readouterr()
    assert "encoding has no case beyond: position 2048 is past the learned table of 16 rows" in output.out + output.err
    assert "beyond" not in json.loads((tmp_path / "encoding.json").read_text())["cases"]
    with pytest.raises(ValueError, match="forgetting opens the door remember; there are vectors of what embeds"):
        vectors.vectors("forgetting")
    assert cli.main(["vectors", "rotery", "--out", str(tmp_path)])
    assert "did you mean 'rotary'" in capsys.readouterr().err


def test_a_checkpoint_gives_the_vectors_of_its_layers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "gpt_neox", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 1}
    config |= {"vocab_size": 99, "intermediate_size": 64, "rotary_pct": 0.25, "max_position_embeddings": 128}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not cli.main(["vectors", str(tmp_path), "--out", str(tmp_path / "out")])
    description, arrays = vector_reader.read(tmp_path / "out", "model-0")
    assert description["spec"] == "rotary(partial=0.25)" and arrays["q"].shape[-1] == 16
    assert np.array_equal(arrays["q/beyond"][..., 4:], arrays["q"][..., 4:])
    assert vector_reader.main(tmp_path / "out") == 0
