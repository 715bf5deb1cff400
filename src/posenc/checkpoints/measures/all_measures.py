"""The measures by name, and which ones a model is asked for where nobody says."""

from collections.abc import Mapping, Sequence

from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.measures.hidden_keys import OneKey, SeveralKeys
from posenc.checkpoints.measures.masked import Masked
from posenc.checkpoints.measures.measure import Given, Measure
from posenc.checkpoints.measures.perplexity import Perplexity
from posenc.foreign import near, quoted

MEASURES = {kind.name: kind for kind in (Perplexity, OneKey, SeveralKeys, Masked)}

OF_DECODERS = ("perplexity", "one-key", "several-keys")
"""The measures of models that predict the next token."""

UNASKED = ("perplexity", "one-key", "masked")
"""Of those that fit a model, the ones that are measured where nobody names any."""


def of_model(loaded: Loaded) -> tuple[str, ...]:
    """The names of the measures that fit a model with a learned table, by what it is for; none where none does."""
    name = type(loaded.model).__name__
    if name.endswith("ForMaskedLM"):
        return ("masked",)
    return OF_DECODERS if name.endswith(("ForCausalLM", "LMHeadModel")) else ()


def made(
    names: Sequence[str], fitting: Sequence[str], given: Given, asked: Mapping[str, str], more: frozenset[str]
) -> tuple[Measure, ...]:
    """The measures of these names, the first of which decides.

    fitting  the names of those that fit the model
    asked    setting -> its option, of all that a user has given
    more     settings that something else reads

    Raises ValueError for an unknown name, one that does not fit the model, an option that would change nothing, and as
    the measures do.
    """
    for name in names:
        if name not in MEASURES:
            raise ValueError(f"no measure named {quoted(name)}{near(name, [*MEASURES], 'posenc extend --help')}")
        if name not in fitting:
            kind = type(given.loaded.model).__name__
            raise ValueError(f"{name} does not fit a {kind}; it is measured by {', '.join(fitting)}")
    kinds = [MEASURES[name] for name in dict.fromkeys(names)]
    options = {kind.name: ", ".join(f"--{name}" for name in sorted(kind.options)) for kind in kinds}
    uses = "; ".join(f"{name} reads {flags}" for name, flags in options.items())
    for setting, option in asked.items():
        if setting not in more.union(*(kind.options for kind in kinds)):
            raise ValueError(f"--{option.replace('_', '-')} would change nothing here ({uses}); leave it out")
    return tuple(kind(given) for kind in kinds)
