"""Lesson 6: attention from queries, keys, values and a softmax."""

import itertools
from types import ModuleType

import torch

from posenc.lessons import Numbers, answer, numbers, same

PLACE = 6


def softmax_sums_to_one_and_does_not_overflow(theirs: ModuleType) -> None:
    """softmax(x) is exp(x) over its sum along the last axis, with the largest score taken away first"""
    softmax = answer(theirs, "softmax")
    x = torch.tensor([[0.0, 1.0, 2.0], [3.0, 3.0, -1.0]])
    mistakes = {
        "the sum runs over the last axis, dim=-1, so that each row sums to 1": torch.softmax(x, 0),
        "the sum has to be that of each row, not of everything": x.exp() / x.exp().sum(),
        "exp is missing: these are the scores over their sum": x / x.sum(-1, keepdim=True),
        "the sum is missing: these are the exponentials": x.exp(),
    }
    same("softmax of two rows", softmax(x), torch.softmax(x, -1), mistakes)
    large = torch.as_tensor(softmax(torch.tensor([1000.0, 1000.0, 0.0])))
    message = "scores of 1000 give nan: exp(1000) is infinite; take the largest score away from all of them first"
    assert not large.isnan().any(), message
    same("softmax of 1000, 1000 and 0", large, torch.tensor([0.5, 0.5, 0.0]))


def causal_attention_sees_itself_and_the_past(theirs: ModuleType) -> None:
    """causal_attention(q, k, v) is softmax(q k^T / sqrt(d)) v with -inf for the logits of later keys"""
    causal_attention = answer(theirs, "causal_attention")
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 5, 8, generator=generator, dtype=torch.float64)
    past = torch.ones(5, 5).tril().bool()
    logits = q @ k.T

    def attended(logits: torch.Tensor, seen: torch.Tensor = past) -> torch.Tensor:
        return torch.softmax(logits.masked_fill(~seen, -torch.inf), -1) @ v

    scaled = logits / 8**0.5
    over_queries = torch.softmax(scaled.masked_fill(~past, -torch.inf), -2) @ v
    masked_behind = (torch.softmax(scaled, -1) * past) @ v
    mistakes = {
        "nothing is masked: a token must not see later ones": attended(scaled, torch.ones(5, 5).bool()),
        "it sees the future and not the past: the mask is the other way round": attended(scaled, past.T),
        "the softmax has to run over the keys, dim=-1, so that the weights of each query sum to 1": over_queries,
        "the division by sqrt(d) is missing": attended(logits),
        "the division is by sqrt(d), and not by d": attended(logits / 8),
        "mask the logits with -inf before the softmax; behind it the rows do not sum to 1": masked_behind,
        "a logit of 0 still has weight, because exp(0) is 1; mask with -inf": torch.softmax(scaled * past, -1) @ v,
    }
    given = causal_attention(q, k, v)
    sees_nothing = isinstance(given, torch.Tensor) and given.isnan().any()
    assert not sees_nothing, "the first token sees nothing, so its output is nan: a token sees itself too"
    same("causal_attention of five tokens", given, attended(scaled), mistakes)


EXERCISES = (softmax_sums_to_one_and_does_not_overflow, causal_attention_sees_itself_and_the_past)


@torch.inference_mode()
def maps_are_those_of_the_run(given: Numbers) -> None:
    """save ids [T], and with and without [T, T]: the weights of one head for these ids, by the run's model and by
    without_position(run.model, run.experiment, run.task); `layer` and `head` say which one, and are 0 if missing"""
    from posenc.lab.experiments.models import weights_of, without_position
    from posenc.lab.tasks import Batch

    run, ids = given.run, given.take("ids").long().view(1, -1)
    layer, head = (int(given.named.get(name, 0)) for name in ("layer", "head"))
    assert run.experiment.spec != "none", "the run has no positions to take away: its encoding is none"
    assert 0 <= ids.amin() and ids.amax() < run.task.vocab, f"ids of this run go from 0 to {run.task.vocab - 1}"

    def maps(model: torch.nn.Module) -> torch.Tensor:
        weights = weights_of(model, Batch(ids, ids, ids[0] == ids[0]))
        assert weights is not None, "the model of this run is a module of its own, which gives no weights"
        return torch.cat(weights)  # [layers, heads, T, T]

    right = {"with": maps(run.model), "without": maps(without_position(run.model, run.experiment, run.task))}
    layers, heads = right["with"].shape[:2]
    assert layer < layers and head < heads, f"the run has {layers} layers of {heads} heads, counted from 0"
    for (name, own), (other, others) in zip(right.items(), reversed(right.items()), strict=True):
        mistakes = {
            f"this is the map {other} positions": others[layer, head],
            "keys run along the rows: each row is a query, and sums to 1": own[layer, head].T,
            "this is the mean of all heads of the layer": own[layer].mean(0),
        }
        for at, h in itertools.product(range(layers), range(heads)):
            if (at, h) != (layer, head):
                mistakes[f"this is head {h} of layer {at}, and not head {head} of layer {layer}"] = own[at, h]
        same(f"the map {name} positions", given.take(name), own[layer, head], mistakes)


HAND_IN = numbers, (maps_are_those_of_the_run,)
