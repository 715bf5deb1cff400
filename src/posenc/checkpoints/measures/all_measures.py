"""The measures by name, and the default ones."""

from collections.abc import Mapping, Sequence

from posenc.checkpoints.formats.load import LoadedModel
from posenc.checkpoints.measures.hidden_keys import OneKey, SeveralKeys
from posenc.checkpoints.measures.masked_models import MaskedTokens
from posenc.checkpoints.measures.measure import Inputs, Measure
from posenc.checkpoints.measures.perplexity import Perplexity
from posenc.foreign import quote, suggestion

MEASURES = {kind.name: kind for kind in (Perplexity, OneKey, SeveralKeys, MaskedTokens)}

DECODER_MEASURES = ("perplexity", "one-key", "several-keys")
"""The measures of models that predict the next token."""

DEFAULT_MEASURES = ("perplexity", "one-key", "masked")
"""The measures that run, of those that fit a model, where the caller names none."""


def measures_for(checkpoint: LoadedModel) -> tuple[str, ...]:
    """Return the names of measures that fit a model with a learned table, by class; () without any."""
    name = type(checkpoint.model).__name__
    if name.endswith("ForMaskedLM"):
        return ("masked",)
    return DECODER_MEASURES if name.endswith(("ForCausalLM", "LMHeadModel")) else ()


def build_measures(
    names: Sequence[str], fitting: Sequence[str], inputs: Inputs, flags: Mapping[str, str], extra: frozenset[str]
) -> tuple[Measure, ...]:
    """Build the measures of these names, the first of which decides.

    fitting  the names of those that fit the model
    flags    setting -> its option, for each setting that the user changed
    extra    settings that are read elsewhere

    Raises ValueError for an unknown name, one that does not fit the model, an option that would change nothing, and as
    the measures do.
    """
    for name in names:
        if name not in MEASURES:
            raise ValueError(f"no measure named {quote(name)}{suggestion(name, [*MEASURES], 'posenc extend --help')}")
        if name not in fitting:
            kind = type(inputs.checkpoint.model).__name__
            raise ValueError(f"{name} does not fit a {kind}; it is measured by {', '.join(fitting)}")
    kinds = [MEASURES[name] for name in dict.fromkeys(names)]
    options = {kind.name: ", ".join(f"--{name}" for name in sorted(kind.options)) for kind in kinds}
    uses = "; ".join(f"{name} reads {words}" for name, words in options.items())
    for setting, option in flags.items():
        if setting not in extra.union(*(kind.options for kind in kinds)):
            raise ValueError(f"--{option.replace('_', '-')} would change nothing here ({uses}); leave it out")
    return tuple(kind(inputs) for kind in kinds)
