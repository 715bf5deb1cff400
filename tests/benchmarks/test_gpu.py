"""The command for a GPU, run with small sizes where there is none: rows come one by one, and none is lost."""

import functools
import json
import sys
import weakref
from pathlib import Path

import gpu_stand_in
import pytest
import torch

import gpu
from posenc import catalogue
from posenc.kernels import flex


def rows(file: Path) -> list[dict]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_rows_are_saved_as_they_come_and_the_time_is_kept(tmp_path: Path, monkeypatch, capfd) -> None:
    file = tmp_path / "new" / "gpu.jsonl"
    command = ["gpu.py", "--device", "cpu", "--small", "--minutes", "0.03", "--out", str(file)]
    monkeypatch.setattr(sys, "argv", [*command, "--part", "check"])
    gpu.main()
    checks = [row for row in rows(file) if "failed" not in row]
    assert len(checks) > 5 and all(row["off"] == row["gradient_off"] == 0 for row in checks)
    assert len(rows(file)) == 8 + len(catalogue.names())
    count = rows(file)
    monkeypatch.setattr(sys, "argv", command)
    gpu.main()
    assert [json.loads(line) for line in capfd.readouterr().out.splitlines()] == rows(file)
    machine, *parts, ratios, end = rows(file)[len(count) :]
    # A second is too short for a process that imports PyTorch.
    assert machine["what"] == "machine" and {"segments", "check"} <= {row["what"] for row in parts if "failed" in row}
    assert (ratios["what"], end) == ("ratios", end | {"what": "end", "name": "the time is over"})


def test_every_model_trains_and_answers_and_a_case_that_fails_is_a_row(tmp_path: Path, monkeypatch) -> None:
    bench = gpu.Bench(tmp_path / "rows", "cpu", gpu.SMALL._replace(lengths=(8,), tokens=8), 1)
    monkeypatch.setattr(bench, "seconds_of", functools.cache(lambda call: (call(), 1.0)[1]))
    for name, make in gpu.models(bench.sizes, 8).items():
        # FlexAttention has no backward pass on a CPU, and x-transformers may not be installed.
        if "FlexAttention" not in name and "x-transformers" not in name:
            gpu.measure_model(bench, name, make, 8, is_compiled=False)
    bench.ratios(8)
    *names, ratios = rows(bench.file)
    assert not [row for row in names if "failed" in row]
    assert {"posenc none", "transformers, Llama (rotary)"} <= {row["name"] for row in names}
    assert {"by hand, none", "by hand, rotary"} <= set(ratios["training: posenc rotary"])


def test_a_case_that_fails_gives_its_memory_back(tmp_path: Path) -> None:
    references = []

    def fails() -> None:
        tensor = torch.zeros(3)
        references.append(weakref.ref(tensor))
        try:
            raise MemoryError("no room\nfor 3 numbers")
        except MemoryError as error:
            cycle = error  # which holds this frame
            raise cycle from None

    bench = gpu.Bench(tmp_path / "rows", "cpu", gpu.SMALL, 1)
    bench.measure_call("training", "broken", fails, 8)
    assert references[0]() is None and not bench.first
    assert rows(bench.file)[-1]["failed"] == "MemoryError: no room for 3 numbers" and "ms" not in rows(bench.file)[-1]


def test_no_line_of_it_fails_on_a_gpu_for_want_of_a_name_or_a_device(tmp_path: Path, monkeypatch) -> None:
    calls = gpu_stand_in.install_gpu_stand_in(monkeypatch)
    for name in ("synchronize", "reset_peak_memory_stats", "empty_cache", "memory_allocated", "max_memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, lambda: 0)
    monkeypatch.setattr(torch.cuda.memory, "_snapshot", lambda: {"allocator_settings": {"expandable_segments": True}})
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: torch.ones(x.shape) if x.is_meta else x)
    monkeypatch.setattr(torch, "compile", lambda model, **options: model)
    monkeypatch.setattr(gpu, "compiled_flex_attention", lambda: flex.flex_attention("cuda", "alibi"))
    # Peers do not know tensors without numbers; a collection looks through all that the tests hold.
    monkeypatch.setattr(gpu, "llama", None), monkeypatch.setattr(gpu, "x_transformers", None)
    monkeypatch.setattr(gpu.gc, "collect", lambda: 0)
    bench = gpu.Bench(tmp_path / "rows", "meta", gpu.Sizes(64, 4, 1, 101, 2048, (1100,), 36), 5)
    monkeypatch.setattr(bench, "seconds_of", functools.cache(lambda call: (call(), 1.0)[1]))
    for part in gpu.PARTS.values():
        part(bench)
    finished_rows = rows(bench.file)
    failures = [row for row in finished_rows if "failed" in row and "transformers" not in row["name"]]
    assert not failures and finished_rows[-1]["name"] == "all rows are there"
    posenc_rows = {f"posenc {spec}" for spec in gpu.SPECS}
    for kind in ("training", "prefill", "decode"):
        assert posenc_rows <= {row["name"] for row in finished_rows if row["what"] == kind and row["tokens"] == 1100}
    assert {row["name"] for row in finished_rows if row["what"] == "check"} >= {*catalogue.names(), "alibi, trained"}
    assert {call.kernel for call in calls} == {"sdpa", "flex", "triton"}


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_it_says_how_to_try_it(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--out", str(tmp_path / "none")])
    with pytest.raises(SystemExit):
        gpu.main()
    assert "there is no CUDA device; --device cpu --small tries the command" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()
