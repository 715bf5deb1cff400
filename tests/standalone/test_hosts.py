"""Ejected files in models of three shapes: each patch is short, and training goes as with the library."""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from posenc import Rotary, schedules
from posenc.standalone import eject

HOSTS = Path(__file__).resolve().parents[2] / "examples" / "hosts"
STEPS = 50
YARN = {"trained_length": 16, "attention_factor": 1.0}


class WithLibrary(nn.Module):
    """What an ejected file does, by the library."""

    def __init__(self, head_dim: int, options: dict[str, Any], seq_dim: int, module: ModuleType) -> None:
        super().__init__()
        self.head_dim, self.options, self.seq_dim, self.module = head_dim, options, seq_dim, module

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        schedule = schedules.YaRN(self.module.FACTOR, **YARN) if "schedule" in self.options else None
        return Rotary(self.head_dim, **(self.options | {"schedule": schedule}))(q, k, seq_dim=self.seq_dim)


CASES = {
    "heads_first": ({}, 2),
    "heads_last": ({"layout": "swapped"}, 1),
    "windows": ({"layout": "swapped", "partial": 0.5, "schedule": True}, 1),
}
SPECS = {
    "heads_first": "rotary",
    "heads_last": "rotary(layout='swapped')",
    "windows": "rotary(layout='swapped', partial=0.5, schedule=yarn(factor=1, trained_length=16, attention_factor=1))",
}


@pytest.fixture(params=CASES)
def host(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Path]]:
    name = request.param
    (tmp_path / f"{name}.py").write_text((HOSTS / f"{name}.py").read_text())
    subprocess.run(["git", "apply", str(HOSTS / f"{name}.patch")], cwd=tmp_path, check=True)
    yield name, tmp_path / f"{name}.py"
    sys.modules.pop("rope", None)


def losses(path: Path) -> list[float]:
    """Return the losses of a host's first steps; its windows grow in the middle."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    host = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = host  # dataclasses ask for it
    spec.loader.exec_module(host)
    torch.manual_seed(0)
    model = host.build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    results = []
    for step in range(STEPS):
        if step == STEPS // 2 and hasattr(model, "grow"):
            model.grow(32)
        start = torch.randint(0, 64, (8, 1))
        tokens = (start + torch.arange(49) ** 2) % 64
        loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        results.append(loss.item())
    return results


def test_a_patch_is_short_and_training_goes_as_with_the_library(host: tuple[str, Path]) -> None:
    name, path = host
    patch = (HOSTS / f"{name}.patch").read_text().splitlines()
    assert sum(line[:1] in "+-" and line[:3] not in ("+++", "---") for line in patch) <= 40
    options, seq_dim = CASES[name]
    from_file, library = ModuleType("rope"), ModuleType("rope")
    exec(eject(SPECS[name], seq_dim=seq_dim), from_file.__dict__)
    library.FACTOR = 1.0  # ty: ignore[unresolved-attribute]
    library.RotaryEmbedding = lambda head_dim: WithLibrary(head_dim, options, seq_dim, library)  # ty: ignore[unresolved-attribute]
    curves = []
    for module in (from_file, library):
        sys.modules["rope"] = module
        curves.append(losses(path))
    assert curves[0][-1] < 0.8 * curves[0][0]
    assert curves[0] == pytest.approx(curves[1], abs=1e-4)
