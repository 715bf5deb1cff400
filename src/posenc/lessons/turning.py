"""Lesson 11: RoPE turns queries and keys, so that a logit sees the distance."""

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from posenc import Rotary
from posenc.lessons import answer, check_shape, compare, definition, nearest_of
from posenc.lessons._positional import WHERE, build_module, place_options

PLACE = 11


def rotary_turns_neighbouring_channels(answers: ModuleType) -> None:
    """rotary(x, base) turns the pair (2k, 2k + 1) of token p by p base^(-2k/channels) radians"""
    rotary = answer(answers, "rotary")
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))

    def rotation_matrix(layout: str, base: float) -> torch.Tensor:
        return Rotary(8, base=base, layout=layout).query(x[None, None])[0, 0]

    result = check_shape("rotary(x, 100)", rotary(x, 100.0), (12, 8)).to(x)
    assert not torch.allclose(result, rotation_matrix("interleaved", 100.0)[:, [0, 2, 4, 6, 1, 3, 5, 7]], atol=1e-4), (
        "the pairs are turned rightly and put out in another order: 2k and 2k + 1 go back to their own places"
    )
    assert torch.allclose(result[0], x[0], atol=1e-5), "the token at position 0 must stay as it is: its angle is 0"
    assert torch.allclose(result.norm(dim=1), x.norm(dim=1), atol=1e-4), (
        "lengths change, so it is no rotation: a pair (a, b) becomes (a cos - b sin, b cos + a sin)"
    )
    assert not torch.allclose(result, rotation_matrix("half", 100.0), atol=1e-4), (
        "it pairs channel k with k + channels/2: in the interleaved layout 2k goes with 2k + 1"
    )
    inverse = Rotary(8, base=100.0, layout="interleaved").query(x[None, None], positions=-torch.arange(12.0))[0, 0]
    assert not torch.allclose(result, inverse, atol=1e-4), (
        "it turns the other way round: a gets - b sin, and b gets + a sin"
    )
    assert torch.allclose(result, rotation_matrix("interleaved", 100.0), atol=1e-4), (
        "the angles are others: pair k of token p turns by p base^(-2k/channels), k from 0"
    )
    result = rotary(x, 10_000.0).to(x)
    assert torch.allclose(result, rotation_matrix("interleaved", 10_000.0), atol=1e-4), "it does not read the base"


def to_half_puts_even_channels_first(answers: ModuleType) -> None:
    """to_half(channels) puts channels 2k and 2k + 1, an interleaved pair, at k and k + half"""
    to_half = answer(answers, "to_half")
    result = [int(channel) for channel in to_half(8)]
    assert sorted(result) == list(range(8)), f"each of the 8 channels has to stand in it once, got {result}"
    back = [0, 4, 1, 5, 2, 6, 3, 7]
    assert result != back, "this is the way back, from half to interleaved: place k takes channel 2k"
    assert result == [0, 2, 4, 6, 1, 3, 5, 7], (
        f"got {result}: the first channel of every pair comes first, then the second"
    )


EXERCISES = (rotary_turns_neighbouring_channels, to_half_puts_even_channels_first)


LAYOUTS = ("half", "interleaved")


def rotation(x: Tensor, layout: str, angles: str = "", share: int = 2, first: int = 0, way: int = 1) -> Tensor:
    """Return x with pair k of token p turned by (first + way p) base^(-share k/channels). `layout` pairs channels."""
    channels = x.shape[-1]
    a = 10_000.0 ** (-share * torch.arange(channels // 2).double() / channels)
    a = (first + way * torch.arange(len(x)).double())[:, None] * a
    a = torch.cat((a, a), -1) if (angles or layout) == "half" else a.repeat_interleave(2, -1)
    front, back = x.chunk(2, -1)
    quarter = torch.stack((-x[:, 1::2], x[:, 0::2]), -1).flatten(1)
    quarter = torch.cat((-back, front), -1) if layout == "half" else quarter
    return x * a.cos() + quarter * a.sin()


def call(function: Callable[..., Any], inputs: Iterable[Tensor], options: Mapping[str, Any]) -> Sequence[Any]:
    """Return the function's result for [tokens, channels], or for [batch, heads, tokens, channels] if needed."""
    try:
        outputs = function(*inputs, **options)
    except Exception:
        outputs = function(*(x[None, None] for x in inputs), **options)
        outputs = [x[0, 0] for x in outputs] if isinstance(outputs, (tuple, list)) else outputs[0, 0]
    return outputs if isinstance(outputs, (tuple, list)) else (outputs,)


def queries_and_keys_are_turned(function: Callable[..., Any]) -> None:
    """rope(x), rope(q, k) or attend(q, k, v) turns pair k of queries and keys by p base^(-2k/channels).

    Tensors are [tokens, channels] or [batch, heads, tokens, channels]. Values stay as they are; `offset` or `positions`
    give the positions of the tokens."""
    function = build_module(function, 8)[0].forward if inspect.isclass(function) else function
    parameters = inspect.signature(function).parameters
    required_names = [name for name, p in parameters.items() if p.default is p.empty and p.kind < 2]
    options = {"base": 10_000.0} if "base" in required_names else {}
    tensors = [name for name in required_names if name not in ("base", *WHERE)]
    takes = ", ".join(required_names) or "nothing"
    assert 0 < len(tensors) < 4, f"it takes {takes}; rope(x), rope(q, k) or attend(q, k, v) is asked for"
    inputs = torch.randn(3, 7, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)[: len(tensors)]
    outputs = call(function, inputs, options | place_options(parameters, 0, 7))
    if len(tensors) == 3:
        attention_is_of_turned(*inputs, outputs[0])
        return
    for name, x, of_x in zip(tensors, inputs, outputs, strict=False):
        mistakes = {
            "nothing is turned: positions number the tokens, the axis before the last": x,
            "halves take the angles [a, b, a, b], and not [a, a, b, b]": rotation(x, "half", "interleaved"),
            "neighbours take the angles [a, a, b, b], and not [a, b, a, b]": rotation(x, "interleaved", "half"),
        }
        for layout in LAYOUTS:
            mistakes |= {
                f"the exponent is -2k/channels, and not -k/channels ({layout})": rotation(x, layout, share=1),
                f"the exponent is -2k/channels, and not -4k/channels ({layout})": rotation(x, layout, share=4),
                f"positions begin at 0, and not at 1 ({layout})": rotation(x, layout, first=1),
                f"(a, b) becomes (a cos - b sin, b cos + a sin), the other way ({layout})": rotation(x, layout, way=-1),
            }
        right = nearest_of(of_x, [rotation(x, layout) for layout in LAYOUTS])
        compare(f"what it makes of {name}", of_x, right, mistakes)
        if where := place_options(parameters, 3, 7):
            later = call(function, inputs[:, 3:], options | where)[tensors.index(name)]
            late = {f"the first of them stands at 3, and not at 0 ({way})": rotation(x[3:], way) for way in LAYOUTS}
            compare(f"{name} of 4 tokens behind a cache of 3: positions are not shifted", later, right[3:], late)
    half = torch.allclose(outputs[0].double(), rotation(inputs[0], "half"), atol=1e-4)
    print("RoPE in the half layout, Hugging Face's Llama" if half else "RoPE in the interleaved layout, Meta's Llama")


def attention_is_of_turned(q: Tensor, k: Tensor, v: Tensor, result: Any) -> None:
    """Raise AssertionError unless the output is attention, causal or not, with turned queries and keys."""
    right, mistakes, past = [], {}, torch.ones(len(q), len(q)).tril().bool()
    for layout, causal in itertools.product(LAYOUTS, (False, True)):

        def attend(q: Tensor, k: Tensor, v: Tensor = v, visible: Tensor = past if causal else past | True) -> Tensor:
            return (q @ k.T / q.shape[-1] ** 0.5).masked_fill(~visible, -torch.inf).softmax(-1) @ v

        of_q, of_k, case = rotation(q, layout), rotation(k, layout), f" ({layout}{', causal' * causal})"
        right.append(attend(of_q, of_k))
        mistakes |= {
            f"values are turned too, and RoPE turns queries and keys{case}": attend(of_q, of_k, rotation(v, layout)),
            f"keys are not turned{case}": attend(of_q, k),
            f"queries are not turned{case}": attend(q, of_k),
            f"nothing is turned{case}": attend(q, k),
        }
    compare("attend(q, k, v)", result, nearest_of(result, right), mistakes)


HAND_IN = definition, (queries_and_keys_are_turned,)
