"""Every architecture that the installed transformers knows: its default configuration is read, and held to its modules.

What a model has of positions is found here by other means than in the code under test: floating buffers and parameters
whose names speak of position, walked by themselves. A reading matches when every one of them has the numbers, or the
shape, of what the reading says; else `not_covered` has to name it.
"""

import collections
import json
import re

import census
import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES  # noqa: E402

from posenc.checkpoints.formats import huggingface  # noqa: E402
from posenc.checkpoints.models.skeleton import skeleton  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402
from posenc.encoding import parts_of  # noqa: E402
from posenc.foreign.text import told  # noqa: E402

DIVERSE = [
    *("llama", "gemma3_text", "gptj", "roformer", "gpt2", "opt", "roberta", "clip", "vit", "t5", "bloom", "mpt"),
    *("pixtral", "wav2vec2", "mamba"),
]
HEAVY = [
    *("smollm3", "gpt_oss", "llama4_text", "ministral3", "deepseek_v3", "phi3", "gpt_neox", "gemma4_text"),
    *("qwen2_vl_text", "qwen3_vl", "lw_detr"),
]

CARRIES = re.compile(
    r"inv_freq|position|pos_emb|pos_enc|pos_bias|rel_pos|relative|wpe|sinus|inv_timescale", re.IGNORECASE
)
PASSES = re.compile(r"original|position_ids|_index$|positionwise|PositionwiseFFN|composition", re.IGNORECASE)


def carriers(model):
    """Name -> tensor, for the floating tensors of a model that carry position by their names."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return {
        name: tensor
        for name, tensor in tensors
        if tensor.is_floating_point()
        and tensor.dim() > 0
        and not PASSES.search(name)
        and CARRIES.search(".".join(name.split(".")[-2:]))
    }


def spectra(reading):
    """The frequencies and temperature of every rotary that a reading names, in float64."""
    found = []
    for part in reading.parts:
        for index in {layer.spec: i for i, layer in enumerate(part.layers)}.values():
            for encoding in parts_of(part.encoding(index)):
                if hasattr(encoding, "spectrum"):
                    try:
                        found.append((*encoding.spectrum(),))
                    except TypeError:
                        axes = [encoding.spectrum(axis) for axis in range(encoding.axes)]
                        found += [(axis, 1.0) for axis in axes] + [(torch.cat(axes), 1.0)]
    return found


def same_frequencies(values, temperature, reading):
    values = values.double().flatten().sort(descending=True).values
    for frequencies, warmth in spectra(reading):
        warmth = float(warmth.flatten()[0]) if isinstance(warmth, torch.Tensor) else warmth
        frequencies = frequencies.flatten().sort(descending=True).values
        if len(values) == len(frequencies) and torch.allclose(values, frequencies, rtol=1e-5, atol=0):
            if warmth == pytest.approx(temperature, rel=1e-6):
                return True
    return False


def tables_and_buckets(reading):
    shapes = [tuple(shape) for part in reading.parts for shape in part.tables.values()]
    for part in reading.parts:
        for encoding in parts_of(part.encoding(0)):
            if hasattr(encoding, "buckets"):
                shapes.append((encoding.buckets, part.shape.heads))
    return shapes


def pattern(name):
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def verdict(name):
    """How a default configuration was read: a word, and what to say of it."""
    try:
        config = CONFIG_MAPPING[name]()
    except Exception as error:
        return "no default configuration", told(error)
    try:
        reading = huggingface.read(config)
    except CannotRead as error:
        return "refused", str(error)
    said = " ".join(reading.not_covered)
    try:
        model = skeleton(CONFIG_MAPPING[name]())
    except CannotRead as error:
        return ("not buildable", str(error)) if "rests on the keys" in said else ("silent", str(error))
    held, left = [], []
    for tensor_name, values in carriers(model).items():
        owner = model.get_submodule(tensor_name.rpartition(".")[0])
        last = tensor_name.rpartition(".")[2]
        if last.endswith("inv_freq"):
            label = last.removesuffix("inv_freq")
            temperature = getattr(owner, f"{label}attention_scaling", getattr(owner, "attention_scaling", 1.0))
            right = same_frequencies(values, temperature, reading)
        else:
            right = tuple(values.shape) in tables_and_buckets(reading)
        feeds = (
            "fixed table of a rotary"
            if any("rotary" in layer.spec for part in reading.parts for layer in part.layers[:1])
            else ""
        )
        place = pattern(tensor_name)
        pieces = place.split(".")
        named = any(".".join(pieces[i:]) in said or ".".join(pieces[: i + 1]) + " " in said for i in range(len(pieces)))
        if right:
            held.append(tensor_name)
        elif named:
            left.append(place)
        elif feeds and re.search(r"embed_positions$|embed_positions\.weight$", tensor_name):
            held.append(tensor_name)
        else:
            return "wrong", f"{tensor_name} {tuple(values.shape)} is in no spec, and nothing says so: {said[:200]}"
    if any(hasattr(e, "slopes") for p in reading.parts for e in parts_of(p.encoding(0))):
        held.append("slopes")
    if reading.not_covered:
        return ("in part" if held else "not covered"), said
    if reading.unknown:
        return ("keys unknown" if held else "keys unknown, nothing held"), json.dumps(
            dict(reading.unknown), default=str
        )
    return ("match", "") if held else ("no positions", "")


@pytest.mark.parametrize("name", [*DIVERSE, *(pytest.param(name, marks=pytest.mark.slow) for name in HEAVY)])
def test_a_default_configuration_is_read_as_its_own_modules_compute(name):
    expected = {"wav2vec2": "not covered", "mamba": "no positions", "lw_detr": "not covered"}.get(name, "match")
    assert verdict(name)[0] == expected, verdict(name)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_architecture_is_silently_misread():
    counts, wrong = collections.Counter(), {}
    for name in CONFIG_MAPPING_NAMES:
        kind, detail = verdict(name)
        counts[kind] += 1
        if kind in ("wrong", "silent"):
            wrong[name] = detail
    print(dict(counts))
    assert not wrong


SEEN = {
    **dict.fromkeys(
        "llama falcon bart t5 umt5 longt5 mpnet roberta gpt2 opt bloom distilbert vit clip qwen2_vl".split(), "equal"
    ),
    **{"deberta-v2": "in part", "mamba": "none", "roformer": "not covered"},
}
"""What has to come of a tiny model that is saved, inspected, attached, compared and detached."""


@pytest.mark.parametrize("name", SEEN)
def test_a_tiny_model_of_an_architecture_is_the_same_attached(name):
    row = census.of(name)
    assert row.verdict == SEEN[name], row
