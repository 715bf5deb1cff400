"""Which of the measured methods wins, and in words why."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc.checkpoints.measures.measure import Value, error_of

KEEPS = 1.05
"""A method may win if at the trained length it is at most this many times worse than the model as it is, or no
different from it: who pays with the short inputs for the long ones has not extended anything."""

TIE = 1.01
"""Numbers within this ratio are no difference on one text."""

ERRORS = 2.0
"""And neither are those within so many standard errors of their difference."""

Record = Mapping[str, Any]


def choose(asked: Sequence[str], record: Record) -> tuple[Record, str]:
    """The method that is written, the one asked for or the one that wins, and in words why.

    The first number of the first measure decides at the target, among methods whose price at the trained length is at
    most 1.05 times what the model as it is has there, or no different from it. A method within 1 %, or two standard
    errors, of the lowest is its equal, and so is the model as it is: what does no more than that is not worth a
    checkpoint, unless it is the one method that was asked for.
    """
    number, target = first(record), record["target"]
    before, order = record["methods"][0], ranked(record)
    words = f"at {target:,} tokens the {number['words']}"
    single = [name for name in asked if name not in ("none", *(one["name"] for one in baselines(record)))]
    wanted = single[0] if len(set(single)) == 1 and "all" not in single else None
    only = next((one for one in order if one["name"] == wanted), None)
    if not order:
        return before, f"Only the model as it is was measured, and it ends at {record['trained']:,} tokens."
    best = order[0]
    now, old = value(best, record, target), value(before, record, target)
    said = f"{best['name']} wins: {words} is {shown(now)}"
    if best is before:
        said = f"No method is better than the model as it is: {words} is {shown(now)}"
    elif old is not None and same(now, old):
        said = (
            f"No method is better than the model as it is: {words} is {shown(old)}, and {best['name']}, the best of "
            f"them, has {shown(now)}, which is no difference"
        )
        best = before
    elif old is not None:
        said += f", where the model as it is has {shown(old)}"
    else:
        said += f", where the model as it is ends at {record['trained']:,}"
    others = [one["name"] for one in order if one not in (best, order[0], before) and keeps(one, record)]
    equal = [one["name"] for one in order if one["name"] in others and same(value(one, record, target), now)]
    if equal and best is not before:
        said += f"; {', '.join(equal)} {'is' if len(equal) == 1 else 'are'} no different"
    said += "."
    for one in baselines(record):
        found = value(one, record, target)
        worth = "no difference" if same(found, now) else "better" if beats(found, now, number) else "worse"
        said += f" {one['name'].capitalize()} ({one['words']}) gives {shown(found)}: {worth}."
    if best is not before and not keeps(best, record):
        said += " No method keeps the trained length within 5 %: this is the best, at that price."
    if only is not None and only is not best:
        said += f" {only['name']} is written because it was asked for."
    return only or best, said


def price(entry: Record, record: Record) -> str:
    """In words, what a method costs inputs of the trained length."""
    of = record["measures"][0]
    number = next(one for one in of["numbers"] if one["name"] == of["price"])
    before, now = (value(one, record, record["trained"], of["price"]) for one in (record["methods"][0], entry))
    words = f"What {entry['name']} costs short inputs: at the trained {record['trained']:,} tokens the"
    if before is None or now is None:
        return ""
    change = now.value / before.value - 1 if before.value else 0.0
    if now.value == before.value:
        return f"{words} {number['words']} is {shown(now)}, as before."
    how = f"{abs(change):.1%} {'above' if change >= 0 else 'below'} the {shown(before)} of before"
    return f"{words} {number['words']} is {shown(now)}, {how}{' (no difference)' if same(now, before) else ''}."


def first(record: Record) -> Record:
    """The number that decides."""
    return record["measures"][0]["numbers"][0]


def baselines(record: Record) -> list[Record]:
    """The other ways to use the model as it is."""
    return [one for one in record["methods"] if one["baseline"]]


def value(entry: Record, record: Record, length: int, number: str | None = None) -> Any:
    """A number of the measure that decides, of a method at a length; None where there is none."""
    measure = record["measures"][0]["name"]
    wanted = (measure, number or first(record)["name"], length)
    for one in entry["values"]:
        if (one["measure"], one["number"], one["length"]) == wanted:
            return Value(one["value"], one["error"], tuple(one["each"]))
    return None


def beats(one: Value, other: Value, number: Record) -> bool:
    return one.value > other.value if number["more_is_better"] else one.value < other.value


def same(one: Value, other: Value) -> bool:
    """Whether two numbers are no different: within 1 %, or within the error of their difference, sample by sample.

    >>> same(Value(10.0, None), Value(10.05, None)), same(Value(10.0, None), Value(10.2, None))
    (True, False)
    >>> same(Value(10.0, 0.2), Value(10.2, 0.2))
    True
    """
    if max(abs(one.value), abs(other.value)) <= TIE * min(abs(one.value), abs(other.value)):
        return True
    if len(one.each) == len(other.each) > 1:
        differences = [a - b for a, b in zip(one.each, other.each, strict=True)]
        error = error_of(differences)
        return abs(sum(differences) / len(differences)) <= ERRORS * (error or 0.0)
    if one.error is None or other.error is None:
        return False
    return abs(one.value - other.value) <= ERRORS * (one.error**2 + other.error**2) ** 0.5


def keeps(entry: Record, record: Record) -> bool:
    """Whether a method keeps what the model could do at its trained length."""
    of = record["measures"][0]
    more = next(one["more_is_better"] for one in of["numbers"] if one["name"] == of["price"])
    before, now = (value(one, record, record["trained"], of["price"]) for one in (record["methods"][0], entry))
    near = now.value >= before.value / KEEPS if more else now.value <= before.value * KEEPS
    return near or same(now, before)


def ranked(record: Record) -> list[Record]:
    """Methods by the number that decides at the target, those first that keep the trained length."""
    more, target = first(record)["more_is_better"], record["target"]
    at_target = [(one, value(one, record, target)) for one in record["methods"] if not one["baseline"]]
    found = [(one, at.value) for one, at in at_target if at is not None]
    return [one for one, at in sorted(found, key=lambda of: (not keeps(of[0], record), -of[1] if more else of[1]))]


def shown(of: Value) -> str:
    """A number with its error, in about three digits."""
    error = "" if of.error is None else f" ± {digits(of.error)}"
    return digits(of.value) + error


def digits(number: float) -> str:
    """A number in about three digits.

    >>> digits(8.4321), digits(243.7), digits(1664.2), digits(0.7656), digits(0.00321)
    ('8.43', '244', '1,664', '0.766', '0.0032')
    """
    size = abs(number)
    if size >= 1000:
        return f"{number:,.0f}"
    form = next((form for least, form in ((100, ".3g"), (1, ".2f"), (0.01, ".3f")) if size >= least), ".2g")
    return format(number, form)
