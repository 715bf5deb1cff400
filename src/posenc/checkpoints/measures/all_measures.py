"""The measures by name, and which ones a model is asked for where nobody says."""

from collections.abc import Mapping, Sequence

from posenc.checkpoints.formats.load import Loaded
from posenc.checkpoints.measures.asked import Asks
from posenc.checkpoints.measures.images import Images
from posenc.checkpoints.measures.long_tasks import TASKS
from posenc.checkpoints.measures.masked import Masked
from posenc.checkpoints.measures.measure import Given, Measure
from posenc.checkpoints.measures.pass_keys import PassKeys
from posenc.checkpoints.measures.perplexity import Perplexity
from posenc.checkpoints.measures.sentences import Sentences
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.foreign import near, quoted

MEASURES = {
    **{made.name: made for made in (Perplexity, PassKeys, Masked, Sentences, Images)},
    **{name: Asks(task) for name, task in TASKS.items()},
}

OF_DECODERS = ("perplexity", "pass-keys", *TASKS)
"""The measures of models that predict the next token."""

UNASKED = ("perplexity", "pass-keys", "masked", "sentences", "images")
"""Of those that fit a model, the ones that are measured where nobody names any."""


def of_model(loaded: Loaded, axes: int) -> tuple[str, ...]:
    """The names of the measures that fit a model with a learned table, by what it is for.

    axes  of its inputs: 1 for texts, 2 for images

    Raises CannotRead where there are none.
    """
    name = type(loaded.model).__name__
    if axes > 1:
        return ("images",)
    if name.endswith("ForMaskedLM"):
        return ("masked",)
    if name.endswith(("ForCausalLM", "LMHeadModel")):
        return OF_DECODERS
    if name.endswith("Model") and getattr(loaded.tokenizer, "cls_token_id", None) is not None:
        return ("sentences",)
    raise CannotRead(
        f"{loaded.path} is a {name}, and posenc has no measure for it; it has them for language models, masked ones, "
        f"encoders of sentences and of images"
    )


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
            raise ValueError(
                f"{name} does not fit a {type(given.loaded.model).__name__}; it is measured by {', '.join(fitting)}"
            )
    kinds = [MEASURES[name] for name in dict.fromkeys(names)]
    uses = "; ".join(f"{kind.name} reads {', '.join(f'--{one}' for one in sorted(kind.options))}" for kind in kinds)
    for setting, option in asked.items():
        if setting not in more.union(*(kind.options for kind in kinds)):
            raise ValueError(f"--{option.replace('_', '-')} would change nothing here ({uses}); leave it out")
    return tuple(kind(given) for kind in kinds)
