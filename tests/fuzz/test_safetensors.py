"""Hostile safetensors and folders of them: read, or refused in a sentence, within limits."""

import json
import os
import shutil
import sys
from random import Random

import pytest
import torch
from fuzz.driver import LARGEST, hold, mutated, short_and_long
from safetensors.torch import save_file

from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.inspection.inspect import inspect
from posenc.lab.safetensors_file import DTYPES

CONFIG = {"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "rope_theta": 10_000.0, "vocab_size": 32}
NAMES = (
    "layers.0.attention.wq.weight layers.1.attention.wk.weight rope.freqs inv_freq wpe.weight pos_embed x "
    "layers.99999999999999999999.attention.wq.weight blocks.0.layers.0.x relative_attention_bias.weight __metadata__"
).split()


def packed(said: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file by hand; the header may claim another length."""
    words = said if isinstance(said, bytes) else json.dumps(said).encode()
    return (len(words) if length is None else length).to_bytes(8, "little") + words + data


def entry(shape, dtype="F32", start=0, end=None):
    size = 4
    for axis in shape:
        size *= axis
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, size if end is None else end]}


def sound() -> bytes:
    told, start = {}, 0
    for name, shape in {"rope.freqs": [8], "layers.0.attention.wq.weight": [64, 64], "wpe.weight": [4, 4]}.items():
        told[name] = entry(shape, start=start)
        start = told[name]["data_offsets"][1] = start + told[name]["data_offsets"][1]
    return packed({"__metadata__": {"format": "pt"}, **told}, bytes(start))


SOUND = sound()
HEADER = 8 + int.from_bytes(SOUND[:8], "little")


def anything(random: Random):
    return random.choice(
        (None, True, -1, 0, 1, 2.5, "F32", "x" * 3_000, [], {}, [[]], float("nan"), *LARGEST, 1 << 200)
    )


def built(random: Random) -> bytes:
    """A header whose entries are mostly what they should be."""
    said, start = {}, 0
    for name in random.sample(NAMES, random.randrange(1, 5)):
        shape = [random.choice((0, 1, 2, 8, 64)) for _ in range(random.randrange(4))]
        dtype = random.choice(list(DTYPES))
        size = DTYPES[dtype].itemsize
        for axis in shape:
            size *= axis
        said[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
        if random.random() < 0.2:
            part = random.choice(("dtype", "shape", "data_offsets", "more"))
            said[name][part] = anything(random)
        if random.random() < 0.1:
            said[name]["shape"].append(anything(random)) if isinstance(said[name]["shape"], list) else None
        if random.random() < 0.05:
            said[name] = anything(random)
    return packed(said, bytes(start))


def held(write, seeds, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))

    def read(seed):
        (tmp_path / "model.safetensors").write_bytes(write(Random(seed)))
        tensors = open_tensors(tmp_path / "model.safetensors")
        for name in tensors:
            assert tensors[name].shape == tensors.shape(name) == tensors.described()[name].shape
        inspect(tmp_path)

    found = hold(read, seeds)
    assert found["read"] > len(seeds) / 50 and found["refused"] > len(seeds) / 20


@short_and_long(300)
def test_a_header_with_faults_is_read_or_refused(seeds, tmp_path):
    held(lambda random: mutated(random, SOUND, upto=HEADER), seeds, tmp_path)


@short_and_long(300)
def test_a_header_of_anything_is_read_or_refused(seeds, tmp_path):
    held(built, seeds, tmp_path)


MANY = {f"t{n}": entry([0]) for n in range(60_000)}
WQ = "layers.0.attention.wq.weight"
CLAIMS = {
    "length 2^62": packed({}, length=1 << 62),
    "length 2^64-1": packed({}, length=(1 << 64) - 1),
    "60,000 names and one twice": packed(json.dumps(MANY)[:-1].encode() + b', "t9": {}}'),
    "names that differ by a control character": packed(b'{"a\\u001b": {}, "a\\u009b": {}}'),
    "lists 200,000 deep": packed(b'{"a":' + b"[" * 200_000),
    "a number of 5,000 digits": packed(b'{"a": {"shape": [' + b"9" * 5_000 + b'], "data_offsets": [0, 4]}}'),
    "no list of axes": packed({WQ: {"dtype": "F32", "shape": "ab", "data_offsets": [0, 0]}}),
    "a list as dtype": packed({WQ: {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "an axis of 2^200 and one of 0": packed({WQ: entry([0, 1 << 200], end=0)}),
    "an axis of 2^62 and one of 0": packed({WQ: entry([1 << 62, 0, 4], end=0)}),
    "1,000 axes": packed({WQ: entry([1] * 1_000)}, bytes(4)),
    "5 GB that are not there": packed({WQ: entry([5 << 28])}),
    "a name of a million letters": packed({"x" * 1_000_000: entry([1])}, bytes(4)),
    "17 MB of header": packed(b"{" + b" " * (17 << 20) + b"}"),
}  # fmt: skip


def test_each_claim_that_once_took_minutes_or_ended_in_a_traceback_is_refused(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))

    def read(case):
        (tmp_path / "model.safetensors").write_bytes(CLAIMS[case])
        inspect(tmp_path)

    assert hold(read, list(CLAIMS), cpu=3.0, memory=150 << 20) == {"refused": len(CLAIMS)}


def test_a_sparse_file_of_5_gigabytes_is_inspected_by_its_header(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(packed({WQ: entry([5 << 28])}))
        file.truncate(file.tell() + (5 << 30))
    told = tmp_path / "told"
    read = lambda case: told.write_text("\n".join(inspect(tmp_path).contradictions))  # noqa: E731
    assert hold(read, [WQ], cpu=3.0, memory=100 << 20) == {"read": 1}
    assert WQ in told.read_text() and "has 1342177280 rows, and the config says" in told.read_text()


@pytest.mark.parametrize("shape", [[], [0], [0, 4]])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_tensors_without_numbers_or_axes_are_no_traceback(name, shape, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(packed({name: entry(shape)}, bytes(0 if 0 in shape else 4)))
    assert inspect(tmp_path).parts


# Folders


def folder(home) -> None:
    """A whole sharded checkpoint with an index."""
    home.mkdir(parents=True)
    held = {}
    for number, name in enumerate((WQ, "layers.1.attention.wq.weight"), 1):
        held[name] = f"model-{number:05}-of-00002.safetensors"
        save_file({name: torch.zeros(64, 64)}, home / held[name])
    (home / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": held}))
    (home / "params.json").write_text(json.dumps(CONFIG))


def damage(random: Random, home) -> None:
    """One thing wrong with a folder: a file removed, replaced by what is no file, linked elsewhere, or with faults."""
    file = random.choice(sorted(file for file in home.iterdir() if file.is_file()))
    data, fault = file.read_bytes(), random.randrange(9)
    if fault < 7:
        file.unlink()
    if fault == 1:
        os.mkfifo(file)
    elif fault == 2:
        file.mkdir()
    elif fault == 3:
        file.symlink_to(random.choice(("/dev/zero", "/dev/random", "/etc/passwd", str(file), "nowhere", "../outside")))
    elif fault == 4:
        file.write_bytes(mutated(random, data, upto=400))
    elif fault == 5:
        file.write_bytes(data.replace(b"00002", random.choice((b"99999", b"/../x", b"\x00\x1b[3", b"00001"))))
    elif fault == 6:
        file.with_name(
            random.choice(("model-00001-of-99999999999999999999.safetensors", "other.safetensors"))
        ).write_bytes(data)
    elif fault == 7:
        other = random.choice(("more.safetensors", "model.gguf", "model.bin", "two.safetensors.index.json"))
        file.with_name(other).write_bytes(random.choice((data, b"", b"\x80\x04", b"GGUF")))


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
@short_and_long(75, 2_000)
def test_a_damaged_folder_is_read_or_refused(seeds, tmp_path):
    (tmp_path / "outside").write_bytes(SOUND)

    def read(seed):
        home = tmp_path / "model"
        shutil.rmtree(home, ignore_errors=True)
        folder(home)
        random = Random(seed)
        for _ in range(random.choice((0, 1, 1, 2))):
            damage(random, home)
        inspect(home)
        open_tensors(home)

    found = hold(read, seeds)
    assert found["read"] > len(seeds) / 50 and found["refused"] > len(seeds) / 20
