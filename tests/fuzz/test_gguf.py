"""Hostile GGUF files: with any header they are read, or refused with one message, within limits."""

import math
import struct
from random import Random

import pytest
from fuzz.driver import LARGE_NUMBERS, mutate, run_cases, short_and_long
from fuzz.gguf_bytes import array, header, key, tensor, text

from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.formats.gguf import architectures
from posenc.checkpoints.formats.load import load
from posenc.checkpoints.inspection.inspect import inspect
from posenc.foreign import CannotRead
from posenc.lab.safetensors_file import DTYPES

NAMES = (
    "block_count embedding_length context_length attention.head_count attention.head_count_kv attention.key_length "
    "attention.key_length_mla attention.key_length_swa attention.value_length attention.causal attention.scale "
    "attention.max_alibi_bias attention.relative_buckets_count attention.kv_lora_rank attention.sliding_window "
    "attention.sliding_window_pattern attention.temperature_scale attention.temperature_length decoder_block_count "
    "rope.dimension_count rope.dimension_count_swa rope.dimension_sections rope.freq_base rope.freq_base_swa "
    "rope.scaling.type rope.scaling.factor rope.scaling.original_context_length rope.scaling.finetuned "
    "rope.scaling.attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow rope.scaling.yarn_attn_factor "
    "rope.scaling.yarn_ext_factor rope.scaling.yarn_log_multiplier rope.scale_linear"
).split()
REQUIRED_KEYS = {"block_count": 2, "embedding_length": 64, "context_length": 128, "attention.head_count": 4}
TENSORS = ("rope_freqs.weight", "rope_factors_long.weight", "blk.0.attn_q.weight", "blk.1.attn_k.weight", "inv_freq")


def u32(number: int) -> bytes:
    return struct.pack("<I", number)


def sound_file() -> bytes:
    """Return a small model of two layers, with a tokenizer, a schedule and rope_freqs."""
    keys = [key("general.architecture", 8, text("llama")), key("general.alignment", 4, u32(32))]
    keys += [key(f"llama.{name}", 4, u32(value)) for name, value in REQUIRED_KEYS.items()]
    keys += [key("llama.rope.freq_base", 6, struct.pack("<f", 5e5)), key("llama.rope.scaling.type", 8, text("none"))]
    keys += [key("llama.attention.head_count_kv", 9, array(4, 2, u32(4) + u32(2)))]
    keys += [key("tokenizer.ggml.tokens", 9, array(8, 3, text("a") + text("b") + text("\x00")))]
    tensors = [tensor("rope_freqs.weight", (8,)), tensor("blk.0.attn_q.weight", (64, 64), 8, offset=32)]
    return header(*keys, tensors=tensors) + struct.pack("<8f", *[1.0] * 8) + bytes(64 * 68)


SOUND = sound_file()


def random_value(random: Random, depth: int = 0) -> tuple[int, bytes]:
    """Return a random value of any type of the format, mostly small."""
    kind = random.choice((0, 1, 2, 3, 4, 4, 4, 5, 6, 6, 7, 8, 9, 10, 11, 12, 12, 13))
    number = random.choice((0, 1, 2, 3, 4, 8, 16, 64, 100, *LARGE_NUMBERS))
    if kind == 8:
        return kind, text(random.choice(("", "linear", "yarn", "longrope", "\x1b[31m", "x" * 5_000)))
    if kind == 9:
        inner, items = random.choice((0, 4, 5, 6, 7)), random.choice((0, 1, 2, 3, 8, 8, 64))
        width = {0: 1, 7: 1}.get(inner, 4)
        if depth < 6 and random.random() < 0.2:
            return kind, array(9, 1, random_value(random, depth + 1)[1])
        return kind, array(inner, items, random.randbytes(items * width))
    if kind in (6, 12):
        real = random.choice((0.0, -1.0, 1.0, 4.0, 1e4, 1e-30, 3e38, float("inf"), float("nan")))
        return kind, struct.pack("<f" if kind == 6 else "<d", real * (1e260 if kind == 12 and real == 3e38 else 1))
    width = {0: 1, 1: 1, 2: 2, 3: 2, 7: 1, 10: 8, 11: 8}.get(kind, 4)
    return kind, (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")


def random_file(random: Random) -> bytes:
    """Return a file of a known architecture with random other keys and tensors."""
    arch = random.choice((*sorted(architectures.ARCHITECTURES), "llama4", "t5", "t5encoder"))
    values = {name: (4, u32(number)) for name, number in REQUIRED_KEYS.items()}
    for name in random.sample(NAMES, random.randrange(1, 12)):
        values[name] = random_value(random)
    keys = [key("general.architecture", 8, text(arch))]
    keys += [key(f"{arch}.{name}", *entry) for name, entry in values.items()]
    shapes = [tuple(random.choice((0, 1, 8, 16, 64)) for _ in range(random.randrange(3))) for _ in TENSORS]
    entry = [tensor(name, shape) for name, shape in zip(TENSORS, shapes, strict=True) if random.random() < 0.3]
    return header(*keys, tensors=entry[:1], data=4 * 64 * 64)


def check_files(write, seeds, tmp_path):
    def read(seed):
        path = tmp_path / "model.gguf"
        path.write_bytes(write(Random(seed)))
        tensors = open_tensors(path)
        for name in tensors:
            # posenc reads only the shape of quantised tensors.
            assert tensors.entries[name].stored_dtype not in DTYPES or tensors[name].shape == tensors.shape(name)
        inspect(path)

    counts = run_cases(read, seeds)
    assert counts["read"] > len(seeds) / 50 and counts["refused"] > len(seeds) / 20


@short_and_long(200)
def test_a_file_with_faults_in_its_header_is_read_or_refused(seeds, tmp_path):
    check_files(lambda random: mutate(random, SOUND, end=len(SOUND) - 64 * 68), seeds, tmp_path)


@short_and_long(200)
def test_a_file_that_says_anything_of_a_model_is_read_or_refused(seeds, tmp_path):
    check_files(random_file, seeds, tmp_path)


def loadable_model(random: Random) -> bytes:
    """Return a complete one-layer Llama with tokenizer; up to two keys, or the architecture's name, are random."""
    arch = random.choice(("llama", "llama", "llama", random.choice(sorted(architectures.ARCHITECTURES))))
    sizes = {"block_count": 1, "embedding_length": 8, "context_length": 16, "attention.head_count": 2}
    sizes |= {"feed_forward_length": 8, "attention.head_count_kv": 2, "attention.key_length": 4, "vocab_size": 3}
    sizes["rope.dimension_count"] = 4
    values = {f"{arch}.{name}": (4, u32(number)) for name, number in sizes.items()}
    for epsilon in ("rms_epsilon", "epsilon") if arch != "llama" else ("rms_epsilon",):
        values[f"{arch}.attention.layer_norm_{epsilon}"] = (6, struct.pack("<f", 1e-5))
    values |= {"tokenizer.ggml.model": (8, text("gpt2")), "tokenizer.ggml.pre": (8, text("gpt-2"))}
    values |= {"tokenizer.ggml.tokens": (9, array(8, 3, text("a") + text("b") + text("ab")))}
    values |= {"tokenizer.ggml.merges": (9, array(8, 1, text("a b"))), "tokenizer.ggml.bos_token_id": (4, u32(0))}
    other_names = ("tokenizer.ggml.token_type", "tokenizer.ggml.eos_token_id", "tokenizer.chat_template")
    other_names = (*other_names, f"{arch}.rope.freq_base", f"{arch}.rope.scaling.type", f"{arch}.expert_count")
    for name in random.sample([*values, *other_names], random.choice((0, 1, 2))):
        values[name] = random_value(random)
    shapes = {"token_embd": (8, 3), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
    shapes |= {f"blk.0.{part}": (8, 8) for part in "attn_q attn_k attn_v attn_output ffn_gate ffn_up ffn_down".split()}
    tensors, start = [], 0
    for name, shape in shapes.items():
        tensors.append(tensor(f"{name}.weight", shape, offset=start))
        start += 4 * math.prod(shape)
    architecture = key("general.architecture", 8, text(arch))
    return header(architecture, *(key(name, *entry) for name, entry in values.items()), tensors=tensors, data=start)


@short_and_long(30, 1_000)
def test_a_model_with_any_keys_is_loaded_or_refused(seeds, tmp_path):
    pytest.importorskip("transformers")

    def read(seed):
        (tmp_path / "model.gguf").write_bytes(loadable_model(Random(seed)))
        load(tmp_path / "model.gguf")

    counts = run_cases(read, seeds)
    assert counts["read"] > len(seeds) / 50 and counts["refused"] > len(seeds) / 20


CLAIMS = {
    f"{count} items of type {kind}": header(key("llama.a", 9, array(kind, count, bytes(64))))
    for count in (200_000_000, 1 << 40, 1 << 63)
    for kind in (4, 8, 9)
}
for count in (100_000_000, (1 << 32) - 1):
    layer_keys = {**REQUIRED_KEYS, "block_count": count}
    keys = [key("general.architecture", 8, text("llama"))]
    keys += [key(f"llama.{k}", 4, u32(v)) for k, v in layer_keys.items()]
    CLAIMS[f"{count} layers"] = header(*keys)
for label, *keys_of_file in (
    ("no architecture",),
    ("a list", key("general.architecture", 9, array(8, 1, text("llama")))),
    ("a number", key("general.architecture", 4, u32(3))),
    ("10 MB", key("general.architecture", 8, text("x" * 10_000_000))),
    ("no letters", key("general.architecture", 8, text(""))),
):
    CLAIMS[f"{label} as architecture"] = header(*keys_of_file)


def test_each_claim_that_once_took_all_memory_or_ended_in_a_traceback_is_refused(tmp_path):
    def read(case):
        (tmp_path / "model.gguf").write_bytes(CLAIMS[case])
        inspect(tmp_path / "model.gguf")

    assert run_cases(read, list(CLAIMS), cpu=2.0, memory=100 << 20) == {"refused": len(CLAIMS)}


def test_heads_that_the_tensors_have_no_numbers_for_are_refused_before_a_model_is_built(tmp_path):
    """A StableLM has a norm for each head, so such a file asks for a huge model."""
    pytest.importorskip("transformers")
    sizes = {"block_count": 1_000, "embedding_length": 8_192, "context_length": 16, "attention.head_count": 4_096}
    keys = [key("general.architecture", 8, text("stablelm"))]
    keys += [key(f"stablelm.{name}", 4, u32(number)) for name, number in sizes.items()]
    tensors = [tensor("blk.0.attn_q_norm.weight", (1,))]
    (tmp_path / "model.gguf").write_bytes(header(*keys, tensors=tensors, data=4))
    assert run_cases(load, [tmp_path / "model.gguf"], cpu=2.0, memory=100 << 20) == {"refused": 1}
    with pytest.raises(CannotRead, match="queries alone are made with 67,108,864,000 numbers, and its tensors have 1;"):
        load(tmp_path / "model.gguf")


def test_a_sparse_table_of_5_gigabytes_is_not_read_for_its_name(tmp_path):
    numbers = 5 << 28
    keys = [key("general.architecture", 8, text("llama"))]
    keys += [key(f"llama.{k}", 4, u32(v)) for k, v in REQUIRED_KEYS.items()]
    with open(tmp_path / "model.gguf", "wb") as file:
        file.write(header(*keys, tensors=[tensor("rope_freqs.weight", (numbers,))]))
        file.truncate(file.tell() + 4 * numbers)
    assert run_cases(inspect, [tmp_path / "model.gguf"], cpu=2.0, memory=100 << 20) == {"refused": 1}
