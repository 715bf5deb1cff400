"""Tiny transformers models, with random weights large enough that positions matter, and their outputs."""

from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.kinds.calls import cache_argument


def tiny_model(name: str, kind: str = "Model", part: str = "", **options: Any) -> Any:
    """Return a model: tiny_model("Bert") is a BertModel; `part` is for configs of towers, such as SwinVision's."""
    import transformers

    from posenc.checkpoints.models.skeleton import bare_model_class

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}{part}Config")(**options)
    # transformers does not export every model class.
    model = (getattr(transformers, f"{name}{kind}", None) or bare_model_class(config))(config).eval()
    for parameter in model.parameters():
        # Sinusoidal tables are no weights.
        if parameter.dim() > 1 and parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def states(model: Any, **inputs: Any) -> Tensor:
    out = model(**inputs)
    return out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]


def call_with_cache(model: Any, cache: Any, ids: Tensor, **inputs: Any) -> Any:
    """Call a model with a KV cache, passed by this model's name of the argument."""
    return model(input_ids=ids, **{cache_argument(model): cache}, **inputs)


def model_cache(model: Any, ids: Tensor, **inputs: Any) -> Any:
    """Return the KV cache that a model makes itself."""
    return getattr(model(input_ids=ids, **inputs), cache_argument(model))
