"""The known defects that concern models of transformers: does each one hit a config, how much, and what mends it.

Each is one function. Its docstring is the sentence that stands in docs/guides/known-defects.md, in the row that has its
name; it returns None for a model that it does not concern, else what was measured. Nothing is known by version: what is
repaired in the installed transformers is measured as repaired.
"""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.doctor.patient import Patient, states, turns
from posenc.checkpoints.formats.config_json import unheard
from posenc.checkpoints.kinds.calls import parameters
from posenc.checkpoints.kinds.rotary.old_keys import missing
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checkpoints.vocabulary.specs import encodings_of
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.rotations.rotary import Rotary
from posenc.foreign import one_line, shortened
from posenc.schedules.yarn import YaRN
from posenc.verdicts import name_of

LONG = 4096
"""At how many tokens biases are looked at."""

MPT = 16
"""The trained length of the small model that is asked one token more."""


@dataclass(frozen=True)
class Finding:
    """What was measured of a defect.

    hits    whether the model has it; None where it could not be measured
    number  how much, in the unit that `words` says; 0 where there is nothing
    words   the same in words, or why it could not
    """

    hits: bool | None
    number: float
    words: str

    @property
    def in_json(self) -> dict[str, Any]:
        return {"reason": self.words} if self.hits is None else {"number": self.number, "measured": self.words}


@dataclass(frozen=True)
class Defect:
    """A known defect: its measure, what mends it in words, of which a mended patient is measured, and what may."""

    measure: Callable[[Patient], Finding | None]
    mends: str = ""
    advice: str = ""

    @property
    def words(self) -> str:
        """What it is called."""
        return name_of(self.measure).replace("_", " ")

    @property
    def sentence(self) -> str:
        return " ".join((self.measure.__doc__ or "").split()).removesuffix(".")


def keys_that_are_lost(patient: Patient) -> Finding | None:
    """transformers drops keys that name an encoding, and computes another without a word"""
    text = patient.file.get("text_config", patient.file)
    lost = dict(unheard(text, patient.reading.parts, patient.config))
    return Finding(True, len(lost), "; ".join(lost.values())) if lost else None


def one_spelling(patient: Patient) -> Finding | None:
    """A program that knows no `rope_parameters`, all that transformers 5 writes, takes a base of 10,000, unstretched"""
    if "rope_parameters" not in str(patient.file):
        return None
    lacks = list(missing(patient.file))
    return Finding(bool(lacks), len(lacks), f"the config lacks {', '.join(lacks) or 'nothing'}")


def rounded_by_a_cast(patient: Patient) -> Finding | None:
    """A cast of the model to half precision rounds cosines or frequencies, and positions fall together"""
    if not patient.rotary:
        return None
    half = patient.dtype if patient.dtype in (torch.bfloat16, torch.float16) else torch.bfloat16
    at = patient.positions()
    error = 0.0
    for module in patient.rotary:
        cast = copy.deepcopy(module).to(half)
        pairs = zip(turns(module, at, patient.config), turns(cast, at, patient.config), strict=True)
        error = max(error, *(distance(right, wrong) for right, wrong in pairs))
    name = str(half).removeprefix("torch.")
    return Finding(error > rounding(half), error, f"cosines off by {error:.2g} after model.to({name}), at {upto(at)}")


def not_in_the_weights(patient: Patient) -> Finding | None:
    """After `meta` and `to_empty` the frequencies are whatever lay in memory: NaN, or blind to position"""
    held = {name for name, _ in patient.small.named_buffers() if "inv_freq" in name}
    if not patient.rotary:
        return None
    empty, weights = copy.deepcopy(patient.small).to_empty(device="cpu"), patient.small.state_dict()
    for tensor in (*empty.parameters(), *empty.buffers()):
        tensor.detach().fill_(math.nan if tensor.is_floating_point() else 0)
    missing = empty.load_state_dict(weights).missing_keys
    lost = [name for name, tensor in empty.named_buffers() if name in held and bool(tensor.isnan().any())]
    words = f"{len(lost)} of {len(held)} tensors of frequencies stay unfilled, and {len(missing)} are called missing"
    return Finding(bool(lost), len(lost), words)


def frequencies_by_the_longest_row(patient: Patient) -> Finding | None:
    """Dynamic NTK: cached keys were turned with another base, the base never shrinks back, and a long neighbour changes
    a short row"""
    return by_the_call(patient, "dynamic", patient.trained)


def factors_in_the_middle_of_a_text(patient: Patient) -> Finding | None:
    """LongRoPE changes its factors in the middle of a text, and the cache becomes a mixture"""
    lengths = [said.get("original_max_position_embeddings") for _, said in patient.rotary_parameters]
    return by_the_call(patient, "longrope", next(filter(None, lengths), None))


def by_the_call(patient: Patient, rope_type: str, length: int | None) -> Finding | None:
    """How far the same positions get other cosines in a call that goes further."""
    if length is None or rope_type not in [said.get("rope_type") for _, said in patient.rotary_parameters]:
        return None
    at = patient.positions(length)
    longer = torch.cat((at, torch.tensor([[2 * length - 1]])), 1)
    error = 0.0
    for module in patient.rotary:
        short = list(turns(copy.deepcopy(module), at, patient.config))
        pairs = zip(short, turns(copy.deepcopy(module), longer, patient.config), strict=True)
        error = max(error, *(distance(one, other[:, :-1]) for one, other in pairs))
    words = f"cosines of the first {length:,} positions change by {error:.2g} once a token stands at {2 * length - 1:,}"
    return Finding(error > rounding(patient.dtype), error, words)


def shifted_by_padding(patient: Patient) -> Finding | None:
    """Left padding shifts the positions of every shorter prompt"""
    if not patient.specs or patient.small.main_input_name != "input_ids":
        return None
    ids, padding = torch.tensor([[7, 9, 11, 13, 12, 10]]), 5
    alone = states(patient.small, input_ids=ids)
    filler = getattr(patient.small.config, "pad_token_id", None) or 0
    padded = torch.cat((torch.full((1, padding), filler), ids), 1)
    mask = torch.ones_like(padded)
    mask[:, :padding] = 0
    error = distance(states(patient.small, input_ids=padded, attention_mask=mask)[:, padding:], alone)
    error /= float(alone.abs().max())
    return Finding(error > 1e-3, error, f"states of a prompt behind {padding} tokens of padding are off by {error:.1%}")


def truncate_is_lost(patient: Patient) -> Finding | None:
    """`truncate` is lost when rotary parameters are nested"""
    nested = [
        (kind, said)
        for kind, said in patient.rotary_parameters
        if kind is not None and said.get("rope_type") == "yarn" and said.get("truncate") is False
    ]
    if not nested:
        return None
    error = 0.0
    for kind, said in nested:
        options = {name: said[name] for name in ("beta_fast", "beta_slow") if said.get(name)}
        trained = said.get("original_max_position_embeddings") or patient.trained
        schedule = YaRN(said["factor"], trained, truncate=False, **options)
        for module in patient.rotary:
            theirs = dict(module.named_buffers()).get(f"{kind}_inv_freq")
            if theirs is not None:
                exact = Rotary(2 * len(theirs), base=float(said["rope_theta"]), schedule=schedule).frequencies
                error = max(error, float((theirs.double() / exact - 1).abs().max()))
    return Finding(error > 1e-5, error, f"frequencies off by {error:.2%}")


def ends_at_the_trained_length(patient: Patient) -> Finding | None:
    """MPT fails past its `max_seq_len`, although ALiBi has no limit"""
    if patient.config.model_type != "mpt" or not patient.config.attn_config.alibi:
        return None
    small = copy.copy(patient.config)
    small.max_seq_len = MPT
    why = refusal(lambda: states(replace(patient, config=small).small, input_ids=torch.full((1, MPT + 1), 7)))
    words = f"one token more than max_seq_len={patient.config.max_seq_len:,} fails: {why}" if why else "it goes on"
    return Finding(bool(why), float(bool(why)), words)


def biases_fall_together(patient: Patient) -> Finding | None:
    """ALiBi of BLOOM and Falcon in bfloat16: at 4,096 tokens the last 64 keys have 5 values, off by up to 4.5"""
    build = getattr(sys.modules[type(patient.small).__module__], "build_alibi_tensor", None)
    if build is None or not getattr(patient.config, "alibi", True):
        return None
    mask, state = torch.ones(1, 1, 1, LONG), torch.zeros(1, 1, 1, dtype=torch.bfloat16)
    alibi = build(mask[0, 0].long(), patient.config.num_attention_heads, state.dtype)
    inputs: dict[str, Any] = {"hidden_states": state, "attention_mask": mask.bool(), "alibi": alibi}
    # What a block is given for the last token, after what was put before the block.
    block = next(module for module in patient.small.modules() if "alibi" in parameters(type(module)))
    for hook in block._forward_pre_hooks.values():
        inputs = hook(block, (), inputs)[1]
    half = inputs["alibi"].flatten(1).double()
    exact = -ALiBi(len(half)).by_distance(torch.arange(LONG, dtype=torch.float64))
    # A softmax does not see where a bias is 0, and nothing but hooks counts from the last key.
    exact = exact - exact[:, -1:] * (half[:, -1:] == 0)
    values = int(half[0, -64:].unique().numel())
    error = float((half - exact)[:, -64:].abs().max())
    words = f"the last 64 of {LONG:,} keys have {values} values in bfloat16, off by up to {error:.2g}"
    return Finding(values < 64, values, words)


def past_a_learned_table(patient: Patient) -> Finding | None:
    """Learned tables: "device-side assert triggered", far from the cause"""
    rows, text = patient.trained, patient.small.main_input_name == "input_ids"
    if rows is None or not text or not any("learned" in spec for spec in patient.specs):
        return None
    given = {"input_ids": torch.full((1, min(rows, LONG) + 1), 7)}
    if rows > LONG:
        given = {"input_ids": torch.tensor([[7]]), "position_ids": torch.tensor([[rows]])}
    why = refusal(lambda: states(patient.small, **given))
    words = f"position {rows:,} of {rows:,} fails with: {why}" if why else f"position {rows:,} is served"
    return Finding(bool(why) and "position" not in why, rows, words)


def angles_in_float32(patient: Patient) -> Finding | None:
    """Angles in float32, with cosines off by 1.4e-4 at 4,000 positions and 2.5e-2 at a million"""
    exact = {
        len(one.frequencies): one
        for part in patient.reading.parts
        for layer in encodings_of(part)
        for one in layer.values()
        if isinstance(one, Rotary) and not one.turns_when_attending
    }
    at, errors = patient.positions(), []
    for module in patient.rotary:
        for theirs in turns(module, at, patient.config):
            pairs = theirs.shape[-1] // 2
            if pairs not in exact or len(patient.rotary_parameters) != 1:
                continue
            half = bool((theirs[..., :pairs] == theirs[..., pairs:]).all())
            theirs = theirs[..., :pairs] if half else theirs[..., ::2]
            frequencies, temperature = exact[pairs].spectrum()
            errors.append(distance(theirs, (at[..., None] * frequencies).cos() * temperature))
    if not errors:
        return None
    error, name = max(errors), str(patient.dtype).removeprefix("torch.")
    words = f"cosines off by {error:.2g} at {upto(at)}, where {name} rounds by {rounding(patient.dtype):.1g}"
    return Finding(error > rounding(patient.dtype), error, words)


def no_fast_path(patient: Patient) -> Finding | None:
    """DeBERTa's disentangled attention has no fast path"""
    if not patient.config.model_type.startswith("deberta"):
        return None
    slow = not type(patient.small)._supports_sdpa
    heads, tokens = patient.config.num_attention_heads, patient.trained or LONG
    size = heads * tokens**2 * 4 / 2**20
    return Finding(slow, size, f"each layer makes {size:,.0f} MiB of logits for {tokens:,} tokens, on any device")


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).abs().max())


def rounding(dtype: torch.dtype) -> float:
    """By how much a number near 1 is rounded."""
    return torch.finfo(dtype).eps / 2


def upto(at: Tensor) -> str:
    return f"positions up to {int(at.amax()):,}"


def refusal(call: Callable[[], object]) -> str:
    """What a call fails with, or nothing."""
    try:
        call()
    except CannotRead:
        raise
    except Exception as error:
        return shortened(f"{type(error).__name__}: {one_line(str(error))}", 200)
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
