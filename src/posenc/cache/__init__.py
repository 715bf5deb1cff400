"""KV caches: Keys that take in the next tokens. Growing, static and rolling ones differ in storage, not in truth."""

from posenc.cache.growing import GrowingCache
from posenc.cache.layer import LayerCache, held_by, unchanged_if_refused
from posenc.cache.of_model import Cache
from posenc.cache.slots import SlotCache

__all__ = ["Cache", "GrowingCache", "LayerCache", "SlotCache", "held_by", "unchanged_if_refused"]
