"""Which way a text is generated, from what a caller asked for; ways that exclude each other are refused."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from posenc.generation.beams import beam_search
from posenc.generation.choice import Choice
from posenc.generation.one_by_one import with_more
from posenc.generation.prompts import apart, together
from posenc.generation.speculative import AHEAD, speculate

if TYPE_CHECKING:
    from posenc.model import Decoder


def generate(
    model: "Decoder",
    ids: Tensor | Sequence[Tensor],
    tokens: int,
    *,
    padding: Tensor | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    stop: int | None = None,
    seed: int = 0,
    compiled: bool | None = None,
    samples: int | None = None,
    sinks: int | None = None,
    window: int | None = None,
    beams: int | None = None,
    length_penalty: float | None = None,
    draft: "Decoder | None" = None,
    ahead: int | None = None,
) -> Tensor | list[Tensor]:
    """ids with up to `tokens` more, as Decoder.generate says.

    Raises ValueError for options that exclude each other, and as each way does.
    """
    if beams is None and length_penalty is not None:
        raise ValueError("length_penalty ranks beams of different lengths; give beams=... with it, or leave it out")
    if draft is None and ahead is not None:
        raise ValueError("ahead says how many tokens a draft gives; give draft=... with it, or leave it out")
    for_one_text = {
        "samples": samples is not None,
        "compiled": bool(compiled),
        "sinks": sinks is not None,
        "window": window is not None,
    }
    if beams is not None:
        drawn = {"temperature": temperature != 0, "top_k": top_k is not None, "seed": seed != 0}
        refuse_beside("beams", draft=draft is not None, **drawn, **for_one_text)
    if draft is not None:
        refuse_beside("a draft", **for_one_text)
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
        choice = Choice(model.vocab, temperature, top_k, stop, seed)
        far = AHEAD if ahead is None else ahead
        texts = speculate(model, draft, ids, tokens, choice, ahead=far, padding=padding)
    else:
        more = model.stream(
            ids,
            tokens,
            padding=padding,
            temperature=temperature,
            top_k=top_k,
            stop=stop,
            seed=seed,
            compiled=compiled,
            samples=samples,
            sinks=sinks,
            window=window,
        )
        texts = with_more(ids if samples is None else ids.repeat_interleave(samples, 0), more)
        if samples is not None:
            texts = texts.unflatten(0, (len(ids), samples))
    return apart(texts, padding, stop) if of_list and padding is not None else texts


def refuse_beside(way: str, **beside: bool) -> None:
    """Raises ValueError where something was asked for that does not go with this way."""
    named = ", ".join(name for name, given in beside.items() if given)
    if named:
        raise ValueError(f"{way} cannot be had together with {named}; leave one of them out")
