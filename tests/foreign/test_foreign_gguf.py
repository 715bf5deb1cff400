"""GGUF headers from the gguf package are read correctly, and excessive claims are rejected."""

import struct

import numpy
import pytest
from fuzz.gguf_bytes import array, header, key, tensor, text

from posenc import foreign
from posenc.foreign import CannotRead
from posenc.foreign.gguf import TYPES, read_gguf

gguf = pytest.importorskip("gguf")

BYTE_ORDERS = [gguf.GGUFEndian.LITTLE, gguf.GGUFEndian.BIG]


def refusal(path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(CannotRead) as error:
        read_gguf(path)
    assert str(error.value).startswith(f"{path}: ") and len(str(error.value)) < 600
    return str(error.value)


@pytest.mark.parametrize("order", BYTE_ORDERS)
def test_what_the_package_writes_is_read_key_by_key_and_tensor_by_tensor(order, tmp_path):
    values = {
        "a.uint8": 200,
        "a.int8": -3,
        "a.uint16": 60_000,
        "a.int16": -300,
        "a.uint32": 4_000_000_000,
        "a.int32": -70_000,
        "a.uint64": 1 << 60,
        "a.int64": -(1 << 60),
        "a.bool": True,
        "a.string": "a word: \N{GREEK SMALL LETTER PI}",
    }
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama", endianess=order)
    for name, value in values.items():
        getattr(writer, f"add_{name.removeprefix('a.')}")(name, value)
    writer.add_float32("a.float32", 0.1)
    writer.add_float64("a.float64", 0.1)
    writer.add_array("a.words", ["x", "", "yz"])
    writer.add_array("a.numbers", [1, -2, 3])
    writer.add_array("a.flags", [True, False])
    plain, blocks = numpy.arange(12, dtype=numpy.float32).reshape(3, 4), numpy.zeros((2, 34), numpy.uint8)
    writer.add_tensor("plain", plain)
    writer.add_tensor("blocks", blocks, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    read_back = read_gguf(path)
    assert read_back.order == order.name.lower()
    assert {name: read_back.values[name] for name in values} == values
    assert read_back.values["a.float32"] == numpy.float32(0.1).item() and read_back.values["a.float64"] == 0.1
    assert read_back.values["a.words"] == ["x", "", "yz"] and read_back.values["a.numbers"] == [1, -2, 3]
    assert read_back.values["a.flags"] == [True, False] and read_back.values["general.architecture"] == "llama"
    lies = read_back.tensors["plain"]
    assert (lies.type_name, lies.shape, lies.nbytes) == ("F32", (3, 4), 48)
    data = path.read_bytes()[lies.start : lies.start + lies.nbytes]
    assert numpy.frombuffer(data, "<f4" if order.name == "LITTLE" else ">f4").tolist() == list(range(12))
    assert (read_back.tensors["blocks"].type_name, read_back.tensors["blocks"].shape) == ("Q8_0", (2, 32))


def test_the_sizes_of_blocks_are_those_of_the_package():
    package_types = {kind.value: (kind.name, *gguf.GGML_QUANT_SIZES[kind]) for kind in gguf.GGMLQuantizationType}
    assert {number: TYPES[number] for number in TYPES if number in package_types} == {
        number: package_types[number] for number in package_types if number in TYPES
    }
    assert set(TYPES) <= set(package_types)


def test_version_2_is_read_as_version_3_is_and_version_1_is_refused(tmp_path):
    (tmp_path / "a").write_bytes(header(key("a.b", 4, struct.pack("<I", 7)), version=2))
    assert read_gguf(tmp_path / "a").values == {"a.b": 7}
    assert "it has version 1 of the format, and posenc reads 2 and 3; convert the original" in refusal(
        tmp_path / "b", header(version=1)
    )


@pytest.mark.parametrize("kind", [0, 5, 8, 9, 12])
@pytest.mark.parametrize("claim", [200_000_000, 1 << 40, 1 << 63, (1 << 64) - 1])
def test_an_array_that_claims_more_items_than_there_are_bytes_is_refused(claim, kind, tmp_path):
    words = refusal(tmp_path / "a", header(key("a.b", 9, array(kind, claim, bytes(100)))))
    assert f"a.b: it claims {claim:,} items, and 1" in words and "bytes are left in the file; it is no whole" in words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (header(count=1 << 50), "it claims 1,125,899,906,842,624 keys"),
        (header()[:20], "the counts: it claims 16 bytes, and 12 bytes are left"),
        (b"GGUF\3\0\0\0" + b"\xff" * 8 + bytes(8), "it claims 18,446,744,073,709,551,615 tensors"),
        (header(struct.pack("<QQ", 1 << 62, 0)), "a key: it claims 4,611,686,018,427,387,904 bytes"),
        (header(key("a", 8, struct.pack("<Q", 1 << 40))), "a: it claims 1,099,511,627,776 bytes"),
        (header(key("x" * 1_001, 4, bytes(4))), "a text of 1,001 bytes, of which at most 1,000 are read"),
        (header(key("a", 13, bytes(8))), "a: its value is of type 13, which the format does not have"),
        (header(key("a", 4, bytes(4)), key("a", 4, bytes(4))), "a: the key is there twice"),
        (header(key("a", 4, bytes(4)), key("a\x1b", 4, bytes(4)), key("a\x9b", 4, bytes(4))), "is there twice"),
        (header(key("a\udcff", 4, bytes(4))), "a key: it is no text: byte 1 is no UTF-8"),
        (header(key("a", 8, text("\udcff"))), "a: it is no text: byte 0 is no UTF-8"),
        (header(key("general.alignment", 4, struct.pack("<I", 48))), "general.alignment: expected a power of two, got"),
        (header(key("general.alignment", 8, text("x" * 999))), "general.alignment: expected a power of two, got"),
        (header(key("a", 9, array(9, 1, array(9, 1, array(9, 1, array(9, 1, array(9, 0))))))), "more than 4 deep"),
        (header(tensors=[tensor("t", (32,)), tensor("t", (32,), offset=128)], data=256), "t: the tensor is there"),
        (header(tensors=[tensor("t", (32,))], data=127), "t: the tensor [32] of F32 from byte 64 does not lie in the"),
        (header(tensors=[tensor("t", (32,), offset=1 << 63)], data=128), "does not lie in the file, which has 192"),
        (header(tensors=[tensor("t", (32,), offset=16)], data=256), "t: it begins at byte 16, which is no multiple of"),
        (header(tensors=[tensor("t", (33,), kind=8)], data=256), "its rows have 33 values, and Q8_0 has blocks of 32"),
        (header(tensors=[tensor("t", (32,)), tensor("u", (8,), offset=96)], data=128), "u: its bytes are also those"),
        (header(tensors=[tensor("t", (1 << 63, 1 << 63))]), "t: expected a shape of at most"),
        (header(tensors=[tensor("t", (0, 1 << 62))]), "t: expected a shape of at most"),
        (header(tensors=[text("t") + struct.pack("<IQ", 1 << 31, 0) + bytes(16)]), "t: it claims 2,147,483,648 axes"),
        (header(tensors=[tensor("t", (1,) * 17)]), "t: expected a shape of at most"),
        (b"GGUX" + bytes(40), "it does not begin with GGUF"),
    ],
)  # fmt: skip
def test_what_cannot_be_true_is_refused_by_name(data, words, tmp_path):
    assert words in refusal(tmp_path / "a", data)


def test_arrays_may_stand_four_deep(tmp_path):
    (tmp_path / "a").write_bytes(header(key("a", 9, array(9, 1, array(9, 1, array(9, 1, array(0, 1, b"\7")))))))
    assert read_gguf(tmp_path / "a").values == {"a": [[[[7]]]]}


def test_a_header_is_bounded_whatever_the_file_holds(tmp_path, monkeypatch):
    monkeypatch.setattr("posenc.foreign.gguf.LONGEST_HEADER", 1_000)
    words = refusal(tmp_path / "a", header(key("a", 8, text("x" * 2_000)), data=100))
    assert "a: its header is longer than 1,000 bytes, the most that posenc reads" in words
    monkeypatch.setattr("posenc.foreign.gguf.MOST_ITEMS", 10)
    keys = [key(name, 9, array(0, 6, bytes(6))) for name in "ab"]
    assert "b: with its 6 items the arrays hold more than 10 together" in refusal(tmp_path / "b", header(*keys))


def test_names_lose_their_control_characters_and_tokens_keep_theirs(tmp_path):
    path = tmp_path / "a"
    tokens = array(8, 2, text("\x1b[31m") + text("\x00"))
    keys = [key("a\x1b", 8, text("\x1b]0;title\x07")), key("tokenizer.ggml.tokens", 9, tokens)]
    path.write_bytes(header(*keys, tensors=[tensor("t\x9b", (0,))]))
    read_back, mark = read_gguf(path), "\N{REPLACEMENT CHARACTER}"
    assert read_back.values == {f"a{mark}": f"{mark}]0;title{mark}", "tokenizer.ggml.tokens": ["\x1b[31m", "\x00"]}
    assert list(read_back.tensors) == [f"t{mark}"]


def test_a_type_that_is_newer_than_the_list_is_told_and_not_guessed(tmp_path):
    (tmp_path / "a").write_bytes(header(tensors=[tensor("t", (7, 5), kind=99)]))
    assert read_gguf(tmp_path / "a").tensors["t"].type_name == "type 99"
    assert read_gguf(tmp_path / "a").tensors["t"].nbytes is None


def test_every_cut_of_a_file_is_refused(tmp_path):
    keys = [key("a.b", 9, array(8, 2, text("x") + text("yz"))), key("a.c", 12, bytes(8))]
    whole = header(*keys, tensors=[tensor("t", (8,)), tensor("u", (1,), offset=32)], data=36)
    (tmp_path / "whole").write_bytes(whole)
    assert set(read_gguf(tmp_path / "whole").tensors) == {"t", "u"}
    for cut in range(len(whole)):
        refusal(tmp_path / "cut", whole[:cut])


def test_a_vocabulary_is_read_once_and_costs_little_for_each_byte(tmp_path):
    """The test counts reads instead of time: two per token, and none repeated."""
    count = 10_000
    tokens = b"".join(text(f"token {number}") for number in range(count))
    (tmp_path / "a").write_bytes(header(key("tokenizer.ggml.tokens", 9, array(8, count, tokens))))
    reads = []

    class CountingReader(foreign.gguf.Reader):
        def take(self, size, field):
            reads.append(size)
            return super().take(size, field)

    with open(tmp_path / "a", "rb") as file:
        read_back = CountingReader(file, tmp_path / "a").header()
    assert read_back.values["tokenizer.ggml.tokens"][-1] == "token 9999"
    assert len(reads) < 2 * count + 20 and sum(reads) <= len(tokens) + 200
