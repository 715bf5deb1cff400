"""Tensors on disk: lazy reads, errors with their reasons, and folders that appear whole or not at all."""

import errno
import hashlib
import json
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor

from posenc.checkpoints.files.folder_writer import write_folder
from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.lab import store
from posenc.lab.safetensors_file import DTYPES
from posenc.lab.store import CannotWrite

TENSORS = {
    "a": torch.randn(3, 5),
    "b": torch.randn(4).bfloat16(),
    "c": torch.arange(6).view(2, 3),
    "d": torch.tensor([True, False, True]),
    "e": torch.randn(2, 3).half(),
    "f": torch.tensor(2.5, dtype=torch.float64),
    "g": torch.empty(0, 4),
    "h": torch.randn(6, 2).T,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sharded checkpoint with an index; safetensors writes the shards."""
    folder = tmp_path / "sharded"
    folder.mkdir()
    first, second = {"a": torch.ones(4), "b": torch.zeros(2)}, {"c": torch.ones(3)}
    safetensors.torch.save_file(first, folder / "model-00001-of-00002.safetensors")
    safetensors.torch.save_file(second, folder / "model-00002-of-00002.safetensors")
    weight_map = {name: "model-00001-of-00002.safetensors" for name in first}
    weight_map |= {name: "model-00002-of-00002.safetensors" for name in second}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return folder


def header(file: Path, change: Callable[[dict], None]) -> Path:
    """Change the header of a file, and return its path."""
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    content = json.loads(data[8 : 8 + length])
    change(content)
    text = json.dumps(content).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])
    return file


def error_of(path: Path) -> str:
    with pytest.raises(CannotRead) as error:
        open_tensors(path)
    return str(error.value)


# Reading


def test_what_safetensors_wrote_is_read_tensor_by_tensor(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    tensors = {name: tensor.contiguous() for name, tensor in TENSORS.items()}
    safetensors.torch.save_file(tensors, file, metadata={"format": "pt"})
    read = open_tensors(file)
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read.shape(name) == tuple(tensor.shape) and read.dtype(name) == tensor.dtype
        assert read[name].dtype == tensor.dtype and read[name].equal(tensor)
        assert read.meta_tensors()[name].shape == tensor.shape and read.meta_tensors()[name].is_meta


@pytest.mark.parametrize("name", [name for name in DTYPES if name != "C64"])
def test_every_dtype_of_safetensors_goes_to_disk_and_back(name: str, tmp_path: Path) -> None:
    dtype = DTYPES[name]
    tensor = torch.arange(24, dtype=torch.uint8).remainder(2).to(dtype).view(2, 12)
    write_folder(tmp_path / "new", {}, [("x", tensor)])
    back = open_tensors(tmp_path / "new")["x"]
    assert back.dtype == dtype and back.view(torch.uint8).equal(tensor.view(torch.uint8))


def test_what_is_read_is_the_readers_own(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(4)}, file)
    read, content = open_tensors(file), file.read_bytes()
    read["a"].zero_()
    assert file.read_bytes() == content and read["a"].equal(torch.ones(4))


def test_a_folder_with_an_index_is_read_by_it_and_other_files_are_left_alone(folder: Path) -> None:
    (folder / "consolidated.safetensors").write_bytes(b"not read")
    read = open_tensors(folder)
    assert set(read) == {"a", "b", "c"} and read["c"].equal(torch.ones(3))
    assert set(open_tensors(folder / "model.safetensors.index.json")) == {"a", "b", "c"}


def test_shards_without_an_index_are_not_taken_for_the_whole(folder: Path) -> None:
    (folder / "model.safetensors.index.json").unlink()
    assert "has no index that says which of its safetensors files count" in error_of(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "(model-00001-of-00002.safetensors); download it, or give the path of one file" in error_of(folder)


def gguf_file(path: Path, tensors: dict[str, Tensor], kind: str = "F32") -> Path:
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    data_type = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        data = tensor.numpy() if kind == "F32" else gguf.quantize(tensor.numpy(), data_type)
        writer.add_tensor(name, data, raw_dtype=None if kind == "F32" else data_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize(("kind", "error"), [("F32", 0.0), ("BF16", 0.02)])
def test_a_gguf_is_read_as_float32_one_tensor_at_a_time(kind: str, error: float, tmp_path: Path) -> None:
    weight = torch.randn(3, 64)
    read = open_tensors(gguf_file(tmp_path / "a.gguf", {"blk.0.attn_q.weight": weight}, kind))
    assert read.entries["blk.0.attn_q.weight"].stored_dtype == kind
    assert read.shape("blk.0.attn_q.weight") == (3, 64) and read.dtype("blk.0.attn_q.weight") == torch.float32
    torch.testing.assert_close(read["blk.0.attn_q.weight"], weight, atol=error, rtol=0)
    assert set(open_tensors(tmp_path)) == {"blk.0.attn_q.weight"}


def test_a_gguf_tensor_that_is_not_unpacked_says_what_to_do(tmp_path: Path) -> None:
    for name, kind, order in (("new", 99, "<"), ("quantised", 8, "<"), ("turned", 0, ">")):
        content = b"GGUF" + struct.pack(f"{order}IQQ", 3, 1, 0) + struct.pack(f"{order}Q", 1) + b"x"
        content += struct.pack(f"{order}IQIQ", 1, 32, kind, 0)
        (tmp_path / f"{name}.gguf").write_bytes(content + bytes(-len(content) % 32) + bytes(128))
        read = open_tensors(tmp_path / f"{name}.gguf")
        assert read.shape("x") == (32,)
        with pytest.raises(CannotRead, match=r"x: it is stored as .* not unpacked here; load the model"):
            read["x"]


def test_numbers_of_a_gguf_that_are_no_floats_stay_what_they_are(tmp_path: Path) -> None:
    import gguf

    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_tensor("ids", numpy.arange(5, dtype=numpy.int32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert open_tensors(tmp_path / "a.gguf")["ids"].equal(torch.arange(5, dtype=torch.int32))


# Errors


@pytest.mark.parametrize("cut", [0, 5, 20, -1])
def test_a_truncated_file_is_refused(cut: int, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(4)}, file)
    file.write_bytes(file.read_bytes()[:cut])
    assert error_of(file).startswith(f"{file}: it is truncated")


@pytest.mark.parametrize("cut", [3, 30, 90, -1])
def test_a_truncated_gguf_is_refused(cut: int, tmp_path: Path) -> None:
    file = gguf_file(tmp_path / "a.gguf", {"x": torch.ones(2, 32)})
    file.write_bytes(file.read_bytes()[:cut])
    words = error_of(file)
    assert "no whole GGUF file" in words if cut != 3 else "no checkpoint that posenc knows" in words


def test_corrupt_headers_are_refused_with_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"

    def fresh() -> Path:
        safetensors.torch.save_file({"a": torch.ones(4), "b": torch.zeros(4)}, file)
        return file

    def edit(header: dict, name: str, **changes: object) -> None:
        header[name] = header[name] | changes

    assert "a: [4] of F32 needs 16 bytes, and its data_offsets are [0, 12]" in error_of(
        header(fresh(), lambda entries: edit(entries, "a", data_offsets=[0, 12]))
    )
    assert "b: it begins at byte 0 of the data, where 16 was expected" in error_of(
        header(fresh(), lambda entries: edit(entries, "b", data_offsets=[0, 16]))
    )
    assert "b: it begins at byte 32 of the data, where 16 was expected" in error_of(
        header(fresh(), lambda entries: edit(entries, "b", data_offsets=[32, 48]))
    )
    assert "a: expected a dictionary, got 3" in error_of(header(fresh(), lambda entries: entries.update(a=3)))
    assert "a: it is stored as 'F4', which posenc does not read" in error_of(
        header(fresh(), lambda entries: edit(entries, "a", dtype="F4"))
    )
    assert "16 bytes follow its last tensor" in error_of(header(fresh(), lambda entries: entries.pop("b")))
    assert "__metadata__: expected a dictionary, got 1" in error_of(
        header(fresh(), lambda entries: entries.update(__metadata__=1))
    )
    data = fresh().read_bytes()
    file.write_bytes(data[:8] + b"}" + data[9:])
    assert "it is no whole JSON" in error_of(file)
    file.write_bytes((2).to_bytes(8, "little") + b"[]")
    assert "expected a dictionary, got []" in error_of(file)
    file.write_bytes((1 << 60).to_bytes(8, "little") + b"{}")
    assert f"its header has {1 << 60} bytes, and after the first 8 the file has 2" in error_of(file)
    twice = (
        b'{"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    )
    file.write_bytes(len(twice).to_bytes(8, "little") + twice)
    assert "it names 'a' twice" in error_of(file)
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "Git LFS pointer" in error_of(file)


def test_an_index_and_shards_that_do_not_match_are_refused(folder: Path) -> None:
    index = folder / "model.safetensors.index.json"
    right = json.loads(index.read_text())["weight_map"]

    def with_map(weight_map: object) -> str:
        index.write_text(json.dumps({"weight_map": weight_map}))
        return error_of(folder)

    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    assert f"z: it says that '{second}' holds this, and it does not" in with_map(right | {"z": second})
    assert f"a: it says that '{second}' holds this, and it does not" in with_map(right | {"a": second})
    assert f"b: {first} holds this, and it is not in the index" in with_map(
        {k: v for k, v in right.items() if k != "b"}
    )
    assert "names '../x.safetensors', which is no file of its own folder" in with_map(right | {"z": "../x.safetensors"})
    assert "expected a weight_map" in with_map({}) and "expected a weight_map" in with_map({"a": 3})
    index.write_text("{")
    assert "it is no whole JSON" in error_of(folder)
    index.write_text(json.dumps({"weight_map": right}))
    safetensors.torch.save_file({"c": torch.ones(3), "a": torch.ones(4)}, folder / second)
    assert f"a: it is in {first} and again in {second}" in error_of(folder)
    (folder / second).unlink()
    assert f"names the shard '{second}', which is missing" in error_of(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.pth", "model.ckpt", "strange"])
def test_pickles_are_refused_with_the_reason_and_never_opened(name: str, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save(Trap(), tmp_path / name)
    words = error_of(tmp_path / name)
    assert "is a pickle, and to unpickle is to run whatever code it holds" in words and "save_file" in words
    assert not (tmp_path / "ran").exists()
    if name != "strange":
        assert error_of(tmp_path) == words


def test_the_advice_on_pickles_makes_a_file_that_is_read(tmp_path: Path) -> None:
    weight = torch.arange(6.0).view(2, 3)
    torch.save({"weight": weight, "tied": weight, "turned": weight.T, "half": weight.half()}, tmp_path / "model.bin")
    code = error_of(tmp_path).partition("convert it where you trust it: ")[2]
    assert 'map_location="cpu"' in code
    exec(f"import torch, safetensors.torch; {code}")
    tensors = open_tensors(tmp_path)
    assert sorted(tensors) == ["half", "tied", "turned", "weight"] and tensors["turned"].equal(weight.T)


def test_what_is_no_checkpoint_is_refused_with_what_was_expected(tmp_path: Path) -> None:
    assert "there is no such file" in error_of(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    assert "is empty; expected config.json and safetensors" in error_of(tmp_path / "empty")
    (tmp_path / "notes.txt").write_text("hello")
    assert "no checkpoint that posenc knows" in error_of(tmp_path / "notes.txt")
    assert "holds no tensors" in error_of(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "is a JSON file, which holds no tensors" in error_of(tmp_path / "config.json")
    for name in ("a", "b"):
        gguf_file(tmp_path / f"{name}.gguf", {"x": torch.ones(32)})
    assert "several GGUF files (a.gguf, b.gguf)" in error_of(tmp_path)
    (tmp_path / "a.gguf").rename(tmp_path / "a-00001-of-00002.gguf")
    assert "one of 2 parts of a split GGUF file" in error_of(tmp_path / "a-00001-of-00002.gguf")
    for name in ("x", "y"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    assert "several indices (x.safetensors.index.json, y.safetensors.index.json)" in error_of(tmp_path)


def test_a_file_that_shrinks_after_it_was_opened_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    safetensors.torch.save_file({"a": torch.ones(4)}, file)
    read = open_tensors(file)
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(CannotRead, match="has changed since it was opened: 12 of 16 bytes"):
        read["a"]


# Writing


def test_what_is_written_safetensors_and_we_read_as_the_same(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    content = {"vocab.json": {"a": 1}}
    options = {"shard_bytes": 80, "copy": [tmp_path / "tokenizer.json"], "edited_files": content}
    out = write_folder(tmp_path / "new", {"z": 1, "a": 2}, TENSORS.items(), **options)
    names = sorted(file.name for file in out.iterdir())
    shards = [name for name in names if name.endswith(".safetensors")]
    assert len(shards) > 2 and shards[0] == f"model-00001-of-{len(shards):05}.safetensors"
    assert set(names) - set(shards) == {"config.json", "model.safetensors.index.json", "tokenizer.json", "vocab.json"}
    assert list(json.loads((out / "config.json").read_text())) == ["z", "a"]
    read = open_tensors(out)
    for shard in shards:
        for name, tensor in safetensors.torch.load_file(out / shard).items():
            assert tensor.equal(TENSORS[name]) and read[name].equal(tensor) and tensor.dtype == TENSORS[name].dtype
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in TENSORS.values())
    assert set(read) == set(TENSORS)


def test_each_tensor_begins_at_a_multiple_of_its_own_width(tmp_path: Path) -> None:
    # Readers that map the file make views of it, which need aligned numbers.
    tensors = {
        "a": torch.ones(3, dtype=torch.int8),
        "b": torch.ones(3).half(),
        "c": torch.ones(1),
        "d": torch.ones(3).double(),
    }
    read = open_tensors(write_folder(tmp_path / "new", {}, tensors.items()))
    assert all(read.entries[name].start % tensor.dtype.itemsize == 0 for name, tensor in tensors.items())


def test_tensors_that_share_memory_are_written_each_for_itself(tmp_path: Path) -> None:
    whole = torch.arange(6.0)
    tensors = {"a": whole, "b": whole, "c": whole[2:], "d": whole.view(2, 3).T, "e": whole.expand(2, 6)}
    read = open_tensors(write_folder(tmp_path / "new", {}, tensors.items()))
    assert all(read[name].equal(tensor) for name, tensor in tensors.items())


def test_every_file_has_the_rights_that_new_files_are_given(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    out = write_folder(tmp_path / "new", {}, TENSORS.items(), shard_bytes=80)
    assert {file.stat().st_mode for file in out.iterdir()} == {(tmp_path / "usual").stat().st_mode}


def test_no_more_than_a_shard_and_a_tensor_is_held(tmp_path: Path) -> None:
    import weakref

    alive: set[int] = set()
    peak = 0

    def stream() -> Iterator[tuple[str, Tensor]]:
        nonlocal peak
        for number in range(40):
            tensor = torch.full((250,), float(number))
            alive.add(number)
            weakref.finalize(tensor, alive.discard, number)
            peak = max(peak, len(alive))
            yield f"t{number}", tensor
            del tensor

    write_folder(tmp_path / "new", {}, stream(), shard_bytes=4000)
    assert peak <= 6 and len(list((tmp_path / "new").glob("*.safetensors"))) == 10


def test_a_tensor_larger_than_a_shard_has_a_file_of_its_own(tmp_path: Path) -> None:
    tensors = [("a", torch.ones(2)), ("b", torch.ones(100)), ("c", torch.ones(2))]
    read = open_tensors(write_folder(tmp_path / "new", {}, tensors, shard_bytes=40))
    assert [read.entries[name].file.name[6:11] for name in "abc"] == ["00001", "00002", "00003"]


def test_a_checkpoint_without_tensors_and_an_adapter_have_their_names(tmp_path: Path) -> None:
    assert (write_folder(tmp_path / "none", {}, []) / "model.safetensors").is_file()
    out = write_folder(tmp_path / "lora", {}, [], adapter=True)
    assert sorted(file.name for file in out.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_an_existing_target_is_an_error_before_anything_is_read(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, Tensor]]:
        pytest.fail("a tensor was asked for")
        yield "a", torch.ones(1)

    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("there", "link"):
        with pytest.raises(ValueError, match=f"{name} exists; nothing was written"):
            write_folder(tmp_path / name, {}, stream())


def test_an_error_at_any_point_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stream(fail_at: int) -> Iterator[tuple[str, Tensor]]:
        for number in range(5):
            if number == fail_at:
                raise KeyboardInterrupt
            yield f"t{number}", torch.ones(10)

    for fail_at in range(5):
        with pytest.raises(KeyboardInterrupt):
            write_folder(tmp_path / "new", {}, stream(fail_at), shard_bytes=40)
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="the tensor a comes twice"):
        write_folder(tmp_path / "new", {}, [("a", torch.ones(1)), ("a", torch.ones(1))])
    with pytest.raises(ValueError, match=r"a is of torch\.complex128, which safetensors does not hold"):
        write_folder(tmp_path / "new", {}, [("a", torch.ones(1, dtype=torch.complex128))])
    with pytest.raises(ValueError, match="shard_bytes must be 1 or more, got 0"):
        write_folder(tmp_path / "new", {}, [], shard_bytes=0)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"the new folder has a config\.json of its own"):
        write_folder(tmp_path / "new", {}, [], copy=[tmp_path / "config.json"])
    (tmp_path / "config.json").unlink()

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(store, "to_disk", full)
    with pytest.raises(CannotWrite, match=r"new' cannot be written: No space left on device; .* make room"):
        write_folder(tmp_path / "new", {}, stream(9))
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_takes_no_more_is_told_as_such_and_leaves_nothing(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
    try:
        with pytest.raises(CannotWrite, match=r"new' cannot be written: .*File too large.*; make room and give the"):
            write_folder(tmp_path / "new", {}, [("a", torch.ones(1000))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    def stream() -> Iterator[tuple[str, Tensor]]:
        yield "a", torch.ones(1)
        (tmp_path / "new").mkdir()

    with pytest.raises(CannotWrite, match=r"new' cannot be written: File exists; .* choose another folder"):
        write_folder(tmp_path / "new", {}, stream())
    assert [file.name for file in tmp_path.iterdir()] == ["new"] and not list((tmp_path / "new").iterdir())


# tests/fuzz/test_killed.py does this in every run, without a new Python process.
@pytest.mark.slow
def test_killed_in_the_middle_no_folder_has_the_targets_name(tmp_path: Path) -> None:
    script = (
        "import sys, torch\n"
        "from posenc.checkpoints.files.folder_writer import write_folder\n"
        "def stream():\n"
        "    for number in range(1000):\n"
        "        yield f't{number}', torch.ones(100)\n"
        "        if number == 10: print('begun', flush=True); sys.stdin.read()\n"
        "write_folder(sys.argv[1], {}, stream(), shard_bytes=400)\n"
    )
    target = tmp_path / "new"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", script, str(target)], env=environment, **pipes) as process:
        output = process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    assert output == "begun\n" and not target.exists()
    (left,) = tmp_path.iterdir()
    assert store.TEMPORARY.fullmatch(left.name)
    assert set(open_tensors(write_folder(target, {}, [("a", torch.ones(1))]))) == {"a"}


def test_reading_and_copying_never_touch_the_source(folder: Path, tmp_path: Path) -> None:
    def state() -> dict[str, tuple[str, int]]:
        files = sorted(folder.iterdir())
        return {f.name: (hashlib.sha256(f.read_bytes()).hexdigest(), f.stat().st_mtime_ns) for f in files}

    old_state = state()
    for file in folder.iterdir():
        file.chmod(0o444)
    read = open_tensors(folder)
    with pytest.raises(ValueError, match="cannot be copied"):
        write_folder(tmp_path / "new", {}, read.items(), copy=[folder / "model.safetensors.index.json"])
    write_folder(tmp_path / "new", {}, read.items())
    assert state() == old_state
