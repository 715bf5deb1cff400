"""Saved caches: a damaged or inconsistent file is refused, and a full disk loses no data."""

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from posenc import Decoder, Positions
from posenc.cache import Cache, files
from posenc.foreign import CannotRead, whole_files


def filled_cache(slots: int | None = None, spec: str = "rotary", positions: Positions | None = None) -> Cache:
    torch.manual_seed(0)
    model = Decoder(9, 24, 3, 1, encoding=spec).eval()
    cache = model.cache(slots=slots)
    with torch.no_grad():
        model(torch.randint(9, (2, 8)), cache=cache, positions=positions)
    return cache


def parts_of(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    with safe_open(file, "pt") as reader:
        return json.loads(reader.metadata()["posenc"]), load_file(file)


def write(file: Path, metadata: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write a file with a right checksum and any metadata."""
    save_file(tensors, file, {"posenc": json.dumps({**metadata, "checksum": files.checksum(metadata, tensors)})})


def test_files_that_are_no_caches_are_refused(tmp_path: Path) -> None:
    file, copy = tmp_path / "cache.safetensors", tmp_path / "other.safetensors"
    with pytest.raises(ValueError, match="an empty cache has nothing to save; give it tokens first"):
        Cache(1).save(file)
    assert not file.exists()
    filled_cache().save(file)
    with pytest.raises(CannotRead, match="there is no such file"):
        Cache.load(copy)
    copy.write_bytes(b"not a file of tensors")
    with pytest.raises(CannotRead, match="safetensors cannot read it"):
        Cache.load(copy)
    metadata, tensors = parts_of(file)
    save_file(tensors, copy)
    with pytest.raises(CannotRead, match=r"it holds no cache of posenc; write one with cache.save\(file\)"):
        Cache.load(copy)
    for name, change in (("0.v", tensors["0.v"][:, :, :3]), ("at.order", tensors["at.order"][:, :3])):
        write(copy, metadata, tensors | {name: change.contiguous()})
        with pytest.raises(CannotRead, match=r"its tensors do not fit one another .*write it anew"):
            Cache.load(copy)
    for change, words in (
        ({"format": 1}, "its format is 1, expected 2; write it anew"),
        ({"moves": ["somehow"]}, "keys move in no such way as 'somehow'"),
        ({"layers": 3}, "it says 3 layers and 1 of them"),
    ):
        write(copy, metadata | change, tensors)
        with pytest.raises(CannotRead, match=words):
            Cache.load(copy)


def test_no_bit_that_flips_in_a_file_passes(tmp_path: Path) -> None:
    file = tmp_path / "cache.safetensors"
    filled_cache().save(file)
    whole, rng = file.read_bytes(), random.Random(0)
    for place in sorted(rng.sample(range(len(whole)), 200)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        with pytest.raises(CannotRead):
            Cache.load(file)


@pytest.mark.parametrize("slots", [0, -1, 7, 10**8, 2**62])
def test_slots_are_held_to_what_the_file_or_the_caller_allows(slots: int, tmp_path: Path) -> None:
    file = tmp_path / "cache.safetensors"
    filled_cache(slots=20).save(file)
    assert Cache.load(file).layers[0].slots == 20
    metadata, tensors = parts_of(file)
    write(file, metadata | {"slots": slots}, tensors)
    words = "its tokens do not fit its slots: .*at least 8 slots" if slots == 7 else "slots, expected 1 to"
    with pytest.raises(CannotRead, match=f"cache.safetensors.*{words}"):
        Cache.load(file)


def test_a_caller_may_allow_more_slots_or_fewer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SPARE_BYTES", 0)
    file = tmp_path / "cache.safetensors"
    filled_cache(slots=500).save(file)
    with pytest.raises(CannotRead, match=r"it asks for 500 slots, expected 1 to 128; say .* Cache.load\(file, slots="):
        Cache.load(file)
    assert Cache.load(file, slots=4096).layers[0].slots == 500
    with pytest.raises(CannotRead, match="expected 1 to 499"):
        Cache.load(file, slots=499)


def test_a_full_disk_leaves_the_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cache.safetensors"
    filled_cache().save(file)
    content = file.read_bytes()

    def full(*args: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(whole_files.CannotWrite, match=r"cannot be written: No space left .*make room"):
        filled_cache(spec="alibi").save(file)
    monkeypatch.undo()
    assert file.read_bytes() == content and [*tmp_path.iterdir()] == [file]


@pytest.mark.parametrize("forget", [lambda cache: cache.drop([0]), lambda cache: cache.evict([0, 3, 7])])
@pytest.mark.parametrize("as_order", [False, True])
def test_gaps_close_behind_a_file_as_they_do_without_it(forget, as_order: bool, tmp_path: Path) -> None:
    ids = torch.tensor([[0, 1, 4, 5, 6, 7, 9, 12]])
    places = Positions.of(ids, order=ids if as_order else None)
    cache, file = filled_cache(positions=places), tmp_path / "cache.safetensors"
    cache.save(file)
    copy = Cache.load(file)
    forget(cache), forget(copy)
    for fact, right in zip(cache.held.tensors().values(), copy.held.tensors().values(), strict=True):
        assert torch.equal(fact, right.expand_as(fact))
