"""Measure how much each known defect of transformers' models hits a model, and what mends it.

A defect is one function, whose docstring is the sentence in the row of its name in docs/guides/known-defects.md. It
returns None for a model that it does not concern, else a finding. Versions decide nothing: a defect that is repaired
in the installed transformers is measured as repaired.
"""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.doctor.patient import Patient, model_states, rotary_cosines
from posenc.checkpoints.formats.config_json import unused_keys
from posenc.checkpoints.kinds.calls import parameter_names
from posenc.checkpoints.kinds.rotary.old_keys import missing_old_keys
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checkpoints.vocabulary.specs import encodings_by_layer
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.rotations.rotary import Rotary
from posenc.foreign import one_line, shorten
from posenc.schedules.yarn import YaRN
from posenc.verdicts import promise_name

BIAS_TOKENS = 4096
"""The number of tokens at which biases are compared."""

MPT_LENGTH = 16
"""The trained length of a small MPT, which then runs on one token more."""


@dataclass(frozen=True)
class Finding:
    """The result of measuring a defect.

    hits    whether the model has the defect; None where it could not be measured
    number  its size, in the unit that `words` says; 0 without the defect
    words   the same in words, or why it could not be measured
    """

    hits: bool | None
    number: float
    words: str

    @property
    def as_json(self) -> dict[str, Any]:
        return {"reason": self.words} if self.hits is None else {"number": self.number, "measured": self.words}


@dataclass(frozen=True)
class Defect:
    """A known defect and its measure. The remedy `mends` is tried on a mended patient; `advice` is not tried."""

    measure: Callable[[Patient], Finding | None]
    mends: str = ""
    advice: str = ""

    @property
    def title(self) -> str:
        """The name of the defect in the guide."""
        return promise_name(self.measure).replace("_", " ")

    @property
    def sentence(self) -> str:
        return " ".join((self.measure.__doc__ or "").split()).removesuffix(".")


def keys_that_are_lost(patient: Patient) -> Finding | None:
    """transformers drops keys that name an encoding, and computes another without a word"""
    text = patient.file.get("text_config", patient.file)
    dropped_keys = dict(unused_keys(text, patient.reading.parts, patient.config, ""))
    return Finding(True, len(dropped_keys), "; ".join(dropped_keys.values())) if dropped_keys else None


def one_spelling(patient: Patient) -> Finding | None:
    """A program that knows no `rope_parameters`, all that transformers 5 writes, takes a base of 10,000, unstretched"""
    if "rope_parameters" not in str(patient.file):
        return None
    absent_keys = list(missing_old_keys(patient.file))
    return Finding(bool(absent_keys), len(absent_keys), f"the config lacks {', '.join(absent_keys) or 'nothing'}")


def rounded_by_a_cast(patient: Patient) -> Finding | None:
    """A cast of the model to half precision rounds cosines or frequencies, and positions fall together"""
    if not patient.rotary:
        return None
    half = patient.dtype if patient.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
    positions = patient.positions()
    error = 0.0
    for module in patient.rotary:
        cast = copy.deepcopy(module).to(half)
        exact, half_cosines = (rotary_cosines(item, positions, patient.config) for item in (module, cast))
        error = max(error, *(distance(right, wrong) for right, wrong in zip(exact, half_cosines, strict=True)))
    name = str(half).removeprefix("torch.")
    words = f"cosines off by {error:.2g} after model.to({name}), at {position_range(positions)}"
    return Finding(error > rounding(half), error, words)


def not_in_the_weights(patient: Patient) -> Finding | None:
    """After `meta` and `to_empty` the frequencies are whatever lay in memory: NaN, or blind to position"""
    buffers = {name for name, _ in patient.small.named_buffers() if "inv_freq" in name}
    if not patient.rotary:
        return None
    empty, weights = copy.deepcopy(patient.small).to_empty(device="cpu"), patient.small.state_dict()
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.detach().fill_(math.nan if tensor.is_floating_point() else 0)
    absent = len(empty.load_state_dict(weights).missing_keys)
    nans = [name for name, tensor in empty.named_buffers() if name in buffers and bool(tensor.isnan().any())]
    words = f"{len(nans)} of {len(buffers)} tensors of frequencies stay unfilled, and {absent} are called missing"
    return Finding(bool(nans), len(nans), words)


def frequencies_by_the_longest_row(patient: Patient) -> Finding | None:
    """Dynamic NTK: cached keys were turned with another base, the base never shrinks back, and a long neighbour changes
    a short row"""
    return cosine_change(patient, "dynamic", patient.trained_length)


def factors_in_the_middle_of_a_text(patient: Patient) -> Finding | None:
    """LongRoPE changes its factors in the middle of a text, and the cache becomes a mixture"""
    lengths = [parameters.get("original_max_position_embeddings") for _, parameters in patient.rotary_parameters]
    return cosine_change(patient, "longrope", next(filter(None, lengths), None))


def cosine_change(patient: Patient, rope_type: str, length: int | None) -> Finding | None:
    """Measure how far the cosines of the same positions change in a call that goes further."""
    if length is None or rope_type not in [parameters.get("rope_type") for _, parameters in patient.rotary_parameters]:
        return None
    positions = patient.positions(length)
    longer = torch.cat((positions, torch.tensor([[2 * length - 1]])), 1)
    error = 0.0
    for module in patient.rotary:
        cosines = list(rotary_cosines(copy.deepcopy(module), positions, patient.config))
        pairs = zip(cosines, rotary_cosines(copy.deepcopy(module), longer, patient.config), strict=True)
        error = max(error, *(distance(a, b[:, :-1]) for a, b in pairs))
    words = f"cosines of the first {length:,} positions change by {error:.2g} once a token stands at {2 * length - 1:,}"
    return Finding(error > rounding(patient.dtype), error, words)


def shifted_by_padding(patient: Patient) -> Finding | None:
    """Left padding shifts the positions of every shorter prompt"""
    if not patient.specs or patient.small.main_input_name != "input_ids":
        return None
    ids, padding = torch.tensor([[7, 9, 11, 13, 12, 10]]), 5
    reference = model_states(patient.small, input_ids=ids)
    filler = getattr(patient.small.config, "pad_token_id", None) or 0
    padded_ids = torch.cat((torch.full((1, padding), filler), ids), 1)
    mask = torch.ones_like(padded_ids)
    mask[:, :padding] = 0
    error = distance(model_states(patient.small, input_ids=padded_ids, attention_mask=mask)[:, padding:], reference)
    error /= float(reference.abs().max())
    return Finding(error > 1e-3, error, f"states of a prompt behind {padding} tokens of padding are off by {error:.1%}")


def truncate_is_lost(patient: Patient) -> Finding | None:
    """`truncate` is lost when rotary parameters are nested"""
    yarn_parameters = [
        (kind, parameters)
        for kind, parameters in patient.rotary_parameters
        if kind is not None and parameters.get("rope_type") == "yarn" and parameters.get("truncate") is False
    ]
    if not yarn_parameters:
        return None
    error = 0.0
    for kind, parameters in yarn_parameters:
        options = {name: parameters[name] for name in ("beta_fast", "beta_slow") if parameters.get(name)}
        trained_length = parameters.get("original_max_position_embeddings") or patient.trained_length
        schedule, base = YaRN(parameters["factor"], trained_length, truncate=False, **options), parameters["rope_theta"]
        for module in patient.rotary:
            frequencies = dict(module.named_buffers()).get(f"{kind}_inv_freq")
            if frequencies is not None:
                exact = Rotary(2 * len(frequencies), base=float(base), schedule=schedule).frequencies
                error = max(error, float((frequencies.double() / exact - 1).abs().max()))
    return Finding(error > 1e-5, error, f"frequencies off by {error:.2%}")


def ends_at_the_trained_length(patient: Patient) -> Finding | None:
    """MPT fails past its `max_seq_len`, although ALiBi has no limit"""
    if patient.config.model_type != "mpt" or not patient.config.attn_config.alibi:
        return None
    small = copy.copy(patient.config)
    small.max_seq_len = MPT_LENGTH
    ids = torch.full((1, MPT_LENGTH + 1), 7)
    why = failure(lambda: model_states(replace(patient, config=small).small, input_ids=ids))
    words = f"one token more than max_seq_len={patient.config.max_seq_len:,} fails: {why}" if why else "it goes on"
    return Finding(bool(why), float(bool(why)), words)


def biases_fall_together(patient: Patient) -> Finding | None:
    """ALiBi of BLOOM and Falcon in bfloat16: at 4,096 tokens the last 64 keys have 5 values, off by up to 4.5"""
    build = getattr(sys.modules[type(patient.small).__module__], "build_alibi_tensor", None)
    if build is None or not getattr(patient.config, "alibi", True):
        return None
    mask, state = torch.ones(1, 1, 1, BIAS_TOKENS), torch.zeros(1, 1, 1, dtype=torch.bfloat16)
    alibi = build(mask[0, 0].long(), patient.config.num_attention_heads, state.dtype)
    inputs: dict[str, Any] = {"hidden_states": state, "attention_mask": mask.bool(), "alibi": alibi}
    # The inputs of a block for the last token, after the hooks that stand before the block.
    block = next(module for module in patient.small.modules() if "alibi" in parameter_names(type(module)))
    for hook in block._forward_pre_hooks.values():
        inputs = hook(block, (), inputs)[1]
    biases = inputs["alibi"].flatten(1).double()
    exact = -ALiBi(len(biases)).by_distance(torch.arange(BIAS_TOKENS, dtype=torch.float64))
    # A softmax ignores a constant in a row of biases, and only hooks count distances from the last key.
    exact = exact - exact[:, -1:] * (biases[:, -1:] == 0)
    values = int(biases[0, -64:].unique().numel())
    error = float((biases - exact)[:, -64:].abs().max())
    words = f"the last 64 of {BIAS_TOKENS:,} keys have {values} values in bfloat16, off by up to {error:.2g}"
    return Finding(values < 64, values, words)


def past_a_learned_table(patient: Patient) -> Finding | None:
    """Learned tables: "device-side assert triggered", far from the cause"""
    rows, text = patient.trained_length, patient.small.main_input_name == "input_ids"
    if rows is None or not text or not any("learned" in spec for spec in patient.specs):
        return None
    inputs = {"input_ids": torch.full((1, min(rows, BIAS_TOKENS) + 1), 7)}
    if rows > BIAS_TOKENS:
        inputs = {"input_ids": torch.tensor([[7]]), "position_ids": torch.tensor([[rows]])}
    why = failure(lambda: model_states(patient.small, **inputs))
    words = f"position {rows:,} of {rows:,} fails with: {why}" if why else f"position {rows:,} is served"
    return Finding(bool(why) and "position" not in why, rows, words)


def angles_in_float32(patient: Patient) -> Finding | None:
    """Angles in float32, with cosines off by 1.4e-4 at 4,000 positions and 2.5e-2 at a million"""
    exact = {
        len(encoding.frequencies): encoding
        for part in patient.reading.parts
        for layer in encodings_by_layer(part)
        for encoding in layer.values()
        if isinstance(encoding, Rotary) and not encoding.turns_when_attending
    }
    positions, errors = patient.positions(), []
    for module in patient.rotary:
        for cosines in rotary_cosines(module, positions, patient.config):
            pairs = cosines.shape[-1] // 2
            if pairs not in exact or len(patient.rotary_parameters) != 1:
                continue
            is_halved = bool((cosines[..., :pairs] == cosines[..., pairs:]).all())
            cosines = cosines[..., :pairs] if is_halved else cosines[..., ::2]
            frequencies, temperature = exact[pairs].spectrum()
            errors.append(distance(cosines, (positions[..., None] * frequencies).cos() * temperature))
    if not errors:
        return None
    error, name = max(errors), str(patient.dtype).removeprefix("torch.")
    limit = rounding(patient.dtype)
    words = f"cosines off by {error:.2g} at {position_range(positions)}, where {name} rounds by {limit:.1g}"
    return Finding(error > limit, error, words)


def no_fast_path(patient: Patient) -> Finding | None:
    """DeBERTa's disentangled attention has no fast path"""
    if not patient.config.model_type.startswith("deberta"):
        return None
    slow = not type(patient.small)._supports_sdpa
    heads, tokens = patient.config.num_attention_heads, patient.trained_length or BIAS_TOKENS
    size = heads * tokens**2 * 4 / 2**20
    return Finding(slow, size, f"each layer makes {size:,.0f} MiB of logits for {tokens:,} tokens, on any device")


def distance(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).abs().max())


def rounding(dtype: torch.dtype) -> float:
    """Return the rounding error of a number near 1."""
    return torch.finfo(dtype).eps / 2


def position_range(positions: Tensor) -> str:
    return f"positions up to {int(positions.amax()):,}"


def failure(call: Callable[[], object]) -> str:
    """Return the error of a call in one line, or "" where it succeeds."""
    try:
        call()
    except CannotRead:
        raise
    except Exception as error:
        return shorten(f"{type(error).__name__}: {one_line(str(error))}", 200)
    return ""


ATTACH = "posenc.checkpoints.attach(model)"
BY_CONFIG = "rope_type posenc:{} with a declared horizon (posenc.register)"

DEFECTS = [
    Defect(keys_that_are_lost, "", "the program that the keys are of; or posenc.checkpoints.attach(model, SPEC)"),
    Defect(one_spelling, "posenc convert MODEL --out NEW, which writes both spellings"),
    Defect(rounded_by_a_cast, ATTACH, "load with dtype=, never cast a loaded model"),
    Defect(not_in_the_weights, f"{ATTACH} before to_empty", "from_pretrained"),
    Defect(frequencies_by_the_longest_row, ATTACH, BY_CONFIG.format("dynamic_ntk")),
    Defect(factors_in_the_middle_of_a_text, ATTACH, BY_CONFIG.format("longrope")),
    Defect(shifted_by_padding, ATTACH, "where it takes position_ids, with every padded batch, as generate does"),
    Defect(truncate_is_lost, "", "truncate outside the nested parameters; or rope_type posenc:yarn (posenc.register)"),
    Defect(ends_at_the_trained_length, f"{ATTACH}: ALiBi has no limit"),
    Defect(biases_fall_together, ATTACH),
    Defect(past_a_learned_table, f"{ATTACH}: the error then names position, size and remedy"),
    Defect(angles_in_float32, f"{ATTACH}: angles in float64, rounded once"),
    Defect(no_fast_path, "", "its weights in a model of posenc: every kernel takes the encoding deberta"),
]
