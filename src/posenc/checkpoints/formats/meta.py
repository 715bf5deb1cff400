"""Meta's params.json, in which the Llama models are released: rotary, interleaved, for all of them."""

from collections.abc import Mapping
from typing import Any

from posenc.checkpoints.vocabulary.bounds import within_bounds
from posenc.checkpoints.vocabulary.ledger import Ledger
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.checkpoints.vocabulary.specs import possible, rotary_spec, spec_of, whole
from posenc.encoding.base import Shape
from posenc.schedules.llama3 import Llama3

SCALED_FROM = 8192
"""The trained length that Meta's scaling starts from; it stands in the code of the models and not in the file."""


def is_it(given: Mapping[str, Any]) -> bool:
    return {"dim", "n_layers", "n_heads"} <= set(given) and "model_type" not in given


def read(given: Mapping[str, Any]) -> Reading:
    """What a params.json says of positions: Llama 1 and 2 (no rope_theta), 3, 3.1 (use_scaled_rope) and 4.

    Numbers that the file leaves out are those of Meta's model code: base 10,000 (Llama 2), factor 8 and high 4 (Llama
    3.1), 16 and 1 (Llama 4), low 1, trained length 8192. Raises CannotRead for heads that do not divide the width.
    """
    within_bounds(given)
    keys = Ledger(given)
    dim, layers, heads = (keys.size(key, words) for key, words in SIZES.items())
    if dim % heads:
        raise CannotRead(f"n_heads must divide dim, got n_heads={heads} and dim={dim}")
    kv_heads = keys.size("n_kv_heads", "{} key and value heads", heads)
    head_dim = dim // heads
    if keys.whole("head_dim", "{} channels a head", head_dim) != head_dim:
        keys.contradict(f"head_dim is {given['head_dim']} and dim / n_heads is {head_dim}; followed: dim / n_heads")
    base = keys.number("rope_theta", "rotary base {}", 10_000)
    interval = keys.whole("nope_layer_interval", "every {}-th layer has no rotary")
    length = keys.whole("max_seq_len", "trained length {} tokens")
    with possible("use_scaled_rope"):
        schedule = scaling(keys, llama4=interval is not None)
    with possible("rope_theta"):
        rotary = rotary_spec(head_dim=head_dim, base=base, layout="interleaved", schedule=schedule)
        temperature = temperature_of(keys)
    chunk = keys.whole("attention_chunk_size", "layers with rotary attend within chunks of {} tokens") or None
    near, far = Layer(rotary, head_dim, chunk=chunk), Layer(temperature, head_dim)
    for key in ("vision_args", "vision_model"):
        if keys.has(key):
            keys.take(key, "a vision tower")
            keys.leave(f"the vision tower that {key} describes")
    for key in ("vision_chunk_size", "vision_max_num_chunks", "vision_num_cross_attention_layers"):
        if keys.peek(key, -1) not in (-1, 4):
            keys.leave(f"images: {key}={given[key]}")
        keys.take(key, "images, cut into pieces")
    stack = tuple(far if interval and (index + 1) % interval == 0 else near for index in range(layers))
    shape = Shape(dim, heads, head_dim, length or 1)
    part = Part("", shape, stack, kv_heads, length)
    with possible("the file"):
        part.encoding(0)
    told = tuple(keys.contradictions), tuple(keys.not_covered)
    return Reading("meta", "llama4" if interval else "llama", (part,), keys.understood, keys.unknown(), *told)


SIZES = {"dim": "width of the model {}", "n_layers": "{} layers", "n_heads": "{} heads"}


def scaling(keys: Ledger, *, llama4: bool) -> Llama3 | None:
    """The schedule of use_scaled_rope, with the numbers of the code where the file has none."""
    factor = keys.number("rope_scaling_factor", "factor {}", 16 if llama4 else 8)
    high = keys.number("rope_high_freq_factor", "pairs that turn {} times in 8192 tokens are kept", 1 if llama4 else 4)
    if keys.flag("use_scaled_rope", "Llama 3's schedule: {}"):
        return Llama3(whole(factor), SCALED_FROM, high=whole(high))
    for key in ("rope_scaling_factor", "rope_high_freq_factor"):
        if keys.has(key):
            keys.contradict(f"{key} is {keys.peek(key)} and use_scaled_rope is not true; followed: use_scaled_rope")
    return None


def temperature_of(keys: Ledger) -> str:
    """What the layers without rotary have: Llama 4's temperature where it is switched on."""
    interval = keys.number("floor_scale", "its steps are {} tokens long", 8192)
    strength = keys.number("attn_scale", "its strength is {}", 0.1)
    if not keys.flag("attn_temperature_tuning", "a temperature in layers without rotary: {}"):
        return "none"
    return spec_of("step_temperature", interval=interval, strength=strength, form="llama4")
