"""`posenc list`, `show` and `check` where PyTorch is installed alone: words on stdout, without colours and pictures."""

import inspect
import os
import sys
import warnings
from collections.abc import Sequence

from posenc.foreign import visible

USE = "posenc list [NAME]; posenc show SPEC; posenc check SPEC [PROMISE ...]"
NEEDS = "every other verb and every option needs: pip install 'posenc[lab]'"


def main(arguments: Sequence[str]) -> int:
    """Run one of the three; returns the exit code, 2 for what takes more than there is."""
    verb, *given = arguments or ("",)
    fits = {"list": len(given) < 2, "show": len(given) == 1, "check": len(given) > 0}
    if not fits.get(verb) or any(one.startswith("-") for one in given):
        print(f"posenc: with PyTorch alone there are: {USE}; {NEEDS}", file=sys.stderr)
        return 2
    # PyTorch says so once where NumPy is not installed, and nothing here needs it.
    warnings.filterwarnings("ignore", "Failed to initialize NumPy")
    try:
        if verb == "check":
            return check(*given)
        print(visible(show(given[0]) if verb == "show" else listed(*given)), flush=True)
        return 0
    except BrokenPipeError:
        # Whoever read our output has enough; without this, Python would complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ValueError as error:
        print(f"posenc: {visible(str(error))}", file=sys.stderr)
        return 2


def listed(name: str = "") -> str:
    """All there is, a line for each; or what is known of one name."""
    from posenc.lab.description import listing

    if name and name not in listing.KINDS:
        card = listing.card(name)
        rows = [f"{what}: {words}" for what, words in listing.card_in_words(card)]
        return "\n".join([f"{card['kind']}: {name}", *rows, *filter(None, ["", card.get("lesson")])])
    found = listing.overview()
    groups = [] if name else listing.groups_of(found, found["encodings"])
    for kind in [name] if name else [kind for kind in listing.KINDS if kind != "encodings"]:
        groups.append((kind.replace("_", " "), list(map(listing.lined, found[kind]))))
    if not name:
        groups.append(("plug-ins", list(map(listing.plugin_in_short, listing.installed()))))
    lines = []
    for title, entries in groups:
        lines += [title.upper(), *(f"  {one}  {words}" for one, words in entries), ""] if entries else []
    return "\n".join(lines[:-1])


def show(spec: str) -> str:
    """What an encoding says of itself: its idea, its equation, its options, where it goes wrong."""
    from posenc.encoding import parts_of
    from posenc.lab.description import describe

    encoding, _ = describe.at_standard_shape(spec)
    doors = ", ".join(sorted(encoding.doors)) or "no door"
    lessons = dict.fromkeys(inspect.getdoc(type(part)) or type(part).__name__ for part in parts_of(encoding))
    return "\n\n".join([f"{encoding}\nopens {doors}", *map(describe.without_doctest, lessons)])


def check(spec: str, *promises: str) -> int:
    """The verdicts on an encoding or a task, each as soon as it is known."""
    from posenc import testing
    from posenc.lab import checking

    holds = checking if checking.names_a_task(spec) else testing
    found = []
    for verdict in holds.verdicts(spec, promises or None):
        found.append(verdict)
        words = f"{verdict.word:<10}  {verdict.promise.replace('_', ' ')}"
        print(visible(words if verdict.good else f"{words}\n    {verdict.message}"), flush=True)
    print(testing.total(found))
    return 0 if all(verdict.good for verdict in found) else 1
