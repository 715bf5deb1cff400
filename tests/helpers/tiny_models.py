"""Tiny models of transformers with random weights by which positions matter, and what they say of inputs."""

from typing import Any

import torch
from torch import Tensor

from posenc.checkpoints.kinds.calls import cache_name


def made(name: str, kind: str = "Model", part: str = "", **options: Any) -> Any:
    """made("Bert"): a BertModel of a BertConfig; `part` is for configs of towers, as SwinVision's."""
    import transformers

    from posenc.checkpoints.models.skeleton import model_class

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}{part}Config")(**options)
    # Some classes of models are not among the package's own names.
    model = (getattr(transformers, f"{name}{kind}", None) or model_class(config))(config).eval()
    for parameter in model.parameters():
        # Tables of sines are no weights.
        if parameter.dim() > 1 and parameter.requires_grad:
            torch.nn.init.normal_(parameter, std=0.2)
    return model


@torch.no_grad()
def states(model: Any, **given: Any) -> Tensor:
    out = model(**given)
    return out.last_hidden_state if hasattr(out, "last_hidden_state") else out[0]


def behind(model: Any, cache: Any, ids: Tensor, **given: Any) -> Any:
    """What a model gives behind a cache, by the name that it has for one."""
    return model(input_ids=ids, **{cache_name(model): cache}, **given)


def cache_from(model: Any, ids: Tensor, **given: Any) -> Any:
    """The cache that a model makes itself."""
    return getattr(model(input_ids=ids, **given), cache_name(model))
