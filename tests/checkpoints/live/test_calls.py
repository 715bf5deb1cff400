"""Calls of live models, by the argument names before and since transformers 5.24."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posenc.catalogue import build
from posenc.checkpoints.kinds.added.sine_module import ComputedSines, call_form, match_sines, sample_calls
from posenc.checkpoints.kinds.calls import PositionsFromMask, cache_argument
from posenc.checkpoints.live.cached_positions import COORDS_ATTRIBUTE, KEYWORD, PositionHooks
from posenc.checkpoints.measures.perplexity import PrefixCache, predictions
from posenc.encoding.base import Shape


class TokenCache(list):
    """A cache of token ids with the methods that decoders call."""

    def get_seq_length(self) -> int:
        return len(self)

    def get_mask_sizes(self, new: int, layer: int) -> tuple[int, int]:
        return len(self) + new, 0


class Newer(nn.Module):
    """A decoder that predicts the number of earlier tokens; with the names since 5.24."""

    config, device = SimpleNamespace(num_hidden_layers=1, hidden_size=8), torch.device("cpu")

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, cache=None, **kwargs) -> SimpleNamespace:
        return self.answer(input_ids, cache, "cache")

    def answer(self, ids: Tensor, cache: TokenCache | None, name: str) -> SimpleNamespace:
        tokens = cache or TokenCache()
        counts = torch.arange(len(tokens), len(tokens) + ids.shape[1])
        logits = nn.functional.one_hot(counts, 16).float()[None]
        return SimpleNamespace(logits=logits, **{name: TokenCache([*tokens, *ids[0].tolist()])})


class Former(Newer):
    """The same with the names before 5.24, which other code still has."""

    def forward(
        self, input_ids=None, attention_mask=None, position_ids=None, past_key_values=None, **kwargs
    ) -> SimpleNamespace:
        return self.answer(input_ids, past_key_values, "past_key_values")


CALLS = {
    "newer": (Newer(), "cache"),
    "former": (Former(), "past_key_values"),
    # A caller may still use the former name.
    "newer by the former": (Newer(), "past_key_values"),
}


@pytest.mark.parametrize(("model", "name"), list(CALLS.values())[:2])
def test_a_model_says_what_it_calls_its_cache(model: nn.Module, name: str) -> None:
    assert cache_argument(model) == name


@pytest.mark.parametrize(("model", "name"), CALLS.values(), ids=CALLS)
def test_tokens_behind_a_cache_are_counted_from_the_mask_of_all(model: nn.Module, name: str) -> None:
    ids, mask, cache = torch.ones(1, 2).long(), torch.tensor([[0, 0, 1, 1, 1]]), TokenCache([7, 7, 7])
    count = PositionsFromMask(0, model)
    assert count(model, (), {"input_ids": ids, "attention_mask": mask, name: cache})[1]["position_ids"].tolist() == [
        [1, 2]
    ]
    assert count(model, (ids, mask, None, cache), {})[0][2].tolist() == [[1, 2]]


@pytest.mark.parametrize(("model", "name"), CALLS.values(), ids=CALLS)
def test_attention_on_unturned_keys_goes_on_behind_a_cache(model: nn.Module, name: str) -> None:
    cache = TokenCache([7, 7, 7])
    setattr(cache, COORDS_ATTRIBUTE, torch.tensor([[0, 1, 2]]))
    inputs = {"input_ids": torch.ones(1, 2).long(), name: cache}
    step = PositionHooks(model, (build("rotary", Shape(8, 1, 8, 16)),), None).before_pass(model, (), inputs)[1][KEYWORD]
    assert step.at.coords[0, :, 0].tolist() == [3, 4] and step.sizes == [(5, 0)]


@pytest.mark.parametrize("model", [Newer(), Former()], ids=["newer", "former"])
def test_a_text_is_read_chunk_after_chunk_behind_a_cache(model: nn.Module) -> None:
    logits = torch.cat([logits for logits, _ in predictions(model, torch.arange(8), 3, None, PrefixCache())])
    assert logits.argmax(-1).tolist() == [0, 1, 2, 3, 4, 5, 6]


class NewerSines(nn.Module):
    embedding_dim = 8

    def forward(self, inputs_embeds: Tensor, cache_length: int = 0, position_ids: Any = None) -> Tensor:
        tokens = inputs_embeds.shape[1]
        places = torch.arange(cache_length, cache_length + tokens) if position_ids is None else position_ids
        angles = places.view(-1, tokens, 1).double() * 10.0 ** -torch.arange(4).double()
        return torch.cat((angles.sin(), angles.cos()), -1).float().expand(len(inputs_embeds), -1, -1)


class FormerSines(NewerSines):
    def forward(self, inputs_embeds: Tensor, past_key_values_length: int = 0, position_ids: Any = None) -> Tensor:
        return super().forward(inputs_embeds, past_key_values_length, position_ids)


@pytest.mark.parametrize(
    ("module", "name"), [(NewerSines(), "cache_length"), (FormerSines(), "past_key_values_length")]
)
def test_sines_count_on_from_the_length_of_a_cache(module: nn.Module, name: str) -> None:
    assert call_form(module) == "row" and [name in kwargs for kwargs in sample_calls("row", module)] == [True]
    spec, places, _ = match_sines(module, "row")
    sines = ComputedSines(build(spec, Shape(8, 1, 8, 16)), places, module)
    expected = [f(at / 10**pair) for at in (5, 6, 7) for f in (math.sin, math.cos) for pair in range(4)]
    assert sines(torch.zeros(1, 3, 8), **{name: 5}).flatten().tolist() == pytest.approx(expected, abs=1e-6)
