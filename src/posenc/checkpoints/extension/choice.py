"""Which of the measured methods wins, and in words why."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc.checkpoints.extension import methods, perplexity

KEEPS = 1.05
"""A method may win if its mean perplexity at the trained length is at most this many times that of the model as it
is: who pays with the short texts for the long ones has not extended anything."""

TIE = 1.01
"""Perplexities of the last tokens within this ratio are no difference on one text."""


def at(entry: Mapping[str, Any], length: int) -> Mapping[str, Any]:
    """The measures of a method at a length."""
    return next(one for one in entry["lengths"] if one["length"] == length)


def choose(asked: Sequence[str], record: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The method that is written, the one asked for or the one that wins, and in words why.

    The lowest perplexity of the last tokens at the target wins, among methods whose mean perplexity at the trained
    length is at most 1.05 times that of the model as it is; methods within 1 % of the lowest are equal on one text.
    """
    found = record["methods"]
    trained, target = record["trained"], record["target"]
    before = found[0]
    order = ranked(found, trained, target)
    best = order[0]
    low = at(best, target)["last"]
    equal = [one["name"] for one in order[1:] if keeps(one, before, trained) and at(one, target)["last"] <= TIE * low]
    last = f"the last {min(perplexity.LAST, target - 1)} tokens at {target:,}"
    words = (
        f"{best['name']} wins on this text: the perplexity of {last} is {low:.3g}, where the model as it is has "
        f"{at(before, target)['last']:.4g}"
    )
    if equal:
        words += f"; {', '.join(equal)} {'is' if len(equal) == 1 else 'are'} within 1 % of it, which is no difference"
    price = at(best, trained)["mean"] / at(before, trained)["mean"] - 1
    words += f". At the trained length of {trained:,} its mean perplexity is {at(best, trained)['mean']:.3g}"
    words += f", {abs(price):.1%} {'above' if price >= 0 else 'below'} the {at(before, trained)['mean']:.3g} of before."
    if best is before:
        words = f"No method is better than the model as it is: the perplexity of {last} is {low:.3g}."
    elif not keeps(best, before, trained):
        words += " No method keeps the trained length within 5 %: this is the lowest, at that price."
    single = [name for name in methods.names_of(asked) if name != "none"]
    if len(single) == 1 and "all" not in asked:
        only = next(one for one in found if one["name"] == single[0])
        if only is not best:
            words += f" {only['name']} is written because it was asked for."
        return only, words
    return best, words


def keeps(entry: Mapping[str, Any], before: Mapping[str, Any], trained: int) -> bool:
    """Whether a method keeps what the model could do at its trained length."""
    return at(entry, trained)["mean"] <= KEEPS * at(before, trained)["mean"]


def ranked(found: Sequence[Mapping[str, Any]], trained: int, target: int) -> list[Mapping[str, Any]]:
    """Methods by the perplexity of their last tokens at the target, those first that keep the trained length."""
    return sorted(found, key=lambda one: (not keeps(one, found[0], trained), at(one, target)["last"]))
