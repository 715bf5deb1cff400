"""Choose the winner among the measured methods, and say why in words."""

from collections.abc import Mapping, Sequence
from typing import Any

from posenc.checkpoints.measures.measure import Value, error_of

PRICE_LIMIT = 1.05
"""How many times worse than the original model a winner may be at the trained length.

A method that is no different from it may win too: a gain on long inputs that costs short ones is no extension."""

TIE_RATIO, TIE_ERRORS = 1.01, 2.0
"""Numbers tie within this ratio on one text, or within so many standard errors of their difference."""

Record = Mapping[str, Any]


def choose(requests: Sequence[str], record: Record) -> tuple[Record, str]:
    """Return the method to write, and the reason in words. The requests are the names that the user gave.

    The first number of the first measure decides at the target, among methods whose price at the trained length is at
    most 1.05 times that of the original model, or no different from it. A method within 1 %, or two standard errors, of
    the best is its equal. So is the original model: a method that does no better is not worth a checkpoint, unless it
    is the one method that the user asked for.
    """
    number, target = deciding_number(record), record["target"]
    original, order = record["methods"][0], ranking(record)
    at_target = f"at {target:,} tokens the {number['words']}"
    single = {name for name in requests if name not in ("none", *(entry["name"] for entry in baselines(record)))}
    only = next((entry for entry, _ in order if single == {entry["name"]}), None)
    if not order:
        return original, f"Only the model as it is was measured, and it ends at {record['trained']:,} tokens."
    (best, now), old = order[0], value_at(original, record, target)
    words = f"{best['name']} wins: {at_target} is {format_value(now)}"
    if best is original:
        words = f"No method is better than the model as it is: {at_target} is {format_value(now)}"
    elif old is not None and is_tie(now, old):
        words = (
            f"No method is better than the model as it is: {at_target} is {format_value(old)}, and {best['name']}, the "
            f"best of them, has {format_value(now)}, which is no difference"
        )
        best = original
    elif old is not None:
        words += f", where the model as it is has {format_value(old)}"
    else:
        words += f", where the model as it is ends at {record['trained']:,}"
    rest = [(entry, value) for entry, value in order[1:] if entry not in (best, original)]
    equal = [entry["name"] for entry, value in rest if keeps_trained_length(entry, record) and is_tie(value, now)]
    if equal and best is not original:
        words += f"; {', '.join(equal)} {'is' if len(equal) == 1 else 'are'} no different"
    words += "."
    for entry in baselines(record):
        if value := value_at(entry, record, target):
            verdict = "no difference" if is_tie(value, now) else "better" if is_better(value, now, number) else "worse"
            words += f" {entry['name'].capitalize()} ({entry['words']}) gives {format_value(value)}: {verdict}."
    if best is not original and not keeps_trained_length(best, record):
        words += " No method keeps the trained length within 5 %: this is the best, at that price."
    if only is not None and only is not best:
        words += f" {only['name']} is written because it was asked for."
    return only or best, words


def describe_price(entry: Record, record: Record) -> str:
    """Say what a method costs inputs of the trained length."""
    number, old, now = prices(entry, record)
    words = f"What {entry['name']} costs short inputs: at the trained {record['trained']:,} tokens the"
    if old is None or now is None:
        return ""
    change = now.value / old.value - 1 if old.value else 0.0
    if now.value == old.value:
        return f"{words} {number['words']} is {format_value(now)}, as before."
    how = f"{abs(change):.1%} {'above' if change >= 0 else 'below'} the {format_value(old)} of before"
    return f"{words} {number['words']} is {format_value(now)}, {how}{' (no difference)' if is_tie(now, old) else ''}."


def deciding_number(record: Record) -> Record:

    return record["measures"][0]["numbers"][0]


def baselines(record: Record) -> list[Record]:

    return [entry for entry in record["methods"] if entry["baseline"]]


def value_at(entry: Record, record: Record, length: int, number: str | None = None) -> Value | None:
    """Return a method's value of a number of the deciding measure at a length; None if missing."""
    key = (record["measures"][0]["name"], number or deciding_number(record)["name"], length)
    for row in entry["values"]:
        if (row["measure"], row["number"], row["length"]) == key:
            return Value(row["value"], row["error"], tuple(row["each"]))
    return None


def prices(entry: Record, record: Record) -> tuple[Record, Value | None, Value | None]:
    """Return the number that is the price, and its values for the original model and a method."""
    measure = record["measures"][0]
    number = next(number for number in measure["numbers"] if number["name"] == measure["price"])
    old, new = (value_at(item, record, record["trained"], number["name"]) for item in (record["methods"][0], entry))
    return number, old, new


def is_better(value: Value, reference: Value, number: Record) -> bool:
    return value.value > reference.value if number["more_is_better"] else value.value < reference.value


def is_tie(value: Value, reference: Value) -> bool:
    """Whether two numbers differ by at most 1 %, or two standard errors. Samples are compared one by one if possible.

    >>> is_tie(Value(10.0, None), Value(10.05, None)), is_tie(Value(10.0, None), Value(10.2, None))
    (True, False)
    >>> is_tie(Value(10.0, 0.2), Value(10.2, 0.2))
    True
    """
    a, b = value.value, reference.value
    if max(abs(a), abs(b)) <= TIE_RATIO * min(abs(a), abs(b)):
        return True
    if len(value.each) == len(reference.each) > 1:
        differences = [x - y for x, y in zip(value.each, reference.each, strict=True)]
        return abs(sum(differences) / len(differences)) <= TIE_ERRORS * (error_of(differences) or 0.0)
    if value.error is None or reference.error is None:
        return False
    return abs(a - b) <= TIE_ERRORS * (value.error**2 + reference.error**2) ** 0.5


def keeps_trained_length(entry: Record, record: Record) -> bool:
    """Whether a method keeps what the model could do at its trained length."""
    number, old, new = prices(entry, record)
    assert old is not None and new is not None
    is_near = new.value >= old.value / PRICE_LIMIT if number["more_is_better"] else new.value <= old.value * PRICE_LIMIT
    return is_near or is_tie(new, old)


def ranking(record: Record) -> list[tuple[Record, Value]]:
    """Return the methods with their deciding values at the target, those first that keep the trained length."""
    sign = -1 if deciding_number(record)["more_is_better"] else 1
    entries = [entry for entry in record["methods"] if not entry["baseline"]]
    values = [(entry, value_at(entry, record, record["target"])) for entry in entries]
    pairs = [(entry, value) for entry, value in values if value is not None]
    return sorted(pairs, key=lambda pair: (not keeps_trained_length(pair[0], record), sign * pair[1].value))


def format_value(value: Value) -> str:
    """Return a number with its error, in about three digits."""
    error = "" if value.error is None else f" ± {format_number(value.error)}"
    return format_number(value.value) + error


def format_number(number: float) -> str:
    """Return a number in about three digits.

    >>> format_number(8.4321), format_number(243.7), format_number(1664.2), format_number(0.7656)
    ('8.43', '244', '1,664', '0.766')
    """
    size = abs(number)
    if size >= 1000:
        return f"{number:,.0f}"
    form = next((form for limit, form in ((100, ".3g"), (1, ".2f"), (0.01, ".3f")) if size >= limit), ".2g")
    return format(number, form)
