"""Read Meta's params.json of the released Llama models: RoPE (rotary), interleaved, in all of them."""

from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.vocabulary.bounds import check_bounds
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import as_whole, new_spec, possible, rotary_spec
from posenc.encoding.base import Shape
from posenc.schedules.llama3 import Llama3

SCALED_FROM = 8192
"""The trained length that Meta's scaling starts from; only the code of the models has it."""


def recognises(params: Mapping[str, Any]) -> bool:
    return {"dim", "n_layers", "n_heads"} <= set(params) and "model_type" not in params


def read(params: Mapping[str, Any]) -> Reading:
    """Read the positions of a params.json: Llama 1 and 2 (no rope_theta), 3, 3.1 (use_scaled_rope) and 4.

    Missing numbers are those of Meta's model code: base 10,000 (Llama 2), factor 8 and high 4 (Llama
    3.1), 16 and 1 (Llama 4), low 1, trained length 8192. Raises CannotRead for heads that do not divide the width.
    """
    check_bounds(params)
    keys = Ledger(params)
    dim, layers, heads = (keys.size(key, words) for key, words in SIZES.items())
    if dim % heads:
        raise CannotRead(f"n_heads must divide dim, got n_heads={heads} and dim={dim}")
    kv_heads = keys.size("n_kv_heads", "{} key and value heads", heads)
    head_dim = dim // heads
    if keys.whole("head_dim", "{} channels a head", head_dim) != head_dim:
        keys.contradict(f"head_dim is {params['head_dim']} and dim / n_heads is {head_dim}; followed: dim / n_heads")
    base = keys.number("rope_theta", "rotary base {}", 10_000)
    interval = keys.whole("nope_layer_interval", "every {}-th layer has no rotary")
    length = keys.whole("max_seq_len", "trained length {} tokens")
    with possible("use_scaled_rope"):
        schedule = scaling(keys, llama4=interval is not None)
    with possible("rope_theta"):
        rotary = rotary_spec(head_dim=head_dim, base=base, layout="interleaved", schedule=schedule)
        temperature = temperature_of(keys)
    chunk = keys.whole("attention_chunk_size", "layers with rotary attend within chunks of {} tokens") or None
    local_layer, global_layer = Layer(rotary, head_dim, chunk=chunk), Layer(temperature, head_dim)
    for key in ("vision_args", "vision_model"):
        if keys.has(key):
            keys.take(key, "a vision tower")
            keys.add_uncovered(f"the vision tower that {key} describes")
    for key in ("vision_chunk_size", "vision_max_num_chunks", "vision_num_cross_attention_layers"):
        if keys.peek(key, -1) not in (-1, 4):
            keys.add_uncovered(f"images: {key}={params[key]}")
        keys.take(key, "images, cut into pieces")
    stack = tuple(global_layer if interval and (index + 1) % interval == 0 else local_layer for index in range(layers))
    shape = Shape(dim, heads, head_dim, length or 1)
    part = Part("", shape, stack, kv_heads, length)
    with possible("the file"):
        part.encoding(0)
    sentences = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("meta", "llama4" if interval else "llama", (part,), keys.notes, keys.unknown(), *sentences)


SIZES = {"dim": "width of the model {}", "n_layers": "{} layers", "n_heads": "{} heads"}


def scaling(keys: Ledger, *, llama4: bool) -> Llama3 | None:
    """Return the schedule of use_scaled_rope; missing numbers are those of Meta's code."""
    factor = keys.number("rope_scaling_factor", "factor {}", 16 if llama4 else 8)
    high = keys.number("rope_high_freq_factor", "pairs that turn {} times in 8192 tokens are kept", 1 if llama4 else 4)
    if keys.flag("use_scaled_rope", "Llama 3's schedule: {}"):
        return Llama3(as_whole(factor), SCALED_FROM, high=as_whole(high))
    for key in ("rope_scaling_factor", "rope_high_freq_factor"):
        if keys.has(key):
            keys.contradict(f"{key} is {keys.peek(key)} and use_scaled_rope is not true; followed: use_scaled_rope")
    return None


def temperature_of(keys: Ledger) -> str:
    """Return the spec of layers without rotary: Llama 4's temperature if it is on, else "none"."""
    interval = keys.number("floor_scale", "its steps are {} tokens long", 8192)
    strength = keys.number("attn_scale", "its strength is {}", 0.1)
    if not keys.flag("attn_temperature_tuning", "a temperature in layers without rotary: {}"):
        return "none"
    return new_spec("step_temperature", interval=interval, strength=strength, form="llama4")
