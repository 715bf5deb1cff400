"""Every architecture that the installed transformers knows: a tiny model is built, saved, inspected from its folder,
attached, compared with itself, and detached.

    python tests/census.py                    every architecture, a row each
    python tests/census.py llama mpnet        these
    python tests/census.py --out FILE         into a file: rows that it lacks, and those that are named, anew
    python tests/census.py --again NAME       no model: its default config, and the same as it may be published
    python tests/census.py --page             no model: docs/checkpoints/census.md from tests/census.tsv

A model is compared bare and attached: without a mask, with a mask of ones, with padding on either side, and behind a
cache, token by token. What a padded row should give is what the row gives alone, or what the bare model makes of it.
"""

import argparse
import contextlib
import copy
import inspect as signatures
import io
import math
import re
import resource
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from census_by_hand import FIXED_INPUTS, TINY
from torch import Tensor, nn

from posenc.checkpoints.kinds.calls import cache_argument
from posenc.checkpoints.vocabulary.differences import differences
from posenc.specs import syntax

VERDICTS = {
    "equal": "all that carries position was recognised, runs through posenc, and the outputs are the same",
    "in part": "some of it runs through posenc with the same outputs; the rest was left, with the reason",
    "not covered": "none of it was replaced, with the reason",
    "none": "the model has no position code of its own",
    "refused": "transformers cannot build it, or no tiny one was built and run here, with the reason",
    "wrong": "attached, outputs differ; or something was raised that is no answer",
}
"""What a row may say."""

MOST_NUMBERS = 120_000_000
"""The parameters of a model that is still tiny."""

MOST_MEMORY = 5 << 30
"""The memory of the process (bytes): some models are built at full size before anything can be said of them."""

SECONDS = 90
"""How much time of the processor one architecture may take."""

TABLE = Path(__file__).with_name("census.tsv")
PAGE = Path(__file__).parent.parent / "docs" / "checkpoints" / "census.md"

SMALL = 1e-4
"""By how much outputs may differ, as a share of the largest."""

T = 13
"""Tokens of a row: no other size in the models below is 13."""


@dataclass(frozen=True)
class Row:
    """The verdict over one architecture.

    name     of the architecture
    verdict  one of VERDICTS
    specs    the spec of each part
    reason   why it is not equal
    seconds  of a processor, rounded up; no part of the verdict
    """

    name: str
    verdict: str
    specs: str = ""
    reason: str = ""
    seconds: int = field(default=0, compare=False)

    def __str__(self) -> str:
        return "\t".join((self.name, self.verdict, self.specs, self.reason, str(self.seconds)))

    @classmethod
    def parse(cls, line: str) -> "Row":
        *cells, seconds = line.split("\t")
        return cls(*cells, seconds=int(seconds))


def table(path: Path = TABLE) -> tuple[str, dict[str, Row]]:
    """What a table was made with, and its rows by name."""
    made_with, *lines = path.read_text(encoding="utf-8").splitlines()
    return made_with.removeprefix("# "), {row.name: row for row in map(Row.parse, lines)}


def versions() -> str:
    import transformers

    return f"transformers {transformers.__version__}"


def write(path: Path, rows: Iterable[Row]) -> None:
    lines = [f"# {versions()}", *map(str, sorted(rows, key=lambda row: row.name))]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def page() -> str:
    """The table as a page of the documentation."""
    made_with, rows = table()
    by_verdict = {verdict: [row for row in rows.values() if row.verdict == verdict] for verdict in VERDICTS}
    lines = [
        "# Every architecture of transformers, bare and attached",
        "",
        f"The rows are made with {made_with}, which knows {len(rows)} architectures; another version may know others.",
        "Of each a tiny model with random weights is built, saved, read by `posenc inspect` from its folder, attached,",
        "compared with itself, and detached: without a mask, with a mask of ones, padded on either side, and behind a",
        f"cache. Attached, outputs may differ by {SMALL:g} of the largest; detached, not at all. This page is made",
        "from `tests/census.tsv` by `python tests/census.py --page`. The tests make a part of the table anew each day,",
        "and all of it by `--all`, where that version is installed.",
        "",
        "| verdict | architectures | what it says |",
        "|---|---|---|",
        *(f"| {verdict} | {len(members)} | {VERDICTS[verdict]} |" for verdict, members in by_verdict.items()),
    ]
    for verdict, members in by_verdict.items():
        if not members:
            continue
        lines += ["", f"## {verdict.capitalize()}", ""]
        if verdict in ("equal", "none"):
            lines += ["| architecture | specs |", "|---|---|"] if verdict == "equal" else []
        else:
            lines += ["| architecture | specs | reason |", "|---|---|---|"]
        if verdict == "none":
            lines += [", ".join(f"`{row.name}`" for row in members)]
            continue
        for row in members:
            cells = [
                f"`{row.name}`",
                f"`{row.specs}`" if row.specs else "",
                *([cell(row.reason)] if verdict != "equal" else []),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Text that Markdown takes as it is."""
    return re.sub(r"([|*_<>\[\]`])", r"\\\1", text)


class TooSlow(BaseException):
    """The time for one architecture is over; nothing on the way may take it for an error of its own."""


class RefusedModel(Exception):
    """transformers cannot build or run a model; the message says why."""


# Tiny models

SIZE = re.compile(
    r"(hidden|embed\w*|model|ffn|intermediate|projection|inner|mlp|state|proj\w*)_?(size|dims?|width|channels)$"
    r"|^d_\w+$|^n_(embd|inner)$|^(dim|width|embed_dims?|hidden_dims?|decoder_dim)$|_dims?$|_rank$|channels$|^hidden_sizes$"
    r"|^hidden_size_per|^mamba_d_state$|channel_list$|per_stage$|_dimension$|^upsample_groups$"
)
"""Keys that count channels."""

NO_SIZE = re.compile(
    r"patch|image|vocab|kernel|stride|window|chunk|(?<!upsample_)group|temporal|block|^num_|^in_channels|mel|head|conv"
)

VOCABULARY = re.compile(r"(^|_)vocab(_size)?($|_per)")
LAYERS = re.compile(
    r"(^|_)(num|n)_\w*(layers?|blocks)$|^(depth|depths|n_layer|num_layers|encoder_layers|decoder_layers)$"
)
HEADS = re.compile(r"heads?$|^num_attention_heads|^num_heads|^n_heads?$")
KV_HEADS = re.compile(r"key_value_heads?$|kv_heads?$")
EXPERTS = re.compile(r"experts?$|^n_group$|^topk_group$|_per_tok(en)?$|top_?k$")
OF_LAYERS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types")
"""Lists with an entry for each layer, or with a period of them."""
UNSAID = {"sliding_window": 8, "n_routed_experts": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
"""Numbers that a configuration may leave out, and no model can do without."""
BY_HAND: dict[str, dict[str, Any]] = {
    "glm4_moe": {"head_dim": 128},
    "glm4v_moe.*": {"head_dim": 128, "rope_parameters": {"mrope_section": [16, 8, 8]}},
    "hunyuan_vl.*": {"head_dim": 128, "rope_parameters": {"mrope_section": [16, 16, 16, 16]}},
    "glm4v.*|glm46v.*|glm_image(_text)?|glmga.*": {"rope_parameters": {"mrope_section": [32, 16, 16]}},
    "qwen3_omni_moe_(text|thinker)": {"num_attention_heads": 32},
    "minimax_m3_vl(_text)?": {"rope_parameters": {"partial_rotary_factor": 0.5}},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "deepseek_ocr2(_text)?": {"mlp_layer_types": ["dense", "sparse"]},
    "t5gemma2_.*": {"dropout_rate": 0.0},
    "pix2struct_text_model": {"initializer_range": 0.02},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "diffusion_gemma.*": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 32},
    "qwen4_exp.*": {
        **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 32},
        **{"indexer_budget": 16, "indexer_compress_ratio": 4, "ngram_vocab_size_base": 31, "split_ngram_parts": 2},
    },
    "musicgen.*": {"dropout": 0.0},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "aya_vision": {"text_config": {}, "vision_config": {"num_attention_heads": 16}},
    "chameleon|emu3": {"text_config": {}, "vocabulary_map": {"<image>": 4}, "pad_token_id": 1},
    "cohere_compass(_text)?": {
        "rope_parameters": {
            kind: {"rope_type": "default", "rope_theta": 1e4} for kind in ("sliding_attention", "full_attention")
        }
    },
    "xmod": {"default_language": "en_XX"},
    "autoformer|informer|time_series_transformer": {"prediction_length": 8},
}
"""What default configurations lack, by the names of architectures (regular expressions)."""
MOST_TRIED, MOST_RUN = 24, 6
"""After so many models that could not be built, or so many that could not be run, there is none."""
FEW_LAYERS = 2
"""Layers of a tiny model, where all kinds of layers fit into so many."""


@dataclass(frozen=True)
class Shrink:
    """How far a configuration is made smaller: heads and channels by ratios, layers and patches to a number.

    image  whether images are
    whole  whether sizes that are not said, but follow from others, are said
    """

    heads: int
    head_dim: int
    layers: int | None
    image: bool = True
    whole: bool = False

    def shrink_config(self, config: dict[str, Any]) -> dict[str, Any]:
        """The smaller configuration; those within it are made smaller each by its own sizes."""
        width, heads = first(config, "hidden_size", "d_model", "n_embd", "embed_dim", "dim"), self.count(config)
        wide = first(config, "head_dim", "kv_channels", "d_kv", "attention_head_dim") or (width or 0) // max(heads, 1)
        channels = self.divisor(wide)
        fewer = self.fewer(config)
        if self.whole:
            usual = {"head_dim": wide, "num_key_value_heads": heads, **UNSAID}
            config = {key: usual.get(str(key)) if value is None else value for key, value in config.items()}
        layers = first(config, "num_hidden_layers", "num_layers")
        if self.layers is not None:
            config = {
                key: shorter(value, self.layers)
                if isinstance(value, list) and (key in OF_LAYERS or len(value) == layers) and layers != 0
                else value
                for key, value in config.items()
            }
        small = {key: self.value(str(key), value, channels, channels * fewer, fewer) for key, value in config.items()}
        return small | self.images(config)

    def images(self, config: dict[str, Any]) -> dict[str, Any]:
        """Images of four patches in a row, each way."""
        patch, size = config.get("patch_size"), config.get("image_size")
        patch = patch[0] if isinstance(patch, list) and patch else patch
        if not self.image or type(patch) is not int:
            return {}
        if type(size) is int and size > 4 * patch:
            return {"image_size": 4 * patch}
        return {"image_size": [4 * patch] * 2} if isinstance(size, list) and len(size) == 2 else {}

    def count(self, config: dict[str, Any]) -> int:
        return first(config, "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads") or 1

    def divisor(self, wide: int) -> int:
        """What the channels of a head are divided by."""
        return next(
            (n for n in (16, 8, 4, 2) if wide % n == 0 and wide // n >= self.head_dim and wide // n % 8 == 0), 1
        )

    def fewer(self, config: dict[str, Any]) -> int:
        """What heads are divided by."""
        counts = [
            value
            for key, value in config.items()
            if HEADS.search(str(key)) and not KV_HEADS.search(str(key)) and type(value) is int and value > 1
        ]
        largest = max(counts, default=1)
        return next((n for n in (32, 16, 8, 4, 2) if all(c % n == 0 for c in counts) and largest // n >= self.heads), 1)

    def value(self, key: str, value: Any, channels: int, width: int, fewer: int) -> Any:
        if isinstance(value, dict) and ("rope" in key or "rotary" in key):
            return {name: self.of_rope(name, entry, channels) for name, entry in value.items()}
        if isinstance(value, dict) and value and all(str(entry).isdigit() for entry in value):
            entries = {n: entry for n, entry in value.items() if self.layers is None or int(n) < self.layers}
            return {n: self.value(key, entry, channels, width, fewer) for n, entry in entries.items()}
        if isinstance(value, dict):
            # Nets of images that become tokens have groups of channels.
            return value if key.startswith("vq") else self.shrink_config(value)
        if isinstance(value, list):
            all_integers = value and all(type(entry) is int for entry in value)
            return [self.value(key, entry, channels, width, fewer) for entry in value] if all_integers else value
        if value is None:
            return {"vocab_size": 131, "mask_token_id": 3, "pad_token_id": 1, "num_experts_per_tok": 2}.get(key)
        if type(value) is not int or value < 2:
            return value
        if VOCABULARY.search(key):
            return min(value, 131)
        if key.endswith(("token_id", "token_index")) and value > 130:
            return value % 120 + 1
        if key == "num_kv_shared_layers":
            return 0
        if key.endswith("n_groups"):
            return 1
        if key == "index_topk":
            return min(value, 16)
        if EXPERTS.search(key):
            return min(value, {"n_group": 1, "topk_group": 1}.get(key, 2 if "per_tok" in key or "top" in key else 8))
        if LAYERS.search(key):
            return value if self.layers is None else min(value, self.layers)
        if key in ("head_dim", "kv_channels", "d_kv", "attention_head_dim", "rotary_dim") or (
            key.endswith(("head_dim", "d_head")) and value % channels == 0
        ):
            return value // channels
        if KV_HEADS.search(key):
            return max(1, value // fewer)
        if HEADS.search(key):
            return value // fewer if value % fewer == 0 else value
        if SIZE.search(key) and not NO_SIZE.search(key) and value >= 16:
            return value // width if value % width == 0 and value // width >= 4 else max(8, value // width // 8 * 8)
        return value

    def of_rope(self, key: str, value: Any, channels: int) -> Any:
        if isinstance(value, dict):
            return {name: self.of_rope(name, entry, channels) for name, entry in value.items()}
        if isinstance(value, list) and value and type(value[0]) is int:
            return [entry // channels for entry in value]
        return value[::channels] if isinstance(value, list) else value


def first(config: dict[str, Any], *keys: str) -> int | None:
    return next((config[key] for key in keys if type(config.get(key)) is int), None)


def candidates(name: str) -> Iterator[Any]:
    """Configurations of an architecture, those that are tried first the smallest."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[name]
    if name in TINY:
        yield config_class.from_dict(copy.deepcopy(TINY[name]))
        return
    usual = config_class()
    values = by_default(name)
    sizes = [(4, 32), (2, 128), (2, 16), (4, 8), (99, 32), (99, 8), (99, 999)]
    for layers in (FEW_LAYERS, 4, 6, None):
        for heads, head_dim in sizes:
            for options in ({}, {"whole": True}, {"image": False}):
                small = Shrink(heads, head_dim, layers, **options).shrink_config(copy.deepcopy(values))
                for version in (small, without_lists(small)):
                    with contextlib.suppress(Exception):
                        yield config_class.from_dict(version)
    yield usual


def by_default(name: str) -> dict[str, Any]:
    """The default configuration of an architecture, with what it lacks."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    lacks = next((options for names, options in BY_HAND.items() if re.fullmatch(names, name)), {})
    return merge_options(CONFIG_MAPPING[name]().to_dict(), lacks)


def merge_options(config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """A configuration with what is said besides, of its text where it has several."""
    if isinstance(config.get("text_config"), dict) and "text_config" not in options:
        return {**config, "text_config": merge_options(config["text_config"], options)}
    options = {key: value for key, value in options.items() if value != {} or key in config}
    merged = {
        k: merge_options(config[k], v) if isinstance(v, dict) and isinstance(config.get(k), dict) else v
        for k, v in options.items()
    }
    return {**config, **merged}


def shorter(values: list[Any], layers: int) -> list[Any]:
    """As many entries, all kinds among them where there is room."""
    kinds = [entry for place, entry in enumerate(values) if entry not in values[:place]]
    return (kinds + values)[:layers]


def without_lists(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration without lists that have an entry for each layer: what builds it makes them anew."""
    return {
        key: without_lists(value) if isinstance(value, dict) and "rope" not in str(key) else value
        for key, value in config.items()
        if not (isinstance(value, list) and len(value) > 4 and "token" not in str(key))
    }


def model_classes(config: Any) -> list[Any]:
    """The classes that may be built: first one that predicts tokens where there is one, else the model itself."""
    from transformers.models.auto import modeling_auto as auto

    from posenc.checkpoints.models.skeleton import bare_model_class

    decodes = getattr(config, "is_decoder", None) is not False and getattr(config, "use_cache", True) is not False
    order = [auto.MODEL_FOR_CAUSAL_LM_MAPPING] if decodes and not getattr(config, "is_encoder_decoder", False) else []
    class_list = []
    for mapping in (
        *order,
        auto.MODEL_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_PRETRAINING_MAPPING,
    ):
        with contextlib.suppress(KeyError, ValueError, AttributeError, ImportError):
            classes = mapping[type(config)]
            class_list.append(classes[0] if isinstance(classes, tuple) else classes)
    return list(dict.fromkeys(class_list)) or [bare_model_class(config)]


def tiny(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model of an architecture, with random weights, and something that it can be given."""
    reasons: list[str] = []
    texts = set[str]()
    try:
        configs = list(candidates(name))
    except Exception as error:
        raise RefusedModel(f"no default configuration: {short(error)}") from error
    for config in configs:
        text = config.to_json_string(use_diff=False)
        if text in texts:
            continue
        texts.add(text)
        config._attn_implementation = "eager"
        try:
            classes = model_classes(config)
        except Exception as error:
            # It does not know a class, whatever the sizes.
            raise RefusedModel(short(error)) from error
        for cls in classes:
            try:
                model = build_model(cls, copy.deepcopy(config))
            except ImportError as error:
                raise RefusedModel(short(error)) from error
            except (Exception, MemoryError) as error:
                reasons.append(str(error) if isinstance(error, RefusedModel) else short(error))
                continue
            try:
                return model, accepted_of(model)
            except RefusedModel as error:
                reasons += [str(error)] * (MOST_TRIED // MOST_RUN)
        if len(reasons) >= MOST_TRIED:
            break
    raise RefusedModel(max(reasons, key=reasons.count))


def build_model(cls: Any, config: Any) -> nn.Module:
    """A model of a configuration, with random weights."""
    try:
        with torch.device("meta"):
            numbers = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
    except Exception:
        # Some cannot be made of shapes alone; memory is limited for them.
        numbers = 0
    if numbers > MOST_NUMBERS:
        raise RefusedModel(f"{numbers:,} parameters")
    torch.manual_seed(0)
    model = cls(config).eval()
    fill(model)
    return model


@torch.no_grad()
def accepted_of(model: Any) -> dict[str, Tensor]:
    """The first inputs that a model runs on."""
    reasons = []
    for inputs in inputs_of(model):
        for _ in range(3):
            try:
                tensors = outputs(model(**inputs))
            except Exception as error:
                reasons.append(short(error))
                if fitting := fit_channels(inputs, str(error)):
                    inputs = fitting
                    continue
                break
            if tensors and all(x.isfinite().all() for x in tensors):
                return inputs
            reasons.append("its outputs are not finite" if tensors else "it gives out no tensor")
            break
    # What it says to the first of all that it needs.
    specific_reasons = [reason for reason in reasons if "missing" not in reason] or reasons
    raise RefusedModel(specific_reasons[0] if specific_reasons else "nothing is known that it could be given")


SHAPES = (
    (re.compile(r"mat1 and mat2 shapes cannot be multiplied \(\d+x(\d+) and (\d+)x"), -1),
    (re.compile(r"expected input\[.*\] to have (?P<to>\d+) channels, but got (?P<of>\d+) channels"), 1),
    (re.compile(r"normalized_shape=\[(?P<to>\d+)\].*got input of size\[.*\b(?P<of>\d+)\]"), -1),
)
"""What errors say of a number of channels, and the axis on which they are."""


def fit_channels(inputs: dict[str, Any], message: str) -> dict[str, Any] | None:
    """Inputs with as many channels as an error asks for, or nothing."""
    for pattern, axis in SHAPES:
        if match := pattern.search(message):
            new_size, old_size = (match["to"], match["of"]) if "to" in match.groupdict() else (match[2], match[1])
            for key, value in inputs.items():
                if isinstance(value, Tensor) and value.is_floating_point() and value.dim() > 1:
                    shape = list(value.shape)
                    if shape[axis] == int(old_size) and int(new_size) < 10_000:
                        shape[axis] = int(new_size)
                        return inputs | {key: torch.randn(shape, generator=torch.Generator().manual_seed(1))}
    return None


def short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    # Paths and addresses are another machine's.
    return " ".join(re.sub(r"(?<![\w.])/[\w./-]+/| at 0x[0-9a-f]+", "", text)[:200].split())


@torch.no_grad()
def fill(model: nn.Module) -> None:
    """Random weights by which every part of a model matters."""
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is None or parameter.dim() < 2 or not parameter.is_floating_point():
                continue
            if not parameter.requires_grad or "Sinus" in type(module).__name__:
                continue
            table = isinstance(module, nn.Embedding) or "embed" in type(module).__name__.lower()
            parameter.normal_(std=0.5 if table else parameter[0].numel() ** -0.5)
        if isinstance(module, nn.Embedding) and module.padding_idx is not None:
            module.weight[module.padding_idx] = 0


def vocabulary(model: Any) -> int:
    config = model.config.get_text_config() if hasattr(model.config, "get_text_config") else model.config
    return next((n for k in ("vocab_size", "n_vocab") if isinstance(n := getattr(config, k, None), int)), 100)


def inputs_of(model: Any) -> Iterator[dict[str, Any]]:
    """What a model may want to be given: tokens, an image, sound, or several of them; batch 2."""
    parameters = signatures.signature(model.forward).parameters
    from posenc.checkpoints.models.inputs import main_input, usual_inputs

    if fixed_inputs := FIXED_INPUTS.get(model.config.model_type):
        yield {key: tokens_of(model, tuple(one)) if of_tokens(one) else one for key, one in fixed_inputs.items()}
    name = main_input(model)
    words = tokens_of(model)
    text = {key: words if key == "input_ids" else words.flip(1) for key in TOKENS if key in parameters}
    if "input_ids" in text:
        yield text
        yield text | {"attention_mask": torch.ones_like(words)}
        yield text | {"bbox": torch.zeros(2, T, 4, dtype=torch.long)}
        yield text | {"use_cache": False}
        for books in {attribute(model, "num_codebooks", 1), attribute(model, "num_channels", 1)} - {1}:
            for shape in ((2, T, books), (2, T, books + 1), (2 * books, T)):
                yield dict.fromkeys(text, tokens_of(model, shape))
    required_names = [
        key
        for key, one in parameters.items()
        if one.default is one.empty and one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)
    ]
    main = dict.fromkeys([*([name] if name in parameters else []), *required_names])
    optional_names = [key for key in parameters if key in WITH_OTHERS]
    for keys in (main, {**main, **dict.fromkeys(optional_names)}):
        values_by_name = {key: values_of(model, key) for key in keys}
        if values_by_name and all(values_by_name.values()):
            for place in range(max(map(len, values_by_name.values()))):
                inputs = {key: values[min(place, len(values) - 1)] for key, values in values_by_name.items()}
                yield inputs | {k: v for k, v in text.items() if k == "decoder_input_ids"}
                yield inputs | text
    yield {key: value for key, value in usual_inputs(model).items() if key != "use_cache"}


def of_tokens(value: Any) -> bool:
    """Whether what is given is the shape of tokens."""
    return isinstance(value, list) and isinstance(value[0], int)


TOKENS = ("input_ids", "decoder_input_ids")
WITH_OTHERS = (
    *("pixel_values", "pixel_attention_mask", "spatial_shapes", "grid_thw", "image_grid_thw", "target_sizes"),
    *("feature_lens", "aftercnn_lens", "input_features", "input_features_mask", "feature_attention_mask", "bbox"),
    *("visual_feats", "visual_pos", "decoder_input_values", "is_longer", "encoder_hidden_states", "last_hidden_state"),
    *("patch_embeds", "qformer_input_ids", "num_patches", "attention_mask", "pixel_position_ids"),
)
"""What some models cannot do without, though they may be called without it."""


def tokens_of(model: Any, shape: tuple[int, ...] = (2, T)) -> Tensor:
    top = max(8, min(vocabulary(model), 100))
    return torch.randint(5, top, shape, generator=torch.Generator().manual_seed(1))


def values_of(model: Any, key: str) -> list[Any]:
    """What may be given under a name, the likeliest first; nothing for a name that is not known."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    parameters = signatures.signature(model.forward).parameters
    channels, height, width = image_of(model)
    patch, wide = attribute(model, "patch_size", 14), attribute(model, "hidden_size", 64)
    bins = attribute(model, "num_mel_bins", 80)
    frames = 2 * attribute(model, "max_source_positions", 50)
    in_patch = channels * patch**2
    by_grid = [
        draw(2 * 16, attribute(model, "temporal_patch_size", 1) * in_patch),
        draw(2 * 16, channels, patch, patch),
    ]
    images, in_rows = [draw(2, channels, height, width)], [draw(2, 16, in_patch)]
    videos = [draw(2, attribute(model, n, 8), channels, height, width) for n in ("num_frames", "frames_per_clip")]
    if {"grid_thw", "image_grid_thw"} & set(parameters):
        images = by_grid + [draw(1, *x.shape) for x in by_grid] + images
    elif {"spatial_shapes", "pixel_position_ids"} & set(parameters):
        images = in_rows + images
    elif "aspect_ratio_ids" in parameters:
        images = [draw(2, 1, attribute(model, "max_num_tiles", 4), channels, height, width)]
    elif "target_sizes" in parameters:
        images = [draw(1, channels, patch, 16 * patch), *images]
    else:
        images = images + videos + [draw(2, 1, channels, height, width), *in_rows]
    hidden = [draw(2, T, wide), draw(2, wide, T), draw(2, 4, 4, wide), draw(2, wide, 4, 4), draw(2, bins, T)]
    features = [
        draw(2, bins, frames),
        draw(2, 40, attribute(model, "feature_projection_input_dim", bins)),
        draw(2, 64, bins),
    ]
    if "feature_lens" in parameters:
        features = [draw(bins, 80)]
    if "is_longer" in parameters:
        features = [draw(2, 1, attribute(model, "spec_size", 256) * 4, bins), *features]
    steps = max(16, attribute(model, "context_length", 16) + 8)
    grid = torch.tensor([[1, 4, 4]] * 2)
    ones = torch.ones(2, T, dtype=torch.long)
    values_by_names: dict[str, list[Any]] = {
        "input_ids decoder_input_ids qformer_input_ids audio_input_ids": [tokens_of(model)],
        "pixel_values image prompt_pixel_values": images,
        "pixel_values_videos": videos,
        "grid_thw image_grid_thw": [grid],
        "spatial_shapes": [grid[:, 1:]],
        "target_sizes": [torch.tensor([[4, 4]])],
        "pixel_attention_mask": [torch.ones(2, 16, dtype=torch.long)],
        "pixel_position_ids": [torch.cartesian_prod(torch.arange(4), torch.arange(4)).expand(2, 16, 2)],
        "merge_sizes": [torch.tensor([1, 1])],
        "patch_embeds": [draw(2, T, wide), draw(2, 4, 4, wide)],
        "input_features audio_mel spectrogram mel_spectrogram": features,
        "input_features_mask audio_mel_mask feature_attention_mask mask": [
            torch.ones(2, n, dtype=torch.bool) for n in (frames, 40, 64)
        ],
        "feature_lens": [torch.tensor([40, 40])],
        "aftercnn_lens": [torch.tensor([20, 20])],
        "is_longer": [torch.zeros(2, 1, dtype=torch.bool)],
        "input_values": [
            draw(2, 8000),
            draw(2, 1, 8000),
            draw(2, attribute(model, "max_length", 100), bins),
        ],
        "decoder_input_values": [draw(2, T, bins)],
        "hidden_states inputs_embeds query_embeds context inputs": hidden,
        "encoder_hidden_states noise_embeds context_hidden_states": [draw(2, T, wide)],
        "last_hidden_state": [draw(2, wide)],
        "flattened_patches": [
            torch.cat(
                [
                    torch.cartesian_prod(torch.arange(1.0, 5), torch.arange(1.0, 5)).expand(2, 16, 2),
                    draw(2, 16, attribute(model, "patch_embed_hidden_size", 768)),
                ],
                -1,
            )
        ],
        "bbox": [torch.zeros(2, T, 4, dtype=torch.long)],
        "visual_feats": [draw(2, 4, attribute(model, "visual_feat_dim", 2048))],
        "visual_pos": [draw(2, 4, 4)],
        "attention_mask": [ones],
        "past_values": [draw(2, steps), draw(2, steps, attribute(model, "num_input_channels", 1))],
        "past_values_padding": [torch.zeros(2, steps)],
        "freq": [torch.zeros(2, 1, dtype=torch.long)],
        "prompt_masks": images,
        "num_patches": [16],
        "aspect_ratio_ids": [torch.ones(2, 1, dtype=torch.long)],
        "aspect_ratio_mask": [torch.ones(2, 1, attribute(model, "max_num_tiles", 4), dtype=torch.long)],
    }
    return next((values for names, values in values_by_names.items() if key in names.split()), [])


def attribute(model: Any, key: str, usual: int) -> int:
    """A number that the configuration says, or one of those within it."""
    for config in (model.config, *(v for v in vars(model.config).values() if hasattr(v, "to_dict"))):
        if type(number := getattr(config, key, None)) is int:
            return number
    return usual


def image_of(model: Any) -> tuple[int, int, int]:
    size: Any = 224
    for config in (model.config, *(v for v in vars(model.config).values() if hasattr(v, "to_dict"))):
        size = getattr(config, "image_size", None) or size
        if getattr(config, "image_size", None):
            break
    if isinstance(size, dict):
        size = (size.get("height", 224), size.get("width", 224))
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return attribute(model, "num_channels", 3), height, width


def outputs(out: Any) -> list[Tensor]:
    """The tensors that a model gave out, but for its cache."""
    if isinstance(out, Tensor):
        return [out] if out.is_floating_point() else []
    values = list(out.values()) if hasattr(out, "values") else out if isinstance(out, (list, tuple)) else []
    return [x for value in values for x in outputs(value)]


# Comparisons


@torch.no_grad()
def runs_of(model: Any, inputs: dict[str, Any], ways: Iterable[str] | None = None) -> dict[str, list[Tensor]]:
    """What a model gives in each way of calling it.

    ways  the calls that the bare model accepts; if None, a call that raises is left out
    """
    outputs_by_way: dict[str, list[Tensor]] = {}

    def way(name: str, call: Callable[[], list[Tensor]]) -> None:
        if ways is not None and name not in ways:
            return
        # Some models draw random numbers.
        torch.manual_seed(2)
        with contextlib.suppress(NotImplementedError if ways is not None or name == "plain" else Exception):
            outputs_by_way[name] = call()

    parameters = signatures.signature(model.forward).parameters
    way("plain", lambda: outputs(model(**inputs)))
    ids = inputs.get("input_ids")
    if ids is None or ids.shape[:2] != (2, T):
        return outputs_by_way
    rest = {key: value for key, value in inputs.items() if key not in ("input_ids", "attention_mask")}
    if "attention_mask" in parameters:
        ones = ids.new_ones(2, T)
        way("a mask of ones", lambda: outputs(model(input_ids=ids, attention_mask=ones, **rest)))
        for side in SIDES:
            way(f"{side} padding", lambda side=side: real_of(model(**pad_row(model, inputs, side)), inputs, side))
    if cache_argument(model) in parameters and "use_cache" in parameters and "decoder_input_ids" not in inputs:
        way("behind a cache", lambda: behind_a_cache(model, ids))
    return outputs_by_way


SIDES = {"right": slice(0, T - 4), "left": slice(4, T)}
"""On which side padding may be -> where the tokens of the first row are then."""


def pad_row(model: Any, inputs: dict[str, Any], side: str) -> dict[str, Any]:
    """Inputs whose first row is padded on a side."""
    ids = inputs["input_ids"]
    mask = torch.ones_like(ids[:, :, 0] if ids.dim() > 2 else ids)
    mask[0] = 0
    mask[0, SIDES[side]] = 1
    return inputs | {
        "input_ids": torch.where(mask.bool().view(2, T, *[1] * (ids.dim() - 2)), ids, padding_of(model)),
        "attention_mask": mask,
    }


def real_of(out: Any, inputs: dict[str, Any], side: str) -> list[Tensor]:
    """What came of the tokens that are not padding."""
    first = outputs(out)[0]
    if "decoder_input_ids" in inputs:
        return [first]
    if first.shape[:2] != (2, T):
        raise NotImplementedError
    return [first[0, SIDES[side]], first[1]]


def behind_a_cache(model: Any, ids: Tensor) -> list[Tensor]:
    """The outputs of tokens that come in three pieces, the last one by itself."""
    cache, out, name = None, [], cache_argument(model)
    for piece in (ids[:, :6], ids[:, 6:-1], ids[:, -1:]):
        step = model(input_ids=piece, use_cache=True, **{name: cache})
        cache = getattr(step, name, None)
        if cache is None:
            raise NotImplementedError
        out.append(outputs(step)[0])
    return out


@torch.no_grad()
def truths_of(model: Any, inputs: dict[str, Any], bare: Iterable[str]) -> dict[str, list[list[Tensor]]]:
    """What else may come of rows that are padded: what they give alone, or where they count from the first token.

    In the latter convolutions and sketches of attention read padding, and padding has positions as well: each row of
    it the place in which it stands, or all of them the row of RoBERTa's padding.
    """
    truths: dict[str, list[list[Tensor]]] = {}
    for side, real in SIDES.items():
        if f"{side} padding" not in bare:
            continue
        options = truths.setdefault(f"{side} padding", [])
        ids, rows = inputs["input_ids"], {k: v[:1] if isinstance(v, Tensor) else v for k, v in inputs.items()}
        with contextlib.suppress(Exception):
            rows.pop("attention_mask", None)
            alone, whole = outputs(model(**rows | {"input_ids": ids[:1, real]}))[0], outputs(model(**inputs))[0]
            options.append([torch.cat([alone, whole[1:]])] if "decoder_input_ids" in inputs else [alone[0], whole[1]])
        if "position_ids" not in signatures.signature(model.forward).parameters:
            continue
        padded_inputs = pad_row(model, inputs, side)
        mask = padded_inputs["attention_mask"]
        for start in (0, padding_of(model) + 1):
            standing = torch.arange(T).clamp(max=start - 1) if start else torch.arange(T)
            with contextlib.suppress(Exception):
                places = torch.where(mask.bool(), mask.cumsum(1) - 1 + start, standing)
                options.append(real_of(model(**padded_inputs, position_ids=places), inputs, side))
    return truths


def padding_of(model: Any) -> int:
    pad = getattr(model.config, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < vocabulary(model) else 0


def differ(first_outputs: list[Tensor], second_outputs: list[Tensor]) -> float:
    """By how much outputs differ, as a share of the largest."""
    if [x.shape for x in first_outputs] != [x.shape for x in second_outputs]:
        return math.inf
    largest = 0.0
    for a, b in zip(first_outputs, second_outputs, strict=True):
        if not (a.isfinite().all() and b.isfinite().all()):
            both_finite = bool(torch.equal(a.isfinite(), b.isfinite()))
            largest = max(largest, 0.0 if both_finite else math.inf)
            a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
        largest = max(largest, float((a - b).abs().max() / max(1e-6, float(b.abs().max()))) if a.numel() else 0.0)
    return largest


def examine(name: str) -> Row:
    """The verdict over one architecture."""
    from posenc.checkpoints import attach, detach, inspect

    warnings.simplefilter("ignore")
    try:
        model, inputs = tiny(name)
    except RefusedModel as reason:
        return Row(name, "refused", reason=str(reason))
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
        except Exception as error:
            return Row(name, "refused", reason=f"it cannot be saved: {short(error)}")
        try:
            reading = inspect(folder)
        except Exception as error:
            is_unreadable = type(error).__name__ == "CannotRead"
            verdict = ("refused" if "transformers" in str(error) else "not covered") if is_unreadable else "wrong"
            return Row(name, verdict, reason=f"inspect: {short(error)}")
    specs = "; ".join(dict.fromkeys(said_of(part) for part in reading.parts))
    left = list(reading.not_covered)
    open_questions = [*(f"unknown key {key}" for key in reading.unknown), *reading.contradictions]
    bare = runs_of(model, inputs)
    truths = truths_of(model, inputs, bare)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        attachment = attach(model)
    except ValueError as error:
        has_no_positions = all(
            part.embed == "none" and {layer.spec for layer in part.layers} == {"none"} for part in reading.parts
        )
        if has_no_positions and not left:
            return Row(name, "not covered" if open_questions else "none", reason=shortest(open_questions))
        return Row(name, "not covered", specs, shortest([*left, str(error)]))
    except Exception as error:
        return Row(name, "wrong", specs, f"attach: {short(error)}")
    try:
        attached_runs = runs_of(model, inputs, bare)
    except Exception as error:
        return Row(name, "wrong", specs, f"attached: {short(error)}")
    for way, bare_outputs in bare.items():
        if min(differ(attached_runs[way], truth) for truth in (bare_outputs, *truths.get(way, []))) > SMALL:
            return Row(name, "wrong", specs, f"{way}: attached, outputs differ")
    replacements = dict(attachment.replaced)
    left += [f"{path}: {why}" for path, why in attachment.left.items()]
    detach(model)
    again = runs_of(model, inputs, bare)
    if any(differ(again[way], bare_outputs) != 0 for way, bare_outputs in bare.items()):
        return Row(name, "wrong", specs, "detached, outputs differ from before")
    if any(not torch.equal(value, state[key]) for key, value in model.state_dict().items()):
        return Row(name, "wrong", specs, "detached, weights differ from before")
    if left or open_questions:
        return Row(name, "in part" if replacements else "not covered", specs, shortest([*left, *open_questions]))
    if not replacements:
        return Row(name, "wrong", specs, "attached, nothing was replaced, and nothing says why")
    return Row(name, "equal", specs)


def said_of(part: Any) -> str:
    """The specs of a part, in one line."""
    layers = list(dict.fromkeys(layer.spec for layer in part.layers))
    specs = ([f"{part.embed} (added)"] if part.embed != "none" else []) + [
        s for s in layers if s != "none" or len(layers) > 1
    ]
    return f"{part.name + ': ' if part.name else ''}{', '.join(specs) or ('none' if part.is_complete else 'not known')}"


def shortest(sentences: list[str]) -> str:
    """The reason, in one line."""
    unique_sentences = sorted(dict.fromkeys(" ".join(sentence.split()) for sentence in sentences), key=len)
    count_text = f" (and {len(unique_sentences) - 1} more)" if len(unique_sentences) > 1 else ""
    return (unique_sentences[0][:220] if unique_sentences else "") + count_text


def in_time(name: str) -> Row:
    """The same, or "wrong" where it takes too long."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"it took more than {SECONDS} seconds")

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    start = time.process_time()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            row = examine(name)
    except TooSlow as error:
        row = Row(name, "refused", reason=short(error))
    except Exception as error:
        row = Row(name, "wrong", reason=short(error))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return replace(row, seconds=math.ceil(time.process_time() - start))


# Default configurations, and the same as they may be published


BASE, LENGTH, OLD_LENGTH = 10_000_000, 131_072, 32_768
SCHEDULES = {
    f"yarn(factor=4, trained_length={OLD_LENGTH})": {"rope_type": "yarn", "factor": 4.0},
    f"llama3(factor=16, trained_length={OLD_LENGTH}, low=1.0, high=4.0)": {
        **{"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    },
    "None": {},
}
"""What configurations are stretched by, as specs and as they say it."""


def in_halves(config: Any, key: str) -> Any:
    """A configuration that names bfloat16 under a key, in every part of it, as transformers writes it."""
    if isinstance(config, list):
        return [in_halves(value, key) for value in config]
    if not isinstance(config, dict):
        return config
    parts = {name: in_halves(value, key) for name, value in config.items() if name not in ("dtype", "torch_dtype")}
    return parts | ({key: "bfloat16"} if "model_type" in config else {})


def lengthen(config: dict[str, Any], schedule: str) -> dict[str, Any]:
    """A configuration with another base and length in every part of it, and a schedule where it names none."""
    images = "image_size" in config or "patch_size" in config

    def rope(rope_config: dict[str, Any]) -> dict[str, Any]:
        if any(isinstance(value, dict) for value in rope_config.values()):
            return {kind: rope(value) if isinstance(value, dict) else value for kind, value in rope_config.items()}
        plain = rope_config.get("rope_type", "default") == "default" and not images and SCHEDULES[schedule]
        options = {**plain, "original_max_position_embeddings": OLD_LENGTH} if plain else {}
        return {**rope_config, "rope_theta": float(BASE), **options}

    longer = {name: lengthen(entry, schedule) if isinstance(entry, dict) else entry for name, entry in config.items()}
    if isinstance(config.get("rope_parameters"), dict) and "rope_theta" in str(config["rope_parameters"]):
        longer["rope_parameters"] = rope(config["rope_parameters"])
        longer |= {"max_position_embeddings": LENGTH} if "max_position_embeddings" in config and not images else {}
        bases = config.get("layer_rope_theta")
        longer |= {"layer_rope_theta": [entry and BASE for entry in bases]} if bases else {}
    return longer


def fewer(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """A configuration with so many layers in every part of it."""
    count = config.get("num_hidden_layers", config.get("depth"))
    lists = {key: value[:layers] for key, value in config.items() if isinstance(value, list) and len(value) == count}
    parts = {key: fewer(value, layers) for key, value in config.items() if isinstance(value, dict)}
    return {**config, **lists, **parts} | {key: layers for key in ("num_hidden_layers", "depth") if key in config}


def reading_faults(name: str, layers: int | None = None) -> list[str]:
    """What is read otherwise of an architecture's default configuration as it may be published, in sentences.

    In bfloat16 all is the same; with another base, length and schedule all but these is, and they are as it says.

    layers  of each part, at most; None for all
    """
    from posenc.checkpoints.formats import config_json

    warnings.simplefilter("ignore")
    try:
        config = by_default(name) if layers is None else fewer(by_default(name), layers)
        plain = config_json.read(config)
    except Exception as error:
        return [f"refused: {short(error)}"]
    half = config_json.read(in_halves(config, "dtype" if len(name) % 2 else "torch_dtype"))
    faults = [
        f"in bfloat16 {quantity}: {getattr(half, quantity)} for {getattr(plain, quantity)}"
        for quantity in ("parts", "not_covered", "contradictions")
        if getattr(half, quantity) != getattr(plain, quantity)
    ]
    # Some take no schedule, or not this one.
    failure = ""
    for schedule in [*SCHEDULES][len(name) % 2 :]:
        longer = lengthen(config, schedule)
        try:
            reading = config_json.read(longer)
        except Exception as error:
            failure = short(error)
            continue
        if "cannot build" not in "".join({*reading.not_covered} - {*plain.not_covered}):
            return faults + (as_published(plain, reading, longer, schedule) if longer != config else [])
    return [*faults, f"published: {failure}"]


def as_published(plain: Any, longer: Any, config: dict[str, Any], schedule: str) -> list[str]:
    """What of a longer reading is not what the plain one and the configuration say, in sentences."""
    if [part.name for part in longer.parts] != [part.name for part in plain.parts]:
        return [f"published: the parts {[part.name for part in longer.parts]}"]
    faults, contradiction = list[str](), " ".join(longer.contradictions)
    for old, new in zip(plain.parts, longer.parts, strict=True):
        place = config
        for step in old.name.split("."):
            place = place[step] if isinstance(place.get(step), dict) else place
        expected_part = replace(old, layers=tuple(with_said(layer, place, schedule) for layer in old.layers))
        if place.get("max_position_embeddings") == LENGTH:
            shape = replace(old.shape, max_len=LENGTH)
            expected_part = replace(expected_part, trained_length=LENGTH, shape=shape)
        unequal = differences(replace(longer, parts=(expected_part,)), replace(longer, parts=(new,)))
        if unequal and "followed: the modules" not in contradiction:
            faults.append(f"published, wanted and read in {new.name or 'the whole'}: {'; '.join(unequal)}")
    return faults


def with_said(layer: Any, place: dict[str, Any], schedule: str) -> Any:
    """A layer with the base, and the schedule, that a configuration now says."""
    turns = re.match(r"(\w*rotary)(?:\((.*?)\))?(?= \+|$)", layer.spec)
    if turns is None or str(float(BASE)) not in str(place.get("rope_parameters")):
        return layer
    options = {"base": BASE}
    kind, plain = SCHEDULES[schedule].get("rope_type", "nothing"), not re.search("schedule|proport", turns[0])
    if plain and kind in str(place["rope_parameters"]):
        options["schedule"] = schedule
    old_options = [option for option in syntax.split(turns[2] or "") if option and not option.startswith("base=")]
    option_text = ", ".join([*old_options, *(f"{key}={value}" for key, value in options.items())])
    return replace(layer, spec=f"{turns[1]}({option_text}){layer.spec[turns.end() :]}")


def names() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--page", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.page:
        raise SystemExit(PAGE.write_text(page(), encoding="utf-8") and 0)
    if not arguments.again:
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    for name in arguments.names or names() if arguments.again else ():
        with contextlib.redirect_stderr(io.StringIO()):
            faults = reading_faults(name)
        print(*(f"{name}\t{' '.join(fault.split())}" for fault in faults or ["the same"]), sep="\n", flush=True)
    if arguments.again:
        raise SystemExit(0)
    rows = table(arguments.out)[1] if arguments.out and arguments.out.exists() else {}
    for name in arguments.names or [name for name in names() if name not in rows]:
        rows[name] = in_time(name)
        print(rows[name], flush=True)
        if arguments.out:
            write(arguments.out, rows.values())
