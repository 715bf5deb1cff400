"""Which way a text is generated, from what a caller asked for; ways that exclude each other are refused."""

import inspect
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from posenc import checks, words
from posenc.generation.beams import beam_search
from posenc.generation.choice import Choice
from posenc.generation.one_by_one import with_more
from posenc.generation.speculative import AHEAD, speculate

if TYPE_CHECKING:
    from posenc.model import Decoder

DRAWN = ("temperature", "top_k", "stop", "seed")
"""The options of Decoder.stream that say how a token is chosen."""


def generate(
    model: "Decoder",
    ids: Tensor | Sequence[Tensor],
    tokens: int,
    *,
    padding: Tensor | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    draft: "Decoder | None" = None,
    ahead: int | None = None,
    **options: Any,
) -> Tensor | list[Tensor]:
    """ids with up to `tokens` more, as Decoder.generate says; `options` are those of Decoder.stream.

    Raises ValueError for options that exclude each other, and as each way does.
    """
    if beams is None and length_penalty is not None:
        raise ValueError("length_penalty ranks beams of different lengths; give beams=... with it, or leave it out")
    if draft is None and ahead is not None:
        raise ValueError("ahead says how many tokens a draft gives; give draft=... with it, or leave it out")
    words.check_options("generate", words.names_of(model.stream, generate), options)
    defaults = {name: parameter.default for name, parameter in inspect.signature(model.stream).parameters.items()}
    names = [name for name, value in options.items() if value is not False and value != defaults.get(name)]
    if beams is not None:
        refuse_beside("beams", [*(["draft"] if draft is not None else []), *names], "stop")
    if draft is not None:
        refuse_beside("a draft", names, *DRAWN)
    stop = options.get("stop")
    of_list = not isinstance(ids, Tensor)
    if of_list:
        if padding is not None:
            raise ValueError("a list of prompts is padded here; give it without padding, or ids [B, T] with it")
        ids, padding = together(ids)
    if beams is not None:
        choice = Choice(model.vocab, stop=stop)
        penalty = 1.0 if length_penalty is None else length_penalty
        texts = beam_search(model, ids, tokens, choice, beams=beams, length_penalty=penalty, padding=padding)
    elif draft is not None:
        choice = Choice(model.vocab, **{name: options[name] for name in DRAWN if name in options})
        far = AHEAD if ahead is None else ahead
        texts = speculate(model, draft, ids, tokens, choice, ahead=far, padding=padding)
    else:
        samples = options.get("samples")
        more = model.stream(ids, tokens, padding=padding, **options)
        texts = with_more(ids if samples is None else ids.repeat_interleave(samples, 0), more)
        if samples is not None:
            texts = texts.unflatten(0, (len(ids), samples))
    return apart(texts, padding, stop) if of_list and padding is not None else texts


def refuse_beside(way: str, said: Sequence[str], *allowed: str) -> None:
    """Raises ValueError where an option was given that does not go with this way."""
    if others := [name for name in said if name not in allowed]:
        raise ValueError(f"{way} cannot be had together with {', '.join(others)}; leave one of them out")


def together(prompts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Prompts, each [T], as ids [B, T] padded on the left, and which of them are tokens.

    Raises ValueError for what are no prompts.
    """
    if not isinstance(prompts, (list, tuple)) or not prompts:
        raise ValueError(f"prompts are ids [batch, tokens], or a list of ids [tokens], got {checks.shown(prompts)}")
    for prompt in prompts:
        if checks.tensor("a prompt", prompt).dim() != 1 or not len(prompt):
            raise ValueError(f"each prompt of a list has shape [tokens], with one at least, got {list(prompt.shape)}")
    checks.one_device(**{f"prompt {number}": prompt for number, prompt in enumerate(prompts)})
    longest = max(len(prompt) for prompt in prompts)
    ids = torch.stack([torch.cat((prompt.new_zeros(longest - len(prompt)), prompt)) for prompt in prompts])
    length = torch.tensor([len(prompt) for prompt in prompts], device=ids.device)
    return ids, torch.arange(longest, device=ids.device) >= longest - length[:, None]


def apart(texts: Tensor, padding: Tensor, stop: int | None) -> list[Tensor]:
    """Each text [B, ..., T] without its padding; one that stopped ends with its stop."""
    ended = []
    for text, prompt in zip(texts, padding, strict=True):
        prompts = padding.shape[1]
        text = text[..., prompts - int(prompt.sum()) :]
        if stop is not None and text.dim() == 1:
            new = text[int(prompt.sum()) :]
            stops = (new == stop).nonzero()
            text = text[: int(prompt.sum()) + int(stops[0]) + 1] if len(stops) else text
        ended.append(text)
    return ended
