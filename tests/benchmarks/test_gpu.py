"""The command for a GPU, run with small sizes where there is none: rows come one by one, and none is lost."""

import json
import sys
from pathlib import Path

import pytest
import torch

import gpu


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rows_are_saved_as_they_come_and_the_time_is_kept(tmp_path: Path, monkeypatch, capsys) -> None:
    file = tmp_path / "new" / "gpu.jsonl"
    command = ["gpu.py", "--device", "cpu", "--small", "--minutes", "0.03", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", command)
    gpu.main()
    first = rows(file)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == first
    assert (first[0]["what"], first[-1]) == ("machine", first[-1] | {"what": "end", "name": "the time is over"})
    checked = [row for row in first if row["what"] == "check" and "failed" not in row]
    assert len(checked) > 5 and all(row["off"] == row["gradient_off"] == 0 for row in checked)
    gpu.main()
    assert rows(file)[: len(first)] == first and len(rows(file)) > len(first)


def test_every_model_trains_and_answers_and_a_case_that_fails_is_a_row(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(gpu.Bench, "milliseconds", lambda self, call: (call(), 1.0)[1])
    bench, ids = gpu.Bench(tmp_path / "rows", "cpu", 1), torch.randint(gpu.SMALL.vocab, (1, 8))
    for name, make in gpu.models(gpu.SMALL, 8):
        # FlexAttention has no backward pass on a CPU, and x-transformers may not be installed.
        if "FlexAttention" not in name and "x-transformers" not in name:
            gpu.measure_model(bench, name, make(), ids, {"compiled": False}, decodes=True)
    assert not [row for row in rows(bench.file) if "failed" in row]
    assert {"posenc none", "transformers, Llama"} <= {row["name"] for row in rows(bench.file)}
    bench.measured("training", "broken", lambda: ids + "x")
    assert "TypeError" in rows(bench.file)[-1]["failed"] and "ms" not in rows(bench.file)[-1]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_how_to_try_it(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "there is no CUDA device; --device cpu --small tries the command" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
