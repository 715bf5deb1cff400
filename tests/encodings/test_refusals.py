"""Encodings reject numbers out of bounds, conflicting options, and sizes they were not built for."""

import inspect

import pytest
import torch

from posenc import Attention, Positions
from posenc.catalogue import find, names
from posenc.encoding.base import Encoding
from posenc.schedules import DynamicNTK, YaRN
from posenc.testing import SHAPE
from posenc.testing.subjects import make

BOUNDS = {
    **dict.fromkeys(("axes", "width", "depth", "rank", "hidden", "interval", "chunk", "group", "window"), "1 or more"),
    **dict.fromkeys(("leak", "max_distance", "max_freq"), "1 or more"),
    **dict.fromkeys(("std", "rate", "length", "eps", "bias_max", "scale", "temperature", "scale_base"), "above 0"),
    **dict.fromkeys(("gain", "prefix", "least", "strength"), "0 or more"),
    **{
        "base": "above 1",
        "seed": "a whole number of 0 or more",
        "gamma": "above 0",
        "positions": "2 or more",
        "size": "2 or more",
    },
}
"""The required range of each numeric option, by name."""

OTHER_BOUNDS = {
    "deberta": {"buckets": "4 or more", "max_distance": "above 129"},
    "forgetting": {"std": "0 or more"},
    "grid_bias": {"std": "0 or more", "window": "a tuple"},
    "log_grid_bias": {"window": "2 or more"},
    "proportional_rotary": {"partial": "above 0 and at most 1"},
    "sandwich": {"width": "an even number"},
    "t5_bias": {"std": "0 or more", "max_distance": "above 16"},
}
"""Ranges that differ for one encoding."""


@pytest.mark.parametrize("name", names())
def test_numbers_out_of_bounds_and_without_end(name: str) -> None:
    cls, bounds = find(name), BOUNDS | OTHER_BOUNDS.get(name, {})
    for option, parameter in inspect.signature(cls.__init__).parameters.items():
        if option in bounds:
            with pytest.raises(ValueError, match=f"{option} must be {bounds[option]}"):
                make(cls, SHAPE, **{option: -1})
        kind = str(parameter.annotation)
        wrong = [float("inf"), float("nan"), "x"] if "float" in kind else ["x", True, 1.5] if "int" in kind else []
        for value in [*wrong, *(["x"] if option == "device" else []), *([2**64] if option == "seed" else [])]:
            with pytest.raises(ValueError, match=rf"{option} (must be|is for) .*got {value!r}"):
                make(cls, SHAPE, **{option: value})


REFUSALS = {
    "alibi": {
        "form must be one of symmetric, asymmetric, falcon, got 'bloom'; BLOOM and MPT are symm": {"form": "bloom"},
        r"form 'falcon' divides the bias by sqrt\(head_dim\); give head_dim": {"form": "falcon", "head_dim": None},
    },
    "axial_rotary": {
        "head_dim must hold a pair of channels for each axis, 4 for 2 axes, got head_dim=3": {"head_dim": 3},
        r"split must name the channels of each of 2 axes, got \(4,\)": {"split": (4,)},
        r"split must give each axis an even number of channels .*, got \(3, 2\)": {"split": (3, 2)},
        r"split must give each axis an even number of channels .*, got \(0, 4\)": {"split": (0, 4)},
        r"split \(4, 6\) takes 10 channels, more than head_dim=6 has": {"split": (4, 6)},
        r"takes a split into equal parts, got \(4, 2\)": {"split": (4, 2), "frequencies": "dealt"},
        "resolution is for pixel .* above 2, got 10.0 for 'language'": {"resolution": 10.0},
        "resolution is for pixel .*, got 2 for 'pixel'": {"frequencies": "pixel", "resolution": 2},
        "resolution .* got nan": {"frequencies": "log_pixel", "resolution": float("nan")},
        "base is not for 'pixel' frequencies, .* got base=10.0": {"frequencies": "pixel", "base": 10.0},
    },
    "deberta": {
        "buckets must be 2 or more, got 1": {"buckets": 1, "max_distance": None},
        "max_distance must be above 129, .* or None for a row .*, got 129": {"max_distance": 129},
    },
    "fourier_features": {
        "scale is read by gaussian and learned only, got kind='linear'; leave it out": {"scale": 2.0},
        "max_freq is read by linear and log2 only, got kind='learned'": {"max_freq": 9.0, "kind": "learned"},
        "seed is read by gaussian only, got kind='learned'": {"seed": 3, "kind": "learned"},
        "hidden is read by learned only, got kind='linear'": {"hidden": 8},
        "dim=6 leaves no channel for the last of axes=4, .* each takes 2; build it with dim=8": {"dim": 6, "axes": 4},
    },
    "fourier_rotary": {
        "trained_length must be 7 or more, .* takes 2 pi = 6.28 positions, got 6": {"trained_length": 6}
    },
    "grid_bias": {
        r"window must be a tuple of sizes from 1, as in \(7, 7\), got \(\)": {"window": ()},
        r"window must be a tuple of sizes from 1, as in \(7, 7\), got \(0, 3\)": {"window": (0, 3)},
        r"window must be a tuple of sizes from 1, as in \(7, 7\), got \(2.5, 3\)": {"window": (2.5, 3)},
    },
    "image_rotary": {
        "head_dim must hold a pair of channels for each axis, 4 for 2 axes, got head_dim=3": {"head_dim": 3},
    },
    "kerple": {r"form 'paper' divides the bias by sqrt\(head_dim\); give": {"form": "paper", "head_dim": None}},
    "learned_factorised": {
        r"tables need their sizes: give grid=\(rows, columns\), or max_len": {"max_len": None},
        r"grid must give the rows of two tables or more, as in \(64, 64\), got \(3,\)": {"grid": (3,)},
        r"widths must be 2 numbers .* that add up to dim=15, got \(4, 4\)": {"grid": (3, 2), "widths": (4, 4)},
        r"widths must be 2 numbers .* got \(15, 0\)": {"grid": (3, 2), "widths": (15, 0)},
        "widths must be 16 numbers of 1 or more that add up to dim=15": {"grid": (1,) * 16},
        "summed tables all have dim=15": {"grid": (3, 2), "widths": (7, 8), "combine": "summed"},
    },
    "learned_grid": {
        r"a table needs its size: give grid=\(rows, columns\), or max_len": {"max_len": None},
        r"grid must give the cells on two axes or more, as in \(14, 14\), got \(3,\)": {"grid": (3,)},
        r"grid must give the cells on two axes or more, as in \(14, 14\), got \(3, 0\)": {"grid": (3, 0)},
        "grid must be a tuple, got 14": {"grid": 14},
    },
    "learned_rotary": {
        "per_head needs to know how many heads there are; give heads, as in heads=8": {"per_head": True, "heads": None},
    },
    "log_temperature": {"trained_length must be 2 or more, since the logarithm of 1 is 0": {"trained_length": 1}},
    "mixed_rotary": {
        "head_dim must hold a pair of channels, got 1": {"head_dim": 1},
        "groups must divide heads=3, got 2; give the number of key heads": {"groups": 2},
        "groups must divide heads=3, got 0": {"groups": 0},
    },
    "mlp_bias": {"depth must be at most 100, got 1000003": {"depth": 1_000_003}},
    "multimodal_rotary": {
        r"sections .* take three pairs, 6 channels, got 4 \(head_dim=4, partial=1.0\); give sections": {"head_dim": 4},
        r"numbers of pairs that add up to 3, got \(1, 1, 2\)": {"sections": (1, 1, 2)},
        r"add up to 3, got \(4, -1\)": {"sections": (4, -1)},
        r"add up to 3, got \(1.5, 1.5\)": {"sections": (1.5, 1.5)},
        r"add up to 3, got \(\)": {"sections": ()},
        # GenLIP's sections, which Hugging Face and timm truncate silently.
        r"\(8, 12, 12\) do not fit the interleaved order, .* 32 pairs; .* say sections=\(11, 11, 10\) for the same": {
            **{"head_dim": 64, "sections": (8, 12, 12), "order": "interleaved"}
        },
        r"say sections=\(22, 21, 21\)": {"head_dim": 128, "sections": (16, 24, 24), "order": "interleaved"},
    },
    "proportional_rotary": {
        "schedule must not depend on the horizon of a sequence, got dynamic_ntk": {"schedule": DynamicNTK(2, 9)},
    },
    "rotary": {
        r"got 7 \(head_dim=7, partial=1.0\); choose .* or partial=0.857": {"head_dim": 7},
        "got 0 .*partial=0.25": {"head_dim": 8, "partial": 0.1},
        "got 3 .*partial=0.25": {"head_dim": 8, "partial": 0.4},
        "partial must be above 0 and at most 1, got 0.0": {"partial": 0.0},
        "partial must be above 0 and at most 1, got 1.5": {"partial": 1.5},
        r"yarn needs factor by name, as in yarn\(factor=4\)": {"schedule": "yarn"},
        "yarn compares wavelengths with the trained length": {"schedule": YaRN(2)},
    },
    "sinusoidal": {"dim=4 leaves no channel for the last of axes=5; give dim=10": {"dim": 4, "axes": 5}},
    "t5_bias": {
        "causal buckets must be divisible by 2, got 31": {"buckets": 31},
        "causal buckets must be divisible by 2, got 0": {"buckets": 0},
        "bidirectional buckets must be divisible by 4, got 30": {"buckets": 30, "causal": False},
        "max_distance must be above 16, where the logarithmic buckets begin, got 16; use fewer": {"max_distance": 16},
        "max_distance must be above 8": {"max_distance": 8, "causal": False},
    },
}
"""Error message -> the options that cause it."""


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, cases in REFUSALS.items() for words in cases])
def test_options_that_make_no_encoding(name: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make(find(name), SHAPE, **REFUSALS[name][words])


BY_PAIRS = (
    "fourier_rotary learned_rotary multimodal_rotary proportional_rotary rotary rotary_values selective_rotary xpos"
)


@pytest.mark.parametrize("name", BY_PAIRS.split())
def test_an_odd_number_of_channels_makes_no_pairs(name: str) -> None:
    with pytest.raises(ValueError, match="must be an even number of channels to form pairs, got 7"):
        make(find(name), SHAPE, head_dim=7)


UNSEEN = {
    **dict.fromkeys(("deberta", "transformer_xl", "tupe"), "dim"),
    **{"alibi": "head_dim", "kerple": "head_dim", "learned_rotary": "heads"},
}
"""Sizes that some encodings do not store with default options."""


def call_doors(encoding: Encoding, at: Positions, dim: int, heads: int, head_dim: int) -> None:
    """Apply an encoding to four tokens in a model of these sizes."""
    x = encoding.embed(torch.zeros(1, 4, dim), at)
    Attention(dim, heads, head_dim=head_dim, encoding=None, causal=True)(x, positions=at, encoding=encoding)


@pytest.mark.parametrize("name", names())
def test_other_sizes_and_axes_than_it_was_built_for(name: str) -> None:
    encoding, sizes = make(find(name), SHAPE), {"dim": SHAPE.dim, "heads": SHAPE.heads, "head_dim": SHAPE.head_dim}
    at = Positions.grid(4, *[1] * (max(1, encoding.axes) - 1))
    call_doors(encoding, at, **sizes)
    for option in sizes.keys() & inspect.signature(type(encoding).__init__).parameters:
        if UNSEEN.get(name) != option:
            with pytest.raises(ValueError, match=f"(built for|among 3).* got .* build it with (groups|{option})="):
                call_doors(encoding, at, **sizes | {option: 2 * sizes[option]})
    if encoding.axes > 1:
        with pytest.raises(ValueError, match=f"{name}.* reads {encoding.axes} axes, got positions with 1 axis"):
            call_doors(encoding, Positions.count(4), **sizes)
    if encoding.reads_keys and "remember" not in encoding.doors:
        with pytest.raises(ValueError, match="reads the keys; give k"):
            encoding.bias(4, q=torch.zeros(1, SHAPE.heads, 4, SHAPE.head_dim))
