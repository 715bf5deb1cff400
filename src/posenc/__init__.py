"""posenc: positional encodings for PyTorch, exact and behind one interface, and a laboratory that measures them."""

from typing import Any

from posenc import masks, schedules
from posenc.attention import Attention
from posenc.cache import Cache
from posenc.catalogue import build, names
from posenc.encoding import Compose, Encoding, Keys, Shape
from posenc.kernels.reference import scaled_dot_product_attention
from posenc.model import Block, Decoder, Encoder, EncoderDecoder, TokenPositionEmbedding
from posenc.positions import Positions

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "Compose",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Encoding",
    "Keys",
    "Positions",
    "Shape",
    "TokenPositionEmbedding",
    "build",
    "masks",
    "names",
    "scaled_dot_product_attention",
    "schedules",
]


def __getattr__(name: str) -> Any:
    """The encodings by their class names (posenc.Rotary), each imported when it is first asked for."""
    from posenc.catalogue import class_names, find

    if name.startswith("_") or name not in (known := class_names()):
        raise AttributeError(f"module 'posenc' has no attribute '{name}'")
    return find(known[name])


def __dir__() -> list[str]:
    from posenc.catalogue import class_names

    return sorted([*__all__, *class_names()])
