"""Plans for released models: their lengths, and the frequencies of transformers for the written configs.

The formulas are written here again, in plain Python after the papers and the code of transformers 4.57, so that
neither posenc nor the installed transformers is compared with itself.
"""

import json
import math
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

pytest.importorskip("transformers")

from published_configs import LISTS, PUBLISHED_CONFIGS, installed_rotaries

from posenc.checkpoints.extension import methods
from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.vocabulary.reading import CannotRead

Table = tuple[list[float], float]
"""The frequency of each pair (radians per position), and the temperature."""


def plain(base: float, width: int) -> Table:
    return [base ** (-2 * k / width) for k in range(width // 2)], 1.0


def linear(base: float, width: int, factor: float) -> Table:
    return [frequency / factor for frequency in plain(base, width)[0]], 1.0


def larger(base: float, width: int, factor: float) -> Table:
    return plain(base * factor ** (width / (width - 2)), width)


def llama3(base: float, width: int, factor: float, start: int) -> Table:
    frequencies = []
    for frequency in plain(base, width)[0]:
        wave = 2 * math.pi / frequency
        smooth = min(1.0, max(0.0, (start / wave - 1) / (4 - 1)))
        frequencies.append((1 - smooth) * frequency / factor + smooth * frequency)
    return frequencies, 1.0


def yarn(base: float, width: int, factor: float, start: int, *, truncate: bool = True, deepseek: bool = False) -> Table:
    def pair(turns: float) -> float:
        return width * math.log(start / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = pair(32), pair(1)
    low, high = (math.floor(low), math.ceil(high)) if truncate else (low, high)
    low, high = max(low, 0), min(high, width - 1)
    frequencies = []
    for k, frequency in enumerate(plain(base, width)[0]):
        share = min(1.0, max(0.0, (k - low) / (high - low)))
        frequencies.append(share * frequency / factor + (1 - share) * frequency)
    # DeepSeek's mscale and mscale_all_dim of 1 cancel; the scale of the logits has the temperature instead.
    return frequencies, 1.0 if deepseek else 0.1 * math.log(factor) + 1


def longrope(base: float, width: int, factor: float, start: int, lists: dict[str, Any], kind: str = "long") -> Table:
    pairs = zip(plain(base, width)[0], lists[f"{kind}_factor"], strict=True)
    return [frequency / divisor for frequency, divisor in pairs], math.sqrt(1 + math.log(factor) / math.log(start))


def part_ntk(base: float, width: int, factor: float, start: int) -> Table:
    """`LlamaPartNTKScaledRotaryEmbedding` of jquesnelle/yarn."""

    def ramp(fast: float, slow: float) -> list[float]:
        low, high = (width * math.log(start / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (fast, slow))
        low, high = max(math.floor(low), 0), min(math.ceil(high), width - 1)
        return [1 - min(1.0, max(0.0, (k - low) / (high - low))) for k in range(width // 2)]

    bands = zip(linear(base, width, factor)[0], larger(base, width, factor)[0], ramp(1.25, 0.75), strict=True)
    slow = [a * (1 - keep) + b * keep for a, b, keep in bands]
    rest = zip(slow, plain(base, width)[0], ramp(16, 2), strict=True)
    return [a * (1 - keep) + b * keep for a, b, keep in rest], 1.0


@dataclass(frozen=True)
class Row:
    """The expected plan of a model.

    lengths    before any scaling, served now, and stretched to (units of 1,024 tokens)
    schedule   in the specs of the stretched layers
    table      of the stretched layers
    changes    which layers change
    other_table  of the other layers, where it differs
    length     the length of a sequence for transformers (tokens)
    scale      the factor of the logits' scale
    """

    model: str
    factor: float
    method: str
    lengths: tuple[int, int, int]
    schedule: str
    table: Table
    changes: tuple[bool, ...] = (True, True)
    other_table: Table | None = None
    replace: bool = False
    length: int = 1
    scale: float = 1.0

    def __str__(self) -> str:
        return f"{self.model}, {'replaced by ' if self.replace else ''}{self.method} by {self.factor:g}"


K = 1024
FAR_LISTS = {"short_factor": [1.0] * 48, "long_factor": [2.0 + k for k in range(48)]}
DEEPSEEK = (0.1 * math.log(80) + 1) / (0.1 * math.log(40) + 1)
MSCALE = "mscale=1.0, mscale_all_dim=1.0"
LAST = (False,) * 5 + (True,)
LONG_INPUT, REPLACE = {"length": 4 * K + 1}, {"replace": True}
TEMPERATURE_ALONE = (plain(1e6, 128)[0], 0.1 * math.log(4) + 1)

ROWS = [
    Row("Qwen2.5", 2, "yarn", (32, 32, 64), "yarn(factor=2.0, trained_length=32768)", yarn(1e6, 128, 2, 32 * K)),
    Row("Qwen2.5", 4, "ntk", (32, 32, 128), f"base={1e6 * 4 ** (128 / 126)}", larger(1e6, 128, 4)),
    Row("Qwen2.5", 4, "linear", (32, 32, 128), "linear(factor=4.0)", linear(1e6, 128, 4)),
    Row("Qwen2.5", 2, "part-ntk", (32, 32, 64), "part_ntk(factor=2.0", part_ntk(1e6, 128, 2, 32 * K)),
    Row("Qwen2.5", 4, "temperature", (32, 32, 128), "yarn(factor=4.0", TEMPERATURE_ALONE),
    # The recipe serves 131,072 tokens, whatever max_position_embeddings says.
    Row("Qwen2.5 by its recipe", 2, "yarn", (32, 128, 256), "yarn(factor=8.0", yarn(1e6, 128, 8, 32 * K)),
    Row("Qwen2.5 with YaRN", 2, "yarn", (32, 128, 256), "yarn(factor=8.0", yarn(1e6, 64, 8, 32 * K)),
    Row("Qwen2.5 by its recipe", 2, "llama3", (32, 128, 256), "llama3(fac", llama3(1e6, 128, 8, 32 * K), **REPLACE),
    Row("Qwen3", 2, "yarn", (40, 40, 80), "yarn(factor=2.0, trained_length=40960)", yarn(1e6, 128, 2, 40 * K)),
    Row("Qwen3 by its recipe", 1.5, "yarn", (32, 128, 192), "yarn(factor=6.0", yarn(1e6, 128, 6, 32 * K)),
    # The factor of Llama 3 is no ratio of lengths: what is served is max_position_embeddings, and its factor doubles.
    Row("Llama 3.1", 2, "llama3", (8, 128, 256), "llama3(factor=16.0, trained", llama3(5e5, 128, 16, 8 * K)),
    Row("Llama 3.2", 2, "llama3", (8, 128, 256), "llama3(factor=64.0, trained", llama3(5e5, 64, 64, 8 * K)),
    Row("Llama 3.1", 2, "yarn", (8, 128, 256), "yarn(factor=32.0, trained", yarn(5e5, 128, 32, 8 * K), **REPLACE),
    # One place for the rotary of all layers: those with a window are stretched too.
    Row("gpt-oss", 2, "yarn", (4, 128, 256), "yarn(factor=64.0", yarn(150_000, 64, 64, 4 * K, truncate=False)),
    Row(
        "Phi-3",
        2,
        "longrope",
        (4, 128, 256),
        "longrope(factor=64.0",
        longrope(1e4, 96, 64, 4 * K, FAR_LISTS),
        **REPLACE | LONG_INPUT,
    ),
    Row("Phi-3", 2, "yarn", (4, 128, 256), "yarn(factor=64.0", yarn(1e4, 96, 64, 4 * K), **REPLACE),
    Row("Phi-4-mini", 2, "yarn", (4, 128, 256), "yarn(factor=64.0", yarn(1e4, 96, 64, 4 * K), **REPLACE | LONG_INPUT),
    Row("DeepSeek-V3", 2, "yarn", (4, 160, 320), MSCALE, yarn(1e4, 64, 80, 4 * K, deepseek=True), scale=DEEPSEEK**2),
    Row("SmolLM3", 2, "yarn", (64, 64, 128), "yarn(factor=2.0", yarn(5e6, 128, 2, 64 * K), (True, True, True, False)),
    Row("Mistral 0.3", 2, "llama3", (32, 32, 64), "llama3(factor=2.0", llama3(1e6, 128, 2, 32 * K)),
    # Two bases, and a place for each: the layers with a window stay.
    Row("Gemma 3", 2, "linear", (16, 128, 256), "linear(factor=16.0)", linear(1e6, 256, 16), LAST, plain(1e4, 256)),
    Row("Gemma 3", 2, "yarn", (16, 128, 256), "yarn(", yarn(1e6, 256, 16, 16 * K), LAST, plain(1e4, 256), **REPLACE),
    # A temperature that equals the rule's follows the factor.
    Row("OLMo 3", 2, "yarn", (8, 64, 128), "yarn(fac", yarn(5e5, 128, 16, 8 * K), (False, True), plain(5e5, 128)),
]


@cache
def plan_for(model: str, method: str, factor: float, replace: bool) -> methods.Plan:
    config = PUBLISHED_CONFIGS[model]
    lists = FAR_LISTS if method == "longrope" else None
    return methods.plan_methods(huggingface.read(config), config, factor, [method], longrope=lists, replace=replace)


def plan_of(row: Row) -> methods.Plan:
    return plan_for(row.model, row.method, row.factor, row.replace)


def in_transformers_4(config: dict[str, Any], length: int) -> Table:
    """Compute as `modeling_rope_utils` of transformers 4.57, which reads rope_theta and rope_scaling alone."""
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
        original = scaling["original_max_position_embeddings"]
        options = {"deepseek": scaling.get("mscale") == scaling.get("mscale_all_dim") == 1}
        options["truncate"] = scaling.get("truncate", True)
        return yarn(base, width, longest / original, original, **options)
    assert kind == "longrope", kind
    original = config["original_max_position_embeddings"]
    band = "long" if length > original else "short"
    frequencies, warm = longrope(base, width, longest / original, original, scaling, band)
    return frequencies, scaling.get("attention_factor", warm)


def assert_same_table(actual: Table, expected: Table) -> None:
    assert sorted(actual[0]) == pytest.approx(sorted(expected[0]), rel=3e-6)
    assert actual[1] == pytest.approx(expected[1], rel=1e-6)


@pytest.fixture(scope="module")
def plans() -> dict[str, methods.Plan]:
    return {str(row): plan_of(row) for row in ROWS}


@pytest.fixture(scope="module")
def served_rotaries(plans, tmp_path_factory) -> dict[str, Any]:
    """The rotary of each layer in the installed transformers, for every written config."""
    configs = [plan.methods[-1].config or {} for plan in plans.values()]
    lengths, folder = [[row.length] for row in ROWS], tmp_path_factory.mktemp("written")
    rotaries = installed_rotaries(sys.executable, folder, configs, lengths)
    return dict(zip(plans, rotaries, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_released_model_is_stretched_as_planned_and_served_so(row: Row, plans, served_rotaries) -> None:
    plan, served_layers = plans[str(row)], served_rotaries[str(row)]
    original, method = plan.methods[0], plan.methods[-1]
    assert tuple(length / K for length in (plan.trained_length, plan.target)) == row.lengths[1:]
    assert all(f"{length * K:,}" in plan.words for length in row.lengths)
    assert tuple(new != old for new, old in zip(method.specs, original.specs, strict=True)) == row.changes
    assert all(row.schedule in spec for spec, change in zip(method.specs, row.changes, strict=True) if change)
    assert method.scales == pytest.approx([row.scale] * len(original.specs), rel=1e-6)
    config = method.config
    assert config is not None, method.why_not
    assert config["max_position_embeddings"] == plan.target and "error" not in served_layers, served_layers
    for layer, change in zip(served_layers[str(row.length)], row.changes, strict=True):
        expected = row.table if change or row.other_table is None else row.other_table
        assert_same_table((layer["frequencies"], layer["temperature"]), expected)
    assert_same_table(in_transformers_4(config, row.length), row.table)
    if row.model == "Gemma 3":
        assert_same_table(plain(config["rope_local_base_freq"], 256), row.other_table)
    # The kinds and windows of layers stay.
    for key in ("no_rope_layers", "layer_types", "sliding_window", "sliding_window_pattern"):
        assert config.get(key) == PUBLISHED_CONFIGS[row.model].get(key)


def test_deepseeks_scale_of_the_logits_follows_in_transformers_too() -> None:
    from transformers import AutoConfig, AutoModel

    config = dict(plan_for("DeepSeek-V3", "yarn", 2, False).methods[-1].config)
    model = AutoModel.from_config(AutoConfig.for_model(config.pop("model_type"), **config))
    assert model.layers[0].self_attn.scaling == pytest.approx((128 + 64) ** -0.5 * (0.1 * math.log(80) + 1) ** 2)


def test_what_an_architecture_has_neither_keys_nor_lists_for_is_attached() -> None:
    config = PUBLISHED_CONFIGS["gpt-oss"]
    method = methods.plan_methods(huggingface.read(config), config, 2.0, ["part-ntk"], replace=True).methods[-1]
    assert method.config is None
    assert method.why_not.startswith("transformers has no rope_parameters for rotary(base=150000")
    # So only the layers without a window are stretched.
    assert ["part_ntk(factor=64.0" in spec for spec in method.specs] == [False, True]


BAD_CONFIGS: dict[str, tuple[str, dict[str, Any], type[Exception], str]] = {
    "every layer has a window": ("Mistral 0.1", {}, ValueError, "every layer sees at most 4,096 tokens, so that none"),
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


@pytest.mark.parametrize("why", BAD_CONFIGS)
def test_configs_that_cannot_be_are_refused_with_what_is_wrong(why: str) -> None:
    name, changes, error, message = BAD_CONFIGS[why]
    config = json.loads(json.dumps(PUBLISHED_CONFIGS[name]))
    for key, value in changes.items():
        (config["rope_scaling"] if key == "factor" else config)[key] = value
    with pytest.raises(error, match=message):
        methods.plan_methods(huggingface.read(config), config, 2.0, ["yarn" if "Llama" not in name else "llama3"])


def test_a_length_that_is_only_the_default_of_an_architecture_is_called_that() -> None:
    config = {key: value for key, value in PUBLISHED_CONFIGS["Mistral 0.3"].items() if key != "max_position_embeddings"}
    words = methods.plan_methods(huggingface.read(config), config, 2.0, ["linear"]).words
    assert "131,072" in words and words.endswith("Its config names no length: that is the default of mistral.")
    assert "default" not in plan_of(ROWS[0]).words


def test_searched_lists_are_never_shown_whole() -> None:
    plan = plan_of(next(row for row in ROWS if row.method == "longrope"))
    assert "long_factor=(2.0, 3.0, ..., 49.0: 48 numbers)" in plan.methods[-1].spec
    config = PUBLISHED_CONFIGS["Phi-3"]
    reading = huggingface.read(config)
    left_out = methods.plan_methods(reading, config, 2.0, ["all"]).left_out
    errors = []
    for name in ("yarn", "rerope"):
        with pytest.raises(ValueError) as error:
            methods.plan_methods(reading, config, 2.0, [name])
        errors.append(str(error.value))
    for text in (*left_out.values(), *errors):
        assert str(LISTS["long_factor"][3]) not in text
    assert "62.1: 48 numbers" in left_out["rerope"] == errors[1]
