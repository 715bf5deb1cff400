"""Every architecture that the installed transformers knows: a tiny model is built, saved, inspected from its folder,
attached, compared with itself, and detached.

    python tests/census.py                    every architecture, a row each
    python tests/census.py llama mpnet        these
    python tests/census.py --out FILE         into a file, going on where it ends

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
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

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

SECONDS = 30
"""How long one architecture may take."""

SMALL = 1e-4
"""By how much outputs may differ, as a share of the largest."""

T = 13
"""Tokens of a row: no other size in the models below is 13."""


@dataclass(frozen=True)
class Row:
    """The verdict over one architecture: its name, one of VERDICTS, the spec of each part, and the reason."""

    name: str
    verdict: str
    specs: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return "\t".join((self.name, self.verdict, self.specs, self.reason)).rstrip("\t")


class TooSlow(BaseException):
    """The time for one architecture is over; nothing on the way may take it for an error of its own."""


class Refused(Exception):
    """transformers cannot build or run a model; the message says why."""


# Tiny models

SIZE = re.compile(
    r"(hidden|embed\w*|model|ffn|intermediate|projection|inner|mlp|state|proj\w*)_?(size|dims?|width|channels)$"
    r"|^d_\w+$|^n_(embd|inner)$|^(dim|width|embed_dims?|hidden_dims?|decoder_dim)$|_dims?$|_rank$|channels$|^hidden_sizes$"
)
"""Keys that count channels."""

NO_SIZE = re.compile(
    r"patch|image|vocab|kernel|stride|window|chunk|group|temporal|block|^num_|^in_channels|mel|head|conv"
)

VOCABULARY = re.compile(r"(^|_)vocab(_size)?$")
LAYERS = re.compile(
    r"(^|_)(num|n)_\w*(layers?|blocks)$|^(depth|depths|n_layer|num_layers|encoder_layers|decoder_layers)$"
)
HEADS = re.compile(r"heads?$|^num_attention_heads|^num_heads|^n_heads?$")
SHARED = re.compile(r"key_value_heads?$|kv_heads?$")
EXPERTS = re.compile(r"experts?$|^n_group$|^topk_group$|_per_tok(en)?$|top_?k$")
FEW = 2
"""Layers of a tiny model, where all kinds of layers fit into so many."""


@dataclass(frozen=True)
class Shrink:
    """How far a configuration is made smaller: heads and channels by ratios, layers to a number."""

    heads: int
    head_dim: int
    layers: int | None

    def of(self, given: dict[str, Any]) -> dict[str, Any]:
        """The smaller configuration; those within it are made smaller each by its own sizes."""
        width, heads = first(given, "hidden_size", "d_model", "n_embd", "embed_dim", "dim"), self.count(given)
        wide = first(given, "head_dim", "kv_channels", "d_kv", "attention_head_dim") or (width or 0) // max(heads, 1)
        channels = self.divisor(wide)
        fewer = self.fewer(given)
        return {key: self.value(str(key), value, channels, channels * fewer, fewer) for key, value in given.items()}

    def count(self, given: dict[str, Any]) -> int:
        return first(given, "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads") or 1

    def divisor(self, wide: int) -> int:
        """What the channels of a head are divided by."""
        return next(
            (n for n in (16, 8, 4, 2) if wide % n == 0 and wide // n >= self.head_dim and wide // n % 8 == 0), 1
        )

    def fewer(self, given: dict[str, Any]) -> int:
        """What heads are divided by."""
        counts = [
            value
            for key, value in given.items()
            if HEADS.search(str(key)) and not SHARED.search(str(key)) and type(value) is int and value > 1
        ]
        most = max(counts, default=1)
        return next((n for n in (32, 16, 8, 4, 2) if all(c % n == 0 for c in counts) and most // n >= self.heads), 1)

    def value(self, key: str, value: Any, channels: int, width: int, fewer: int) -> Any:
        if isinstance(value, dict) and ("rope" in key or "rotary" in key):
            return {name: self.of_rope(name, one, channels) for name, one in value.items()}
        if isinstance(value, dict):
            return self.of(value)
        if isinstance(value, list):
            if key == "layer_types" and self.layers is not None and all(isinstance(one, str) for one in value):
                return shorter(value, self.layers)
            whole = value and all(type(one) is int for one in value)
            return [self.value(key, one, channels, width, fewer) for one in value] if whole else value
        if value is None:
            return {"vocab_size": 131, "mask_token_id": 3, "pad_token_id": 1, "num_experts_per_tok": 2}.get(key)
        if type(value) is not int or value < 2:
            return value
        if VOCABULARY.search(key):
            return min(value, 131)
        if key.endswith("token_id") and value > 130:
            return value % 120 + 1
        if EXPERTS.search(key):
            return min(value, {"n_group": 1, "topk_group": 1}.get(key, 2 if "per_tok" in key or "top" in key else 8))
        if LAYERS.search(key):
            return value if self.layers is None else min(value, self.layers)
        if key in ("head_dim", "kv_channels", "d_kv", "attention_head_dim") or (
            key.endswith("head_dim") and value % channels == 0
        ):
            return value // channels
        if SHARED.search(key):
            return max(1, value // fewer)
        if HEADS.search(key):
            return value // fewer if value % fewer == 0 else value
        if SIZE.search(key) and not NO_SIZE.search(key) and value >= 16:
            return value // width if value % width == 0 and value // width >= 4 else max(8, value // width // 8 * 8)
        return value

    def of_rope(self, key: str, value: Any, channels: int) -> Any:
        if isinstance(value, dict):
            return {name: self.of_rope(name, one, channels) for name, one in value.items()}
        if isinstance(value, list) and value and type(value[0]) is int:
            return [one // channels for one in value]
        return value[::channels] if isinstance(value, list) else value


def first(given: dict[str, Any], *keys: str) -> int | None:
    return next((given[key] for key in keys if type(given.get(key)) is int), None)


def candidates(config_class: Any) -> Iterator[Any]:
    """Configurations of an architecture, those that are tried first the smallest."""
    usual = config_class()
    values = usual.to_dict()
    sizes = [(4, 32), (2, 16), (4, 8), (2, 128), (99, 32), (99, 8), (99, 999)]
    for layers in (FEW, 4, 6, None):
        for heads, head_dim in sizes:
            small = Shrink(heads, head_dim, layers).of(copy.deepcopy(values))
            for given in (small, without_lists(small)):
                with contextlib.suppress(Exception):
                    yield config_class.from_dict(given)
    yield usual


def shorter(types: list[str], layers: int) -> list[str]:
    """As many types of layers, all kinds among them where there is room."""
    return (list(dict.fromkeys(types)) + types)[:layers]


def without_lists(given: dict[str, Any]) -> dict[str, Any]:
    """A configuration without lists that have an entry for each layer: what builds it makes them anew."""
    return {
        key: without_lists(value) if isinstance(value, dict) and "rope" not in str(key) else value
        for key, value in given.items()
        if not (isinstance(value, list) and len(value) > 4 and "token" not in str(key))
    }


def model_class(config: Any) -> Any:
    """The class that is built: one that predicts tokens where there is one, else the model itself."""
    from transformers.models.auto import modeling_auto as auto

    decodes = getattr(config, "is_decoder", None) is not False and getattr(config, "use_cache", True) is not False
    order = [auto.MODEL_FOR_CAUSAL_LM_MAPPING] if decodes and not getattr(config, "is_encoder_decoder", False) else []
    for mapping in (
        *order,
        auto.MODEL_MAPPING,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
        auto.MODEL_FOR_PRETRAINING_MAPPING,
    ):
        try:
            found = mapping[type(config)]
        except (KeyError, ValueError, AttributeError, ImportError):
            continue
        return found[0] if isinstance(found, tuple) else found
    from posenc.checkpoints.models.skeleton import model_class as by_file

    return by_file(config)


def tiny(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model of an architecture, with random weights, and something that it can be given."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    reasons = []
    try:
        tried = list(candidates(CONFIG_MAPPING[name]))
    except Exception as error:
        raise Refused(f"no default configuration: {short(error)}") from error
    known = set[str]()
    for config in tried:
        text = config.to_json_string(use_diff=False)
        if text in known:
            continue
        known.add(text)
        config._attn_implementation = "eager"
        try:
            cls = model_class(config)
        except Exception as error:
            reasons.append(short(error))
            continue
        try:
            with torch.device("meta"):
                numbers = sum(p.numel() for p in cls(copy.deepcopy(config)).parameters())
        except Exception:
            # Some cannot be made of shapes alone; memory is limited for them.
            numbers = 0
        try:
            if numbers > MOST_NUMBERS:
                raise Refused(f"{numbers:,} parameters")
            torch.manual_seed(0)
            model = cls(config).eval()
            fill(model)
            given = accepted_of(model)
        except (Exception, MemoryError) as error:
            reasons.append(short(error))
            continue
        return model, given
    raise Refused(max(reasons, key=reasons.count))


@torch.no_grad()
def accepted_of(model: Any) -> dict[str, Tensor]:
    """The first inputs that a model runs on."""
    reason = "nothing is known that it could be given"
    for given in inputs_of(model):
        try:
            out = outputs(model(**given))
        except Exception as error:
            reason = short(error)
            continue
        if out and all(x.isfinite().all() for x in out):
            return given
        reason = "its outputs are not finite"
    raise Refused(reason)


def short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    text = f"{type(error).__name__}: {lines[0] if lines else ''}"
    return re.sub(r"/[\w./-]+/", "", text)[:200].strip()


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


def inputs_of(model: Any) -> Iterator[dict[str, Tensor]]:
    """What a model may want to be given: tokens, an image, sound, or several of them; batch 2."""
    accepted = signatures.signature(model.forward).parameters
    name = getattr(model, "main_input_name", "input_ids")
    generator = torch.Generator().manual_seed(1)
    top = max(8, min(vocabulary(model), 100))
    words = torch.randint(5, top, (2, T), generator=generator)
    text: dict[str, Tensor] = {}
    if "input_ids" in accepted:
        text["input_ids"] = words
    if "decoder_input_ids" in accepted:
        text["decoder_input_ids"] = words.flip(1)
    image = {"pixel_values": torch.randn(2, *image_of(model), generator=generator)}
    sound = [
        {"input_values": torch.randn(2, 8000, generator=generator)},
        {
            "input_values": torch.randn(
                2, attribute(model, "max_length", 100), attribute(model, "num_mel_bins", 128), generator=generator
            )
        },
    ]
    frames = 2 * attribute(model, "max_source_positions", 50)
    bins = attribute(model, "num_mel_bins", 80)
    sound += [
        {"input_features": torch.randn(2, bins, frames, generator=generator)},
        {
            "input_features": torch.randn(
                2, 40, attribute(model, "feature_projection_input_dim", bins), generator=generator
            )
        },
    ]
    rest = [one for one in (image, *sound) if next(iter(one)) in accepted]
    if name in text and text:
        yield text
        yield text | {"attention_mask": torch.ones_like(words)}
        yield text | {"bbox": torch.zeros(2, T, 4, dtype=torch.long)}
        yield text | {"use_cache": False}  # type: ignore[dict-item]
    wide = attribute(model, "hidden_size", 64)
    for key in ("inputs_embeds", "query_embeds", "hidden_states"):
        if key in accepted and key == name:
            yield {key: torch.randn(2, T, wide, generator=generator)}
    for one in rest:
        yield one | ({k: v for k, v in text.items() if k == "decoder_input_ids"})
        yield one | text
    if text:
        yield text
    from posenc.checkpoints.models.dry_run import usual_inputs

    yield {key: value for key, value in usual_inputs(model).items() if key != "use_cache"}


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
        return [out]
    values = out.values() if hasattr(out, "values") else out
    return [x for x in values if isinstance(x, Tensor) and x.is_floating_point()]


# Comparisons


@torch.no_grad()
def runs_of(model: Any, given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """What a model gives in each way of calling it; a way that the bare model refuses is left out."""
    made: dict[str, list[Tensor]] = {}

    def way(name: str, call: Callable[[], list[Tensor]]) -> None:
        # Some models draw random numbers.
        torch.manual_seed(2)
        with contextlib.suppress(NotImplementedError):
            made[name] = call()

    accepted = signatures.signature(model.forward).parameters
    way("plain", lambda: outputs(model(**given)))
    if "input_ids" not in given or "attention_mask" not in accepted:
        return made
    ids = given["input_ids"]
    ones = torch.ones_like(ids)
    rest = {key: value for key, value in given.items() if key != "input_ids"}
    way("a mask of ones", lambda: outputs(model(input_ids=ids, attention_mask=ones, **rest)))
    pad = next(
        (
            n
            for c in (model.config,)
            if isinstance(n := getattr(c, "pad_token_id", None), int) and 0 <= n < vocabulary(model)
        ),
        0,
    )
    for side in ("right", "left"):
        real = slice(0, T - 4) if side == "right" else slice(4, T)
        mask, padded = torch.zeros_like(ids), torch.full_like(ids, pad)
        mask[0, real], padded[0, real] = 1, ids[0, real]
        mask[1], padded[1] = 1, ids[1]

        def call(padded: Tensor = padded, mask: Tensor = mask, real: slice = real) -> list[Tensor]:
            first = outputs(model(input_ids=padded, attention_mask=mask, **rest))[0]
            if first.shape[:2] != ids.shape:
                raise NotImplementedError
            return [first[0, real], first[1]]

        way(f"{side} padding", call)
    if "past_key_values" in accepted and "use_cache" in accepted and "decoder_input_ids" not in given:
        way("behind a cache", lambda: behind_a_cache(model, ids))
    return made


def behind_a_cache(model: Any, ids: Tensor) -> list[Tensor]:
    """The outputs of tokens that come in three pieces, the last one by itself."""
    cache, out = None, []
    for piece in (ids[:, :6], ids[:, 6:-1], ids[:, -1:]):
        step = model(input_ids=piece, past_key_values=cache, use_cache=True)
        cache = getattr(step, "past_key_values", None)
        if cache is None:
            raise NotImplementedError
        out.append(outputs(step)[0])
    return out


@torch.no_grad()
def alone(model: Any, given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """What the rows of a padded batch give without any padding."""
    if "input_ids" not in given:
        return {}
    ids = given["input_ids"]
    rest = {key: value for key, value in given.items() if key != "input_ids"}
    found = {}
    for side in ("right", "left"):
        real = slice(0, T - 4) if side == "right" else slice(4, T)
        with contextlib.suppress(Exception):
            row = {key: value[:1] for key, value in rest.items()}
            first = outputs(model(input_ids=ids[:1, real], **row))[0][0]
            found[f"{side} padding"] = [first, outputs(model(**given))[0][1]]
    return found


@torch.no_grad()
def counted_from_mask(model: Any, given: dict[str, Tensor]) -> dict[str, list[Tensor]]:
    """What a batch that is padded on the left gives where the model is told that its rows begin behind the padding.

    What a convolution of the model's reads of padding stays wrong.
    """
    if "input_ids" not in given or "position_ids" not in signatures.signature(model.forward).parameters:
        return {}
    ids, mask = given["input_ids"].clone(), torch.ones_like(given["input_ids"])
    mask[0, :4], ids[0, :4] = 0, padding_of(model)
    rest = {key: value for key, value in given.items() if key != "input_ids"}
    with contextlib.suppress(Exception):
        places = torch.where(mask.bool(), mask.cumsum(1) - 1, torch.arange(T))
        first = outputs(model(input_ids=ids, attention_mask=mask, position_ids=places, **rest))[0]
        return {"left padding": [first[0, 4:], first[1]]}
    return {}


def padding_of(model: Any) -> int:
    pad = getattr(model.config, "pad_token_id", None)
    return pad if isinstance(pad, int) and 0 <= pad < vocabulary(model) else 0


def differ(one: list[Tensor], other: list[Tensor]) -> float:
    """By how much outputs differ, as a share of the largest."""
    if [x.shape for x in one] != [x.shape for x in other]:
        return math.inf
    most = 0.0
    for a, b in zip(one, other, strict=True):
        if not (a.isfinite().all() and b.isfinite().all()):
            same = bool(torch.equal(a.isfinite(), b.isfinite()))
            most = max(most, 0.0 if same else math.inf)
            a, b = a.nan_to_num(0, 0, 0), b.nan_to_num(0, 0, 0)
        most = max(most, float((a - b).abs().max() / max(1e-6, float(b.abs().max()))) if a.numel() else 0.0)
    return most


def of(name: str) -> Row:
    """The verdict over one architecture."""
    from posenc.checkpoints import attach, detach, inspect

    warnings.simplefilter("ignore")
    try:
        model, given = tiny(name)
    except Refused as reason:
        return Row(name, "refused", reason=str(reason))
    with tempfile.TemporaryDirectory() as folder:
        try:
            model.save_pretrained(folder)
        except Exception as error:
            return Row(name, "refused", reason=f"it cannot be saved: {short(error)}")
        try:
            reading = inspect(folder)
        except Exception as error:
            refused = "transformers" in str(error) and "CannotRead" in type(error).__name__
            return Row(name, "refused" if refused else "wrong", reason=f"inspect: {short(error)}")
    specs = "; ".join(dict.fromkeys(said_of(part) for part in reading.parts))
    left = list(reading.not_covered)
    bare, truth, counted = runs_of(model, given), alone(model, given), counted_from_mask(model, given)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    try:
        attachment = attach(model)
    except ValueError as error:
        if not reading.parts and not left:
            return Row(name, "none", specs)
        return Row(name, "not covered", specs, shortest([*left, str(error)]))
    except Exception as error:
        return Row(name, "wrong", specs, f"attach: {short(error)}")
    try:
        attached = runs_of(model, given)
    except Exception as error:
        return Row(name, "wrong", specs, f"attached: {short(error)}")
    for way, before in bare.items():
        far = min(differ(attached[way], one) for one in (before, truth.get(way, before), counted.get(way, before)))
        if far > SMALL:
            return Row(name, "wrong", specs, f"{way}: attached, outputs differ by {far:.1e} of the largest")
    replaced = dict(attachment.replaced)
    left += [f"{path}: {why}" for path, why in attachment.left.items()]
    detach(model)
    again = runs_of(model, given)
    if any(differ(again[way], before) != 0 for way, before in bare.items()):
        return Row(name, "wrong", specs, "detached, outputs differ from before")
    if any(not torch.equal(value, state[key]) for key, value in model.state_dict().items()):
        return Row(name, "wrong", specs, "detached, weights differ from before")
    if left or reading.unknown or reading.contradictions:
        told = [*left, *(f"unknown key {key}" for key in reading.unknown), *reading.contradictions]
        return Row(name, "in part" if replaced else "not covered", specs, shortest(told))
    return Row(name, "equal", specs)


def said_of(part: Any) -> str:
    """The specs of a part, in one line."""
    layers = list(dict.fromkeys(layer.spec for layer in part.layers))
    specs = ([f"{part.embed} (added)"] if part.embed != "none" else []) + [
        s for s in layers if s != "none" or len(layers) > 1
    ]
    return f"{part.name + ': ' if part.name else ''}{', '.join(specs) or ('none' if part.known else 'not known')}"


def shortest(sentences: list[str]) -> str:
    """The reason, in one line."""
    said = sorted(dict.fromkeys(" ".join(sentence.split()) for sentence in sentences), key=len)
    more = f" (and {len(said) - 1} more)" if len(said) > 1 else ""
    return (said[0][:220] if said else "") + more


def in_time(name: str) -> Row:
    """The same, or "wrong" where it takes too long."""

    def stop(*_: Any) -> None:
        raise TooSlow(f"it took more than {SECONDS} seconds")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return of(name)
    except TooSlow as error:
        return Row(name, "refused", reason=short(error))
    except Exception as error:
        return Row(name, "wrong", reason=short(error))
    finally:
        signal.alarm(0)


def names() -> list[str]:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    done = set()
    if asked.out and asked.out.exists():
        done = {line.split("\t")[0] for line in asked.out.read_text().splitlines()}
    for name in asked.names or names():
        if name in done:
            continue
        row = in_time(name)
        print(row, flush=True)
        if asked.out:
            with open(asked.out, "a") as file:
                file.write(f"{row}\n")
