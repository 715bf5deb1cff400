"""KV caches: growing, static and rolling ones differ in storage and give the same results."""

from posenc.cache.growing_cache import GrowingCache
from posenc.cache.layer import LayerCache, positions_in_cache, rollback_on_error
from posenc.cache.model_cache import Cache
from posenc.cache.slots import SlotCache

__all__ = ["Cache", "GrowingCache", "LayerCache", "SlotCache", "positions_in_cache", "rollback_on_error"]
