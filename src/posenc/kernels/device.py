"""The device of a computation."""

from torch import Tensor


def device_of(x: Tensor) -> str:
    """Return the type of device of a tensor: "cpu", "cuda", ...; tests patch it to imitate a GPU."""
    return x.device.type
