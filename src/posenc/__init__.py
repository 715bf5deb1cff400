"""posenc: positional encodings for PyTorch, exact and behind one interface, and a laboratory that measures them.

Every public name is imported when it is first asked for, so that `import posenc` costs nothing and needs nothing.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc import coordinate_maps, masks, presets, schedules, testing
    from posenc.attention import Attention
    from posenc.cache import Cache
    from posenc.catalogue import build, names
    from posenc.embedding import TokenPositionEmbedding
    from posenc.encoding import Compose, Encoding, Keys, OnHeads, Shape
    from posenc.kernels.chosen_weights import Chosen
    from posenc.kernels.reference import scaled_dot_product_attention
    from posenc.masks import Mask
    from posenc.model import Block, Decoder, Encoder, EncoderDecoder
    from posenc.positions import Positions
    from posenc.presets import preset
    from posenc.sizes import Sizes

__version__ = "0.1.0"

HOMES = {
    "Attention": "attention",
    "Block": "model",
    "Cache": "cache",
    "Chosen": "kernels.chosen_weights",
    "Compose": "encoding",
    "Decoder": "model",
    "Encoder": "model",
    "EncoderDecoder": "model",
    "Encoding": "encoding",
    "Keys": "encoding",
    "Mask": "masks",
    "OnHeads": "encoding",
    "Positions": "positions",
    "Shape": "encoding",
    "Sizes": "sizes",
    "TokenPositionEmbedding": "embedding",
    "build": "catalogue",
    "names": "catalogue",
    "preset": "presets",
    "scaled_dot_product_attention": "kernels.reference",
}
MODULES = ("coordinate_maps", "masks", "presets", "schedules", "testing")

__all__ = [
    "Attention",
    "Block",
    "Cache",
    "Chosen",
    "Compose",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Encoding",
    "Keys",
    "Mask",
    "OnHeads",
    "Positions",
    "Shape",
    "Sizes",
    "TokenPositionEmbedding",
    "build",
    "coordinate_maps",
    "masks",
    "names",
    "preset",
    "presets",
    "scaled_dot_product_attention",
    "schedules",
    "testing",
]


def __getattr__(name: str) -> Any:
    """A public name, or an encoding by its class name (posenc.Rotary), imported now."""
    if name in MODULES:
        return importlib.import_module(f"posenc.{name}")
    if name in HOMES:
        return getattr(importlib.import_module(f"posenc.{HOMES[name]}"), name)
    # `from posenc import terminal` asks here for a module first, which must not cost an import of torch.
    if name[:1].isupper():
        from posenc.catalogue import class_names, find

        if name in (known := class_names()):
            return find(known[name])
    raise AttributeError(f"module 'posenc' has no attribute '{name}'")


def __dir__() -> list[str]:
    from posenc.catalogue import class_names

    return sorted([*__all__, *class_names()])
