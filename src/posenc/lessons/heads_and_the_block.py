"""Lesson 7: heads, and the block around them."""

import math
from functools import partial
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

from posenc.foreign import read
from posenc.lessons import TrainedModel, answer, compare, read_model

PLACE = 7


def split_heads_cuts_channels(answers: ModuleType) -> None:
    """split_heads(x, heads) gives head h the channels h d/H to (h + 1) d/H of every token"""
    split_heads = answer(answers, "split_heads")
    x = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))
    right = torch.stack([x[..., 2 * h : 2 * h + 2] for h in range(3)], 1)
    apart = torch.stack([x[..., h::3] for h in range(3)], 1)
    mistakes = {
        "a view alone cuts the list of tokens: split the channels of each, then transpose": x.reshape(2, 3, 5, 2),
        "heads stand behind tokens; transpose the two axes": x.reshape(2, 5, 3, 2),
        "each head takes channels that lie together, and not every third one": apart,
    }
    compare("split_heads of [2, 5, 6] into 3 heads", split_heads(x, 3), right, mistakes)


def parameters_do_not_depend_on_heads(answers: ModuleType) -> None:
    """parameters(dim, heads) is four matrices of dim x dim, for queries, keys, values and the output"""
    parameters = answer(answers, "parameters")
    for dim, heads in ((64, 2), (512, 8)):
        mistakes = {
            "heads share the channels, so more heads cost no parameters": 4 * dim * dim * heads,
            "each head reads all dim channels, and there are as many heads as fill dim again": 4 * dim * dim // heads,
            "the matrix of the output is missing": 3 * dim * dim,
            "the question is without biases": 4 * dim * (dim + 1),
            "these are the numbers of one matrix": dim * dim,
        }
        compare(f"parameters({dim}, {heads})", parameters(dim, heads), 4 * dim * dim, mistakes)


EXERCISES = (split_heads_cuts_channels, parameters_do_not_depend_on_heads)


def six_layers_are_stacked(model: TrainedModel) -> None:
    """stack six blocks or more, each with weights of its own: nn.ModuleList(Block(...) for _ in range(6))"""
    stacks = [m for m in model.module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    weights = [[part for part in stack if next(part.parameters(), None) is not None] for stack in stacks]
    layers = max(weights, key=len, default=[])
    weight = len(set(layers))
    assert weight == len(layers), f"{len(layers)} layers share {weight}; [block] * 6 is one block six times"
    assert weight >= 6, f"six layers are asked for, and it has {weight}"


def text_tokens(model: TrainedModel) -> Tensor:
    """Return the tokens [N] of the text: its bytes, or the result of the class's own `encode`."""
    if model.run is not None:
        return torch.arange(256)
    text, encode = read(str(model.text)), getattr(model.module, "encode", None)
    return torch.tensor(list(text) if encode is None else encode(text.decode()))


def some_ids(model: TrainedModel) -> Tensor:
    return torch.randint(int(text_tokens(model).max()) + 1, (8, 32), generator=Generator().manual_seed(0))


@torch.inference_mode()
def the_future_is_hidden(model: TrainedModel) -> None:
    """give attention a causal mask in every layer: a token sees itself and those before it"""
    ids = some_ids(model)
    result, shape = model.scores(ids), "[8, 32, vocab]"
    assert result.dim() == 3 and result.shape[:2] == ids.shape, (
        f"of ids [8, 32] it gives {list(result.shape)}, not {shape}"
    )
    changed_ids = model.scores(torch.cat((ids[:, :-1], (ids[:, -1:] + 1) % ids.max()), 1))
    prefix = torch.allclose(changed_ids[:, :-1], result[:, :-1], atol=1e-4)
    assert prefix, "another last token changes what is said before it: it sees the future"


@torch.inference_mode()
def the_order_of_the_past_counts(model: TrainedModel) -> None:
    """add positions to the tokens, or turn queries and keys by them"""
    ids = some_ids(model)
    swapped_ids = torch.cat((ids[:, :-1].flip(1), ids[:, -1:]), 1)
    change = (model.scores(ids)[:, -1] - model.scores(swapped_ids)[:, -1]).abs().max().item()
    assert change > 1e-4, "the tokens before the last one in another order give the same answer: positions are missing"


@torch.inference_mode()
def new_text_is_predicted(model: TrainedModel) -> None:
    """train longer: on new text it has to need fewer bits than counts, which know no order"""
    if model.run is not None:
        from posenc.lab.evaluation.evaluate import held_out_bits

        bits = held_out_bits(model.module, model.run.task, model.run.experiment.train_length, total=4096)
        bar, frequencies = model.run.task.text.bigram_bits, "counts of pairs of bytes"
    else:
        ids, length = text_tokens(model), getattr(model.module, "length", 32)
        vocabulary, new = ids.tensor_split([len(ids) * 9 // 10])
        windows = new[: len(new) // (length + 1) * (length + 1)].view(-1, length + 1)[:200]
        scores, read_, expected = model.scores(windows[:, :-1]), windows[:, :-1], windows[:, 1:]
        copies = (scores.argmax(-1) == read_).float().mean().item()
        assert copies < 0.5, "it says the token that it has just read: the targets are the ids moved by one, ids[:, 1:]"
        bits = F.cross_entropy(scores.flatten(0, 1), expected.flatten()).item() / math.log(2)
        counts = torch.bincount(vocabulary, minlength=int(ids.max()) + 1).double() + 0.1
        bar, frequencies = -(counts / counts.sum()).log2()[expected].mean().item(), "counts of tokens"
    assert bits < bar, f"{bits:.2f} bits for each new token, and {frequencies} need {bar:.2f}"
    print(f"{bits:.2f} bits for each new token; {frequencies} need {bar:.2f}")


HAND_IN = (
    partial(read_model, of_text=True),
    (six_layers_are_stacked, the_future_is_hidden, the_order_of_the_past_counts, new_text_is_predicted),
)
