"""Models on other devices than the CPU, as far as a CPU can test it: refusals, spread models, the device of tokens."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_llama
import torch

from posenc.checkpoints import attach
from posenc.checkpoints.extension import report
from posenc.checkpoints.extension.clock import Meter
from posenc.checkpoints.extension.extend import extend
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.files.tensors import GGUFTensors
from posenc.checkpoints.formats import devices, load
from posenc.checkpoints.live.cached_positions import PassPositions
from posenc.checkpoints.measures import perplexity
from posenc.tokens.positions import Positions

WITHOUT_CUDA = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
ON_DISK = {"model.embed_tokens": "cpu", "model.layers.0": "cpu", "model.layers.1": "disk", "model.norm": "cpu"}
ON_DISK |= {"model.rotary_emb": "cpu", "lm_head": "cpu"}


@WITHOUT_CUDA
@pytest.mark.parametrize("name", ["cuda", "cuda:1", "mps"])
def test_a_device_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=rf"there is no device {name} here; torch .* has cpu: give one of these"):
        devices.check_device(name)


def test_a_device_that_is_none_and_one_too_many_are_refused(monkeypatch) -> None:
    with pytest.raises(ValueError, match="device must be cpu, cuda, cuda:1, mps or auto, got 'gpu'"):
        devices.check_device("gpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    devices.check_device("cuda:1")
    with pytest.raises(ValueError, match=r"no device cuda:2 here; torch .* has cpu, cuda:0, cuda:1: give one"):
        devices.check_device("cuda:2")


def test_without_accelerate_its_name_is_said(monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"--device auto spreads a model by accelerate, .*`pip install 'posenc\[hf\]'`"
    ):
        devices.check_device("auto")


@WITHOUT_CUDA
def test_what_is_not_there_is_refused_before_anything_is_made(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    message = r"there is no device cuda here|keeps keys off a CUDA device|--cache is one of device, cpu"
    for options in ({"device": "cuda"}, {"cache": "cpu"}, {"cache": "disk"}):
        with pytest.raises(ValueError, match=message):
            extend(Settings(str(model), 2.0, **options), out)
    assert not out.exists()


def test_what_is_made_of_weights_is_not_spread(model: Path, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("accelerate")
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": 24, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40}
    GPT2LMHeadModel(GPT2Config(**sizes)).save_pretrained(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="--device auto: a longer table is made of weights that are all in one place"):
        extend(Settings(str(tmp_path / "gpt2"), 2.0, device="auto"), tmp_path / "out")
    monkeypatch.setattr(load, "open_tensors", lambda where: object.__new__(GGUFTensors))
    with pytest.raises(ValueError, match="is unpacked in memory and cannot be spread; name one --device"):
        load.load(model, device="auto")


def test_a_model_that_is_spread_to_the_disk_gives_the_same_numbers(model: Path, monkeypatch) -> None:
    pytest.importorskip("accelerate")
    plain = load.load(model).model
    monkeypatch.setattr(load, "DEVICE_MAP", ON_DISK)
    disk = load.load(model, device="auto").model
    assert next(disk.model.layers[1].parameters()).is_meta and devices.input_device(disk) == torch.device("cpu")
    ids = torch.arange(60) % 90
    for spec in (
        None,
        "rotary(base=500.0, schedule=yarn(factor=2, trained_length=96))",
        "rerope(rotary(base=500.0), window=20)",
    ):
        losses = []
        for each_model in (plain, disk):
            if spec:
                attach(each_model, spec)
            losses.append(perplexity.losses(each_model, ids, chunk=25))
        assert torch.equal(*losses), spec
        for each_model in (plain, disk):
            if spec:
                each_model.posenc_attachment.detach()


def test_a_run_of_a_spread_model_is_that_of_a_whole_one(model: Path, text: str, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.setattr(load, "DEVICE_MAP", ON_DISK)
    monkeypatch.setattr(report, "write", lambda record, folder: None)
    options: dict[str, Any] = {
        "methods": ("yarn",),
        "text": (text,),
        "chunk": 50,
        "start": 10,
        "measures": ("perplexity",),
        "samples": 2,
    }
    whole = extend(Settings(str(model), 2.0, **options), tmp_path / "whole")
    spread_run = extend(Settings(str(model), 2.0, **options, device="auto"), tmp_path / "spread")
    for method, spread_method in zip(whole["methods"], spread_run["methods"], strict=True):
        for a, b in zip(method["values"], spread_method["values"], strict=True):
            assert a["value"] == pytest.approx(b["value"], rel=1e-5)
    # Written from the files, and compared with its own weights on the disk.
    assert spread_run["written"]["difference"] < 1e-4 and spread_run["made"]["device"] == "auto"


def test_tokens_go_to_the_first_device_of_a_spread_model() -> None:
    spread_model = SimpleNamespace(
        hf_device_map={"model.embed_tokens": "cpu", "model.layers.0": "cuda:1", "lm_head": "cuda:0"}
    )
    assert devices.input_device(spread_model) == torch.device("cuda:1")


def test_positions_are_copied_once_to_the_device_of_a_layer() -> None:
    at = Positions.count(5)
    step = PassPositions((), at, at, ())
    # The meta device counts as another device.
    moved_at = step.on_device(at, torch.device("meta"))
    assert moved_at.coords.is_meta and moved_at.order.is_meta and step.on_device(at, torch.device("meta")) is moved_at
    assert step.on_device(at, torch.device("cpu")) is at


def test_the_peak_of_gpus_is_their_own(monkeypatch) -> None:
    resets = []
    monkeypatch.setattr(torch.accelerator, "reset_peak_memory_stats", resets.append)
    monkeypatch.setattr(torch.accelerator, "max_memory_allocated", lambda device: (device.index + 1) << 20)
    with Meter([torch.device("cuda:0"), torch.device("cuda:1")]) as meter:
        pass
    assert meter.peak_mib == 3 and len(resets) == 2


def test_keys_elsewhere_are_in_the_cache_of_transformers_for_that(monkeypatch) -> None:
    import transformers

    offloads, kind = [], transformers.DynamicCache

    def new(config: Any, offloading: bool) -> Any:
        offloads.append(offloading)
        return kind(config=config)

    monkeypatch.setattr(transformers, "DynamicCache", new)
    model, ids = tiny_llama.model(), torch.arange(60) % 90
    assert torch.equal(perplexity.losses(model, ids, chunk=25, cache="cpu"), perplexity.losses(model, ids, chunk=25))
    assert offloads == [True]
