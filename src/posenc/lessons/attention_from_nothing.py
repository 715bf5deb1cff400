"""Lesson 6: attention from queries, keys, values and a softmax."""

import itertools
from types import ModuleType

import torch

from posenc.lessons import Numbers, answer, compare, read_numbers

PLACE = 6


def softmax_sums_to_one_and_does_not_overflow(answers: ModuleType) -> None:
    """softmax(x) is exp(x) over its sum along the last axis, with the largest score taken away first"""
    softmax = answer(answers, "softmax")
    x = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, -1.0]])
    mistakes = {
        "the sum runs over the last axis, dim=-1, so that each row sums to 1": torch.softmax(x, 0),
        "the sum has to be that of each row, not of everything": x.exp() / x.exp().sum(),
        "exp is missing: these are the scores over their sum": x / x.sum(-1, keepdim=True),
        "the sum is missing: these are the exponentials": x.exp(),
    }
    compare("softmax of two rows", softmax(x), torch.softmax(x, -1), mistakes)
    large = torch.as_tensor(softmax(torch.tensor([1000.0, 1000.0, 0.0])))
    message = "scores of 1000 give nan: exp(1000) is infinite; take the largest score away from all of them first"
    assert not large.isnan().any(), message
    compare("softmax of 1000, 1000 and 0", large, torch.tensor([0.5, 0.5, 0.0]))


def causal_attention_sees_itself_and_the_past(answers: ModuleType) -> None:
    """causal_attention(q, k, v) is softmax(q k^T / sqrt(d)) v with -inf for the logits of later keys"""
    causal_attention = answer(answers, "causal_attention")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64)
    past = torch.ones(5, 5).tril().bool()
    logits = q @ k.T

    def attention(logits: torch.Tensor, visible: torch.Tensor = past) -> torch.Tensor:
        return torch.softmax(logits.masked_fill(~visible, -torch.inf), -1) @ v

    scores = logits / 8**0.5
    over_queries = torch.softmax(scores.masked_fill(~past, -torch.inf), -2) @ v
    masked_behind = (torch.softmax(scores, -1) * past) @ v
    mistakes = {
        "nothing is masked: a token must not see later ones": attention(scores, torch.ones(5, 5).bool()),
        "it sees the future and not the past: the mask is the other way round": attention(scores, past.T),
        "the softmax has to run over the keys, dim=-1, so that the weights of each query sum to 1": over_queries,
        "the division by sqrt(d) is missing": attention(logits),
        "the division is by sqrt(d), and not by d": attention(logits / 8),
        "mask the logits with -inf before the softmax; behind it the rows do not sum to 1": masked_behind,
        "a logit of 0 still has weight, because exp(0) is 1; mask with -inf": torch.softmax(scores * past, -1) @ v,
    }
    result = causal_attention(q, k, v)
    sees_nothing = isinstance(result, torch.Tensor) and result.isnan().any()
    assert not sees_nothing, "the first token sees nothing, so its output is nan: a token sees itself too"
    compare("causal_attention of five tokens", result, attention(scores), mistakes)


EXERCISES = (softmax_sums_to_one_and_does_not_overflow, causal_attention_sees_itself_and_the_past)


@torch.inference_mode()
def maps_are_those_of_the_run(result: Numbers) -> None:
    """Save ids [T], and one head's attention weights for them: with [T, T] and without [T, T].

    `with` comes from the run's model, `without` from without_position(run.model, run.experiment, run.task). `layer` and
    `head` choose the head; the default is 0."""
    from posenc.lab.experiments.models import attention_weights, without_position
    from posenc.lab.tasks import Batch

    run, ids = result.run, result.take("ids").long().view(1, -1)
    layer, head = (int(result.named.get(name, 0)) for name in ("layer", "head"))
    assert run.experiment.spec != "none", "the run has no positions to take away: its encoding is none"
    assert 0 <= ids.amin() and ids.amax() < run.task.vocab, f"ids of this run go from 0 to {run.task.vocab - 1}"

    def maps(model: torch.nn.Module) -> torch.Tensor:
        weights = attention_weights(model, Batch(ids, ids, ids[0] == ids[0]))
        assert weights is not None, "the model of this run is a module of its own, which gives no weights"
        return torch.cat(weights)  # [layers, heads, T, T]

    right = {"with": maps(run.model), "without": maps(without_position(run.model, run.experiment, run.task))}
    layers, heads = right["with"].shape[:2]
    assert layer < layers and head < heads, f"the run has {layers} layers of {heads} heads, counted from 0"
    for (name, run_maps), (other_layer, other_heads) in zip(right.items(), reversed(right.items()), strict=True):
        mistakes = {
            f"this is the map {other_layer} positions": other_heads[layer, head],
            "keys run along the rows: each row is a query, and sums to 1": run_maps[layer, head].T,
            "this is the mean of all heads of the layer": run_maps[layer].mean(0),
        }
        for at, h in itertools.product(range(layers), range(heads)):
            if (at, h) != (layer, head):
                mistakes[f"this is head {h} of layer {at}, and not head {head} of layer {layer}"] = run_maps[at, h]
        compare(f"the map {name} positions", result.take(name), run_maps[layer, head], mistakes)


HAND_IN = read_numbers, (maps_are_those_of_the_run,)
