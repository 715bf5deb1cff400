"""The parts of a block besides attention: norms, feed-forward layers, and the names of parts in version 0.2."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import checks
from posenc.model.config import FEED_FORWARDS, GATED_KINDS, Config


def norm_layer(
    width: int, config: Config, has_norm: bool = True, *, device: torch.device | str | None, dtype: torch.dtype | None
) -> nn.Module | None:
    """Return the norm of vectors [..., width] in a model of this config; None without one."""
    if not has_norm:
        return None
    if config.norm == "rms":
        return nn.RMSNorm(width, eps=config.norm_eps, device=device, dtype=dtype)
    return nn.LayerNorm(width, eps=config.norm_eps, bias=config.has_bias("norm"), device=device, dtype=dtype)


def init_layers(config: Config, layers: Iterable[nn.Module | None], *, ends: bool = False) -> None:
    """Initialise linear and embedding layers by the `init` of a config.

    ends  whether their output is added to the residual stream

    "torch" changes nothing, and "xavier" no embeddings.
    """
    if config.init == "torch":
        return
    std = 0.02 if config.init in ("normal", "gpt2") else (2 / (5 * config.dim)) ** 0.5
    if ends and config.init == "gpt2":
        std /= (2 * config.layers) ** 0.5
    elif ends and config.init == "small":
        std = 2 / (config.layers * config.dim**0.5)
    for layer in layers:
        if isinstance(layer, (nn.Linear, nn.Embedding)) and config.init != "xavier":
            nn.init.normal_(layer.weight, std=std)
        elif isinstance(layer, nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
        if isinstance(layer, nn.Linear) and layer.bias is not None:
            nn.init.zeros_(layer.bias)


class LoadsOldNames(nn.Module):
    """A module that also loads state dicts with the part names of version 0.2."""

    old_names: ClassVar[Mapping[str, str]] = {}
    """Old name of a part -> its present name."""

    def _load_from_state_dict(
        self, state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
    ) -> None:
        rename_old(state_dict, self, prefix.removesuffix("."))
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )


def rename_old(entries: dict[str, Any], model: nn.Module, path: str = "") -> None:
    """Rename a model's entries below a path, from the names of version 0.2 to present ones."""
    for place, module in model.named_modules(prefix=path):
        for old, new in module.old_names.items() if isinstance(module, LoadsOldNames) else ():
            old_prefix, new_prefix = (f"{place}.{name}." if place else f"{name}." for name in (old, new))
            for name in [name for name in entries if name.startswith(old_prefix)]:
                entries[new_prefix + name.removeprefix(old_prefix)] = entries.pop(name)


gelu_tanh = partial(F.gelu, approximate="tanh")

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_tanh": gelu_tanh,
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "swiglu": F.silu,
    "geglu": F.gelu,
    "geglu_tanh": gelu_tanh,
}


class FeedForward(checks.ChecksArguments, LoadsOldNames):
    """A feed-forward layer, dim -> intermediate_size -> dim, for each token alone.

    kind  "gelu", "relu", "relu2":  W_down f(W_up x), with relu2 the square of relu
          "swiglu", "geglu":        W_down (f(W_gate x) * W_up x), f = SiLU or GELU
          "gelu_tanh", "geglu_tanh":  GELU by its approximation, x/2 (1 + tanh((2/pi)^1/2 (x + 0.044715 x^3)))

    x [..., dim] -> [..., dim]. Raises ValueError for sizes below 1 and unknown kinds.
    Source: Shazeer 2020, arXiv:2002.05202; relu2: So et al. 2021, arXiv:2109.08668.

    >>> FeedForward(8, 24, kind="swiglu", bias=False)(torch.randn(2, 3, 8)).shape
    torch.Size([2, 3, 8])
    """

    old_names: ClassVar = {"0": "up_proj", "2": "down_proj"}

    def __init__(
        self,
        dim: int,
        intermediate_size: int,
        dropout: float = 0.0,
        *,
        kind: str = "gelu",
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        checks.whole("dim", dim, 1), checks.whole("intermediate_size", intermediate_size, 1)
        checks.one_of("kind", kind, FEED_FORWARDS)
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.kind = kind
        self.up_proj = nn.Linear(dim, intermediate_size, **factory)
        self.gate_proj = nn.Linear(dim, intermediate_size, **factory) if kind in GATED_KINDS else None
        self.down_proj = nn.Linear(intermediate_size, dim, **factory)
        self.dropout = checks.share("dropout", dropout)

    def forward(self, x: Tensor) -> Tensor:
        activation = ACTIVATIONS[self.kind]
        if self.gate_proj is None:
            inner = activation(self.up_proj(x))
        else:
            inner = activation(self.gate_proj(x)) * self.up_proj(x)
        x = self.down_proj(inner)
        return F.dropout(x, self.dropout) if self.training and self.dropout else x

    def extra_repr(self) -> str:
        return f"kind={self.kind!r}, dropout={self.dropout}"
