"""Plans for released models: how far each is stretched, and what transformers computes from the config that is written.

The formulas stand here once more, in plain Python after the papers and after the code of transformers 4.57, so that
neither posenc nor the installed transformers is the judge of itself.
"""

import json
import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers")

from published_configs import LISTS, PUBLISHED, rotaries_in

from posenc.checkpoints.extension import methods
from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.vocabulary.reading import CannotRead

Table = tuple[list[float], float]
"""The frequency of each pair (radians per position), and the temperature."""


def plain(base: float, width: int) -> Table:
    return [base ** (-2 * k / width) for k in range(width // 2)], 1.0


def linear(base: float, width: int, factor: float) -> Table:
    return [one / factor for one in plain(base, width)[0]], 1.0


def larger(base: float, width: int, factor: float) -> Table:
    return plain(base * factor ** (width / (width - 2)), width)


def llama3(base: float, width: int, factor: float, before: int) -> Table:
    out = []
    for one in plain(base, width)[0]:
        wave = 2 * math.pi / one
        smooth = min(1.0, max(0.0, (before / wave - 1) / (4 - 1)))
        out.append((1 - smooth) * one / factor + smooth * one)
    return out, 1.0


def yarn(
    base: float, width: int, factor: float, before: int, *, truncate: bool = True, of_deepseek: bool = False
) -> Table:
    def pair(turns: float) -> float:
        return width * math.log(before / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(32), pair(1)
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(low, 0), min(high, width - 1)
    out = []
    for k, one in enumerate(plain(base, width)[0]):
        divided = min(1.0, max(0.0, (k - low) / (high - low)))
        out.append(divided * one / factor + (1 - divided) * one)
    # With DeepSeek's mscale and mscale_all_dim of 1 the two cancel, and the scale of the logits has it instead.
    return out, 1.0 if of_deepseek else 0.1 * math.log(factor) + 1


def longrope(base: float, width: int, factor: float, before: int, lists: dict[str, Any], which: str = "long") -> Table:
    divided = zip(plain(base, width)[0], lists[f"{which}_factor"], strict=True)
    return [one / by for one, by in divided], math.sqrt(1 + math.log(factor) / math.log(before))


def part_ntk(base: float, width: int, factor: float, before: int) -> Table:
    """`LlamaPartNTKScaledRotaryEmbedding` of jquesnelle/yarn."""

    def ramp(fast: float, slow: float) -> list[float]:
        low, high = (width * math.log(before / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow))
        low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
        return [1 - min(1.0, max(0.0, (k - low) / (high - low))) for k in range(width // 2)]

    mixed = zip(linear(base, width, factor)[0], larger(base, width, factor)[0], ramp(1.25, 0.75), strict=True)
    slow = [a * (1 - keep) + b * keep for a, b, keep in mixed]
    rest = zip(slow, plain(base, width)[0], ramp(16, 2), strict=True)
    return [a * (1 - keep) + b * keep for a, b, keep in rest], 1.0


@dataclass(frozen=True)
class Row:
    """What has to come out.

    lengths    before any scaling, served now, and stretched to (units of 1,024 tokens)
    schedule   what the plan says of the stretched layers
    table      what they turn by
    stretched  which layers change
    kept       what the others turn by, where that is another table
    at         the length of a sequence at which transformers is asked (tokens)
    scale      by what the scale of the logits is multiplied
    """

    model: str
    factor: float
    method: str
    lengths: tuple[int, int, int]
    schedule: str
    table: Table
    stretched: tuple[bool, ...] = (True, True)
    kept: Table | None = None
    replace: bool = False
    at: int = 1
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.model}, {'replaced by ' if self.replace else ''}{self.method} by {self.factor:g}"


K = 1024
FAR = {"short_factor": [1.0] * 48, "long_factor": [2.0 + k for k in range(48)]}
DEEPSEEK = (0.1 * math.log(80) + 1) / (0.1 * math.log(40) + 1)
MSCALE = "mscale=1.0, mscale_all_dim=1.0"
LAST = (False,) * 5 + (True,)
LONGER, OTHER = {"at": 4 * K + 1}, {"replace": True}
HELD = (plain(1e6, 128)[0], 0.1 * math.log(4) + 1)

ROWS = [
    Row("Qwen2.5", 2, "yarn", (32, 32, 64), "yarn(factor=2.0, trained_length=32768)", yarn(1e6, 128, 2, 32 * K)),
    Row("Qwen2.5", 4, "ntk", (32, 32, 128), f"base={1e6 * 4 ** (128 / 126)}", larger(1e6, 128, 4)),
    Row("Qwen2.5", 4, "linear", (32, 32, 128), "linear(factor=4.0)", linear(1e6, 128, 4)),
    Row("Qwen2.5", 2, "part-ntk", (32, 32, 64), "part_ntk(factor=2.0", part_ntk(1e6, 128, 2, 32 * K)),
    Row("Qwen2.5", 4, "temperature", (32, 32, 128), "yarn(factor=4.0", HELD),
    # The recipe serves 131,072 tokens, whatever max_position_embeddings says.
    Row("Qwen2.5 by its recipe", 2, "yarn", (32, 128, 256), "yarn(factor=8.0", yarn(1e6, 128, 8, 32 * K)),
    Row("Qwen2.5 with YaRN", 2, "yarn", (32, 128, 256), "yarn(factor=8.0", yarn(1e6, 64, 8, 32 * K)),
    Row("Qwen2.5 by its recipe", 2, "llama3", (32, 128, 256), "llama3(fac", llama3(1e6, 128, 8, 32 * K), **OTHER),
    Row("Qwen3", 2, "yarn", (40, 40, 80), "yarn(factor=2.0, trained_length=40960)", yarn(1e6, 128, 2, 40 * K)),
    Row("Qwen3 by its recipe", 1.5, "yarn", (32, 128, 192), "yarn(factor=6.0", yarn(1e6, 128, 6, 32 * K)),
    # The factor of Llama 3 is no ratio of lengths: what is served is max_position_embeddings, and its factor doubles.
    Row("Llama 3.1", 2, "llama3", (8, 128, 256), "llama3(factor=16.0, trained", llama3(5e5, 128, 16, 8 * K)),
    Row("Llama 3.2", 2, "llama3", (8, 128, 256), "llama3(factor=64.0, trained", llama3(5e5, 64, 64, 8 * K)),
    Row("Llama 3.1", 2, "yarn", (8, 128, 256), "yarn(factor=32.0, trained", yarn(5e5, 128, 32, 8 * K), **OTHER),
    # One place for the rotary of all layers: those with a window are stretched too.
    Row("gpt-oss", 2, "yarn", (4, 128, 256), "yarn(factor=64.0", yarn(150_000, 64, 64, 4 * K, truncate=False)),
    Row(
        "Phi-3",
        2,
        "longrope",
        (4, 128, 256),
        "longrope(factor=64.0",
        longrope(1e4, 96, 64, 4 * K, FAR),
        **OTHER | LONGER,
    ),
    Row("Phi-3", 2, "yarn", (4, 128, 256), "yarn(factor=64.0", yarn(1e4, 96, 64, 4 * K), **OTHER),
    Row("Phi-4-mini", 2, "yarn", (4, 128, 256), "yarn(factor=64.0", yarn(1e4, 96, 64, 4 * K), **OTHER | LONGER),
    Row("DeepSeek-V3", 2, "yarn", (4, 160, 320), MSCALE, yarn(1e4, 64, 80, 4 * K, of_deepseek=True), scale=DEEPSEEK**2),
    Row("SmolLM3", 2, "yarn", (64, 64, 128), "yarn(factor=2.0", yarn(5e6, 128, 2, 64 * K), (True, True, True, False)),
    Row("Mistral 0.3", 2, "llama3", (32, 32, 64), "llama3(factor=2.0", llama3(1e6, 128, 2, 32 * K)),
    # Two bases, and a place for each: the layers with a window stay.
    Row("Gemma 3", 2, "linear", (16, 128, 256), "linear(factor=16.0)", linear(1e6, 256, 16), LAST, plain(1e4, 256)),
    Row("Gemma 3", 2, "yarn", (16, 128, 256), "yarn(", yarn(1e6, 256, 16, 16 * K), LAST, plain(1e4, 256), **OTHER),
    # A temperature that is what the rule gives anyway follows the factor.
    Row("OLMo 3", 2, "yarn", (8, 64, 128), "yarn(fac", yarn(5e5, 128, 16, 8 * K), (False, True), plain(5e5, 128)),
]


@cache
def of(model: str, method: str, factor: float, replace: bool) -> methods.Plan:
    given = PUBLISHED[model]
    lists = FAR if method == "longrope" else None
    return methods.plan(huggingface.read(given), given, factor, [method], longrope=lists, replace=replace)


def planned(row: Row) -> methods.Plan:
    return of(row.model, row.method, row.factor, row.replace)


def in_transformers_4(config: dict[str, Any], length: int) -> Table:
    """What `modeling_rope_utils` of transformers 4.57 computes: it reads rope_theta and rope_scaling alone."""
    longest, base, scaling = config["max_position_embeddings"], config["rope_theta"], config.get("rope_scaling")
    head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    width = config.get("qk_rope_head_dim") or int(head * config.get("partial_rotary_factor", 1))
    if scaling is None:
        return plain(base, width)
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if kind == "linear":
        return linear(base, width, factor)
    if kind == "llama3":
        return llama3(base, width, factor, scaling["original_max_position_embeddings"])
    if kind == "yarn":
        before = scaling["original_max_position_embeddings"]
        both = scaling.get("mscale") == scaling.get("mscale_all_dim") == 1
        return yarn(base, width, longest / before, before, truncate=scaling.get("truncate", True), of_deepseek=both)
    assert kind == "longrope", kind
    before = config["original_max_position_embeddings"]
    which = "long" if length > before else "short"
    frequencies, warm = longrope(base, width, longest / before, before, scaling, which)
    return frequencies, scaling.get("attention_factor", warm)


def same(found: Table, expected: Table) -> None:
    assert sorted(found[0]) == pytest.approx(sorted(expected[0]), rel=3e-6)
    assert found[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.fixture(scope="module")
def plans() -> dict[str, methods.Plan]:
    return {str(row): planned(row) for row in ROWS}


@pytest.fixture(scope="module")
def served(plans, tmp_path_factory) -> dict[str, Any]:
    """What the installed transformers makes of every config that is written: the rotary of each layer."""
    written = [plan.methods[-1].config or {} for plan in plans.values()]
    found = rotaries_in(sys.executable, tmp_path_factory.mktemp("written"), written, [[row.at] for row in ROWS])
    return dict(zip(plans, found, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_released_model_is_stretched_as_planned_and_served_so(row: Row, plans, served) -> None:
    plan, found = plans[str(row)], served[str(row)]
    none, made = plan.methods[0], plan.methods[-1]
    assert tuple(length / K for length in (plan.trained, plan.target)) == row.lengths[1:]
    assert all(f"{length * K:,}" in plan.words for length in row.lengths)
    assert tuple(new != old for new, old in zip(made.specs, none.specs, strict=True)) == row.stretched
    assert all(row.schedule in spec for spec, one in zip(made.specs, row.stretched, strict=True) if one)
    assert made.scales == pytest.approx([row.scale] * len(none.specs), rel=1e-6)
    config = made.config
    assert config is not None, made.why_not
    assert config["max_position_embeddings"] == plan.target and "error" not in found, found
    for layer, changed in zip(found[str(row.at)], row.stretched, strict=True):
        expected = row.table if changed or row.kept is None else row.kept
        same((layer["frequencies"], layer["temperature"]), expected)
    same(in_transformers_4(config, row.at), row.table)
    if row.model == "Gemma 3":
        same(plain(config["rope_local_base_freq"], 256), row.kept)
    # Which layers turn at all, and how far they see, is left alone.
    for key in ("no_rope_layers", "layer_types", "sliding_window", "sliding_window_pattern"):
        assert config.get(key) == PUBLISHED[row.model].get(key)


def test_deepseeks_scale_of_the_logits_follows_in_transformers_too() -> None:
    from transformers import AutoConfig, AutoModel

    given = dict(of("DeepSeek-V3", "yarn", 2, False).methods[-1].config)
    model = AutoModel.from_config(AutoConfig.for_model(given.pop("model_type"), **given))
    assert model.layers[0].self_attn.scaling == pytest.approx((128 + 64) ** -0.5 * (0.1 * math.log(80) + 1) ** 2)


def test_what_an_architecture_has_neither_keys_nor_lists_for_is_attached() -> None:
    given = PUBLISHED["gpt-oss"]
    made = methods.plan(huggingface.read(given), given, 2.0, ["part-ntk"], replace=True).methods[-1]
    assert made.config is None and made.why_not.startswith("transformers has no rope_parameters for rotary(base=150000")
    # So the layers that see far are stretched alone.
    assert ["part_ntk(factor=64.0" in spec for spec in made.specs] == [False, True]


REFUSED: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "every layer has a window": (
        "Mistral 0.1",
        {},
        ValueError,
        "every layer sees at most 4,096 tokens, so that none",
    ),
    "the length before is the longer": (
        *("Qwen2.5 by its recipe", {"max_position_embeddings": 4096}, CannotRead),
        r"its yarn starts from 32,768 tokens \(original_max_position_embeddings\), and it is said to serve 4,096",
    ),
    "a factor below 1": (
        "Llama 3.1",
        {"factor": 0.5},
        CannotRead,
        "scaling cannot be: llama3: factor must be 1 or more",
    ),
    "a factor that is no number": (
        "Llama 3.1",
        {"factor": math.nan},
        CannotRead,
        "scaling.factor must be a finite.*nan",
    ),
    "a factor without end": (
        "Llama 3.1",
        {"factor": math.inf},
        CannotRead,
        "scaling.factor must be a finite .*got inf",
    ),
    "no length": (
        "Mistral 0.3",
        {"max_position_embeddings": 0},
        CannotRead,
        "how long a text the model was trained on",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_configs_that_cannot_be_are_refused_with_what_is_wrong(why: str) -> None:
    name, changes, error, message = REFUSED[why]
    given = json.loads(json.dumps(PUBLISHED[name]))
    for key, value in changes.items():
        (given["rope_scaling"] if key == "factor" else given)[key] = value
    with pytest.raises(error, match=message):
        methods.plan(huggingface.read(given), given, 2.0, ["yarn" if "Llama" not in name else "llama3"])


def test_a_length_that_is_only_the_default_of_an_architecture_is_called_that() -> None:
    given = {key: value for key, value in PUBLISHED["Mistral 0.3"].items() if key != "max_position_embeddings"}
    words = methods.plan(huggingface.read(given), given, 2.0, ["linear"]).words
    assert "131,072" in words and words.endswith("Its config names no length: that is the default of mistral.")
    assert "default" not in planned(ROWS[0]).words


def test_searched_lists_are_never_shown_whole() -> None:
    plan = planned(next(row for row in ROWS if row.method == "longrope"))
    assert "long_factor=(2.0, 3.0, ..., 49.0: 48 numbers)" in plan.methods[-1].spec
    given = PUBLISHED["Phi-3"]
    reading = huggingface.read(given)
    left_out = methods.plan(reading, given, 2.0, ["all"]).left_out
    errors = []
    for name in ("yarn", "rerope"):
        with pytest.raises(ValueError) as caught:
            methods.plan(reading, given, 2.0, [name])
        errors.append(str(caught.value))
    for told in (*left_out.values(), *errors):
        assert str(LISTS["long_factor"][3]) not in told
    assert "62.1: 48 numbers" in left_out["rerope"] == errors[1]
