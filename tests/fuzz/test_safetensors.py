"""Hostile safetensors files and folders are read, or refused with one message, within limits."""

import json
import os
import shutil
import sys
from random import Random

import pytest
import torch
from fuzz.driver import LARGE_NUMBERS, mutate, run_cases, short_and_long
from safetensors.torch import save_file

from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.inspection.inspect import inspect
from posenc.lab.safetensors_file import DTYPES

CONFIG = {"dim": 64, "n_layers": 2, "n_heads": 4, "norm_eps": 1e-5, "rope_theta": 10_000.0, "vocab_size": 32}
NAMES = (
    "layers.0.attention.wq.weight layers.1.attention.wk.weight rope.freqs inv_freq wpe.weight pos_embed x "
    "layers.99999999999999999999.attention.wq.weight blocks.0.layers.0.x relative_attention_bias.weight __metadata__"
).split()


def safetensors_bytes(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file; `length` replaces the header's true length."""
    header_bytes = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(header_bytes) if length is None else length).to_bytes(8, "little") + header_bytes + data


def entry(shape, dtype="F32", start=0, end=None):
    size = 4
    for axis in shape:
        size *= axis
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, size if end is None else end]}


def sound_file() -> bytes:
    header, start = {}, 0
    for name, shape in {"rope.freqs": [8], "layers.0.attention.wq.weight": [64, 64], "wpe.weight": [4, 4]}.items():
        header[name] = entry(shape, start=start)
        start = header[name]["data_offsets"][1] = start + header[name]["data_offsets"][1]
    return safetensors_bytes({"__metadata__": {"format": "pt"}, **header}, bytes(start))


SOUND = sound_file()
HEADER = 8 + int.from_bytes(SOUND[:8], "little")


def random_rubbish(random: Random):
    return random.choice(
        (None, True, -1, 0, 1, 2.5, "F32", "x" * 3_000, [], {}, [[]], float("nan"), *LARGE_NUMBERS, 1 << 200)
    )


def random_file(random: Random) -> bytes:
    """Return a file with a random header, whose entries are mostly valid."""
    header, start = {}, 0
    for name in random.sample(NAMES, random.randrange(1, 5)):
        shape = [random.choice((0, 1, 2, 8, 64)) for _ in range(random.randrange(4))]
        dtype = random.choice(list(DTYPES))
        size = DTYPES[dtype].itemsize
        for axis in shape:
            size *= axis
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, start + size]}
        start += size
        if random.random() < 0.2:
            part = random.choice(("dtype", "shape", "data_offsets", "more"))
            header[name][part] = random_rubbish(random)
        if random.random() < 0.1:
            header[name]["shape"].append(random_rubbish(random)) if isinstance(header[name]["shape"], list) else None
        if random.random() < 0.05:
            header[name] = random_rubbish(random)
    return safetensors_bytes(header, bytes(start))


def check_files(write, seeds, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))

    def read(seed):
        (tmp_path / "model.safetensors").write_bytes(write(Random(seed)))
        tensors = open_tensors(tmp_path / "model.safetensors")
        for name in tensors:
            assert tensors[name].shape == tensors.shape(name) == tensors.meta_tensors()[name].shape
        inspect(tmp_path)

    counts = run_cases(read, seeds)
    assert counts["read"] > len(seeds) / 50 and counts["refused"] > len(seeds) / 20


@short_and_long(300)
def test_a_header_with_faults_is_read_or_refused(seeds, tmp_path):
    check_files(lambda random: mutate(random, SOUND, end=HEADER), seeds, tmp_path)


@short_and_long(300)
def test_a_header_of_anything_is_read_or_refused(seeds, tmp_path):
    check_files(random_file, seeds, tmp_path)


MANY_ENTRIES = {f"t{n}": entry([0]) for n in range(60_000)}
WQ = "layers.0.attention.wq.weight"
CLAIMS = {
    "length 2^62": safetensors_bytes({}, length=1 << 62),
    "length 2^64-1": safetensors_bytes({}, length=(1 << 64) - 1),
    "60,000 names and one twice": safetensors_bytes(json.dumps(MANY_ENTRIES)[:-1].encode() + b', "t9": {}}'),
    "names that differ by a control character": safetensors_bytes(b'{"a\\u001b": {}, "a\\u009b": {}}'),
    "lists 200,000 deep": safetensors_bytes(b'{"a":' + b"[" * 200_000),
    "a number of 5,000 digits": safetensors_bytes(b'{"a": {"shape": [' + b"9" * 5_000 + b'], "data_offsets": [0, 4]}}'),
    "no list of axes": safetensors_bytes({WQ: {"dtype": "F32", "shape": "ab", "data_offsets": [0, 0]}}),
    "a list as dtype": safetensors_bytes({WQ: {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]}}, bytes(4)),
    "an axis of 2^200 and one of 0": safetensors_bytes({WQ: entry([0, 1 << 200], end=0)}),
    "an axis of 2^62 and one of 0": safetensors_bytes({WQ: entry([1 << 62, 0, 4], end=0)}),
    "1,000 axes": safetensors_bytes({WQ: entry([1] * 1_000)}, bytes(4)),
    "5 GB that are not there": safetensors_bytes({WQ: entry([5 << 28])}),
    "a name of a million letters": safetensors_bytes({"x" * 1_000_000: entry([1])}, bytes(4)),
    "17 MB of header": safetensors_bytes(b"{" + b" " * (17 << 20) + b"}"),
}  # fmt: skip


def test_each_claim_that_once_took_minutes_or_ended_in_a_traceback_is_refused(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))

    def read(case):
        (tmp_path / "model.safetensors").write_bytes(CLAIMS[case])
        inspect(tmp_path)

    assert run_cases(read, list(CLAIMS), cpu=3.0, memory=150 << 20) == {"refused": len(CLAIMS)}


def test_a_sparse_file_of_5_gigabytes_is_inspected_by_its_header(tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))
    with open(tmp_path / "model.safetensors", "wb") as file:
        file.write(safetensors_bytes({WQ: entry([5 << 28])}))
        file.truncate(file.tell() + (5 << 30))
    output = tmp_path / "told"
    read = lambda case: output.write_text("\n".join(inspect(tmp_path).contradictions))  # noqa: E731
    assert run_cases(read, [WQ], cpu=3.0, memory=100 << 20) == {"read": 1}
    assert WQ in output.read_text() and "has 1342177280 rows, and the config says" in output.read_text()


@pytest.mark.parametrize("shape", [[], [0], [0, 4]])
@pytest.mark.parametrize("name", NAMES[:-1])
def test_tensors_without_numbers_or_axes_are_no_traceback(name, shape, tmp_path):
    (tmp_path / "params.json").write_text(json.dumps(CONFIG))
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes({name: entry(shape)}, bytes(0 if 0 in shape else 4)))
    assert inspect(tmp_path).parts


# Folders


def write_sharded_folder(home) -> None:
    """Write a complete sharded checkpoint with an index."""
    home.mkdir(parents=True)
    weight_map = {}
    for number, name in enumerate((WQ, "layers.1.attention.wq.weight"), 1):
        weight_map[name] = f"model-{number:05}-of-00002.safetensors"
        save_file({name: torch.zeros(64, 64)}, home / weight_map[name])
    (home / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (home / "params.json").write_text(json.dumps(CONFIG))


def damage(random: Random, home) -> None:
    """Damage one file of a folder: remove it, replace it by a pipe, folder or link, or change its bytes."""
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
        file.write_bytes(mutate(random, data, end=400))
    elif fault == 5:
        file.write_bytes(data.replace(b"00002", random.choice((b"99999", b"/../x", b"\x00\x1b[3", b"00001"))))
    elif fault == 6:
        file.with_name(
            random.choice(("model-00001-of-99999999999999999999.safetensors", "other.safetensors"))
        ).write_bytes(data)
    elif fault == 7:
        name = random.choice(("more.safetensors", "model.gguf", "model.bin", "two.safetensors.index.json"))
        file.with_name(name).write_bytes(random.choice((data, b"", b"\x80\x04", b"GGUF")))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows needs special rights for links")
@short_and_long(75, 2_000)
def test_a_damaged_folder_is_read_or_refused(seeds, tmp_path):
    (tmp_path / "outside").write_bytes(SOUND)

    def read(seed):
        home = tmp_path / "model"
        shutil.rmtree(home, ignore_errors=True)
        write_sharded_folder(home)
        random = Random(seed)
        for _ in range(random.choice((0, 1, 1, 2))):
            damage(random, home)
        inspect(home)
        open_tensors(home)

    counts = run_cases(read, seeds)
    assert counts["read"] > len(seeds) / 50 and counts["refused"] > len(seeds) / 20
