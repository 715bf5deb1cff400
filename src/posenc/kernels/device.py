"""Where tensors are computed with."""

from torch import Tensor


def device_of(x: Tensor) -> str:
    """The kind of device whose kernels take a tensor: "cpu", "cuda", ...; tests have a GPU stand in here."""
    return x.device.type
