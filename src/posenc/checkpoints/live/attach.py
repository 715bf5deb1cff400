"""Run a live transformers model through posenc's modules, and take them out again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from posenc.catalogue import LayerSpec, build, build_layers
from posenc.checkpoints.formats.config_json import MARK as MARKED
from posenc.checkpoints.formats.config_json import inner
from posenc.checkpoints.kinds.added.learned_table import LearnedTable
from posenc.checkpoints.kinds.all_kinds import KINDS
from posenc.checkpoints.kinds.calls import CountedFromMask, token_door
from posenc.checkpoints.kinds.kind import Change, Kind, NotSaid, hook
from posenc.checkpoints.kinds.rotary.module import RotaryModule, of_type
from posenc.checkpoints.vocabulary.reading import Part, Reading, names_no_code
from posenc.encoding.base import Compose, Encoding, parts_of
from posenc.encodings.rotations import Rotations

MARK = "posenc_attachment"
"""The attribute of a model that says what was put into it."""


@dataclass
class Attachment:
    """What `attach` put into a model, until `detach`; as a context manager it detaches at the end.

    replaced  path of a piece of the model -> what computes it now
    left      path of a piece that was recognised and left as it is -> why
    """

    model: nn.Module
    replaced: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def detach(self) -> None:
        """Put back what was there."""
        detach(self.model)

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        if MARK in self.model.__dict__:
            self.detach()

    def __getstate__(self) -> dict[str, Any]:
        # What attends through posenc follows this one model and its caches: a copy would not know its own.
        if self.undo:
            raise TypeError(
                f"a {type(self.model).__name__} that attends through posenc cannot be copied or pickled; detach it, "
                f"copy it, and attach both"
            )
        return self.__dict__


def attach(model: nn.Module, encoding: LayerSpec | None = None, *, horizon: int | None = None) -> Attachment:
    """Let posenc compute the position code of a live transformers model, in place; the weights stay the model's own.

    Rotary tables, learned tables, ALiBi and buckets are computed by posenc's encodings where the model has them, and
    so go through any attention and any cache of transformers. What needs unturned keys or another attention rule goes
    through transformers' AttentionInterface.

    model     a transformers model
    encoding  None for the model's own, as its config is read: then what replaces a piece is compared with it, number
              by number, before it is used; or, where `posenc convert` has written another into the config, that one.
              Else a spec, an encoding, or a tuple of them that is cycled over the layers: the decoder then computes
              that instead, whatever it was trained with
    horizon   the length of every sequence (tokens), for encodings that depend on one; without it, it is the number of
              the tokens so far of each sequence, at every step

    Afterwards positions are exact in any dtype of the model, and where a caller gives a padding mask and no
    `position_ids`, the first token of each row is at 0, unless the model takes none (BART) or numbers in its own way
    (Nystroemformer, YOSO, TAPAS). A position past a learned table is an error that says so before the model runs.
    `save_pretrained` and `state_dict` give what they gave before, and beside it the parameters of an encoding that has
    some. The model can be copied and pickled, unless it attends through the interface: then that raises.

    Limits: pieces that are not recognised, of which the config's reading says nothing, or that compute other numbers
    than it says stay as they are (`Attachment.left`, with the reason); where a model mixes positions with other things
    in its own code (temperatures by position, masks), that code still runs.

    Raises ValueError for a model in which nothing could be replaced (with the reasons: where pieces and the config's
    reading compute different numbers, the place and the numbers), one that is attached already, and an encoding that
    cannot take the place of what is there; TypeError for what is not a transformers model.
    """
    from posenc.checkpoints.formats.huggingface import read_live

    config = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or not hasattr(config, "get_text_config"):
        raise TypeError(f"attach takes a transformers model, got {type(model).__name__}")
    if any(MARK in module.__dict__ for module in model.modules()):
        raise ValueError(f"posenc is attached to this {type(model).__name__} already; detach(model) first")
    if horizon is not None and horizon < 1:
        raise ValueError(f"horizon must be 1 token or more, got {horizon}")
    reading, places = read_live(model)
    if not places:
        raise ValueError(
            f"{type(model).__name__} has no piece of position code that is recognised: no "
            f"{', '.join(dict.fromkeys(kind.words.removeprefix('a ') for kind in KINDS))}"
            f"{''.join(f'; {sentence}' for sentence in reading.not_covered)}"
        )
    attachment = Attachment(model)
    converted = getattr(config, MARKED, None)
    if encoding is None and converted is not None:
        encoding = converted if isinstance(converted, str) else tuple(converted)
        for spec in [encoding] if isinstance(encoding, str) else encoding:
            names_no_code(spec)
    try:
        if encoding is None:
            as_read(attachment, places, reading, horizon)
        else:
            as_asked(attachment, places, reading, encoding, horizon)
    except BaseException:
        take_out(attachment)
        raise
    model.__dict__[MARK] = attachment
    return attachment


def detach(model: nn.Module) -> None:
    """Take posenc's modules out of a model: the modules, methods and hooks that were there are there again.

    Raises ValueError where nothing is attached.
    """
    attachment = model.__dict__.get(MARK)
    if attachment is None:
        inside = next((path for path, module in model.named_modules() if MARK in module.__dict__), None)
        hint = f"; it is attached to its '{inside}'" if inside else ""
        raise ValueError(f"nothing is attached to this {type(model).__name__}{hint}")
    take_out(attachment)
    del model.__dict__[MARK]


def take_out(attachment: Attachment) -> None:
    for take_back in (*reversed(attachment.undo), *reversed(attachment.changes)):
        take_back()


def as_read(attachment: Attachment, places: Sequence[Kind], reading: Reading, horizon: int | None) -> None:
    """Fill each place with what the config is read to say, compared with what was there."""
    filled: list[Kind] = []
    for place in places:
        part = part_of(place, reading)
        try:
            if part is None:
                raise NotSaid(f"the config's reading has no part for it: {place.path} is {place.words}")
            encodings = encodings_of(part, place)
            by_horizon = place.door == "turn" and any(e.turns_when_attending for e in encodings)
            if by_horizon and horizon is None:
                attend(attachment, place, encodings, None)
                continue
            # A declared horizon is what the model's own modules do not know: there is nothing to compare with.
            attachment.changes += place.fill(attachment.model, encodings, horizon, same=not by_horizon)
        except ValueError as reason:
            attachment.left[place.path or place.words] = str(reason)
            continue
        filled.append(place)
        attachment.replaced[place.path or place.words] = described(encodings, place)
    if not attachment.replaced:
        reasons = "; ".join((*attachment.left.values(), *reading.not_covered))
        raise ValueError(f"nothing in {type(attachment.model).__name__} could be replaced: {reasons}")
    attachment.changes += counting(attachment.model, filled)


def as_asked(
    attachment: Attachment, places: Sequence[Kind], reading: Reading, encoding: LayerSpec, horizon: int | None
) -> None:
    """Fill the places of the decoder, or of the only stack, with an encoding that somebody asked for."""
    model: Any = attachment.model
    paths = {part.name for part in decoder_parts(model, reading)}
    own = [place for place in places if place.stack.node.path in paths] or [p for p in places if not p.stack.node.path]
    filled: list[Kind] = []
    for place in own or places:
        part = part_of(place, reading)
        if part is None:
            raise ValueError(
                f"the config of {type(model).__name__} says too little to build {encoding} for {place.path}: "
                f"{'; '.join(reading.not_covered) or 'no part of it was read'}"
            )
        wanted = for_heads(encoding, part, place.stack.shape.causal)
        wanted = besides_own(wanted, part) if place.door == "turn" else wanted
        if place.door == "turn" and not in_tables(place, wanted, part, horizon):
            attend(attachment, place, wanted, horizon)
            continue
        attachment.changes += place.fill(model, wanted, horizon, same=False)
        filled.append(place)
        attachment.replaced[place.path or place.words] = described(wanted, place)
    attachment.changes += counting(attachment.model, filled)


def for_heads(encoding: LayerSpec, part: Part, causal: bool) -> list[Encoding]:
    """What was asked for, built for each layer: some have wider heads than others."""
    cycle: list[Any] = list(encoding) if isinstance(encoding, (list, tuple)) else [encoding]
    found: dict[int, Encoding] = {}
    for width in dict.fromkeys(layer.head_dim for layer in part.layers):
        at = [number for number, layer in enumerate(part.layers) if layer.head_dim == width]
        own = [cycle[number % len(cycle)] for number in at] if cycle else ()
        shape = replace(part.shape, head_dim=width, causal=causal)
        found |= dict(zip(at, build_layers(tuple(own), shape, len(at))[1], strict=True))
    return [found[number] for number in range(len(part.layers))]


def attend(attachment: Attachment, place: Kind, encodings: Sequence[Encoding], horizon: int | None) -> None:
    """Let the decoder attend through encodings, where no table can hold what they compute."""
    from posenc.checkpoints.live.unturned import attach_unturned

    # It is one attention for the whole decoder, however many rotary modules that has.
    if not attachment.undo:
        attachment.undo.append(attach_unturned(attachment.model, encodings, horizon=horizon))
    attachment.replaced[place.path or place.words] = f"{described(encodings, place)}, on unturned keys"


def in_tables(place: Kind, wanted: Sequence[Encoding], part: Part, horizon: int | None) -> bool:
    """Whether a table of cosines and sines, read by the model's own code, computes what is wanted in every layer.

    The model's code says which layers turn at all, which channels form a pair and how many pairs there are, so these
    have to be the same.
    """
    for new, old in zip(wanted, encodings_of(part, place), strict=True):
        if not isinstance(old, Rotations) or not isinstance(new, Rotations):
            if isinstance(old, Rotations) or new.doors:
                return False
            continue
        plain = type(new).rotated is Rotations.rotated and new.axes in (old.axes, 0)
        if not plain or new.layout != old.layout or (new.turns_when_attending and horizon is None):
            return False
        if pairs(new) != pairs(old):
            return False
    types = place.types if isinstance(place, RotaryModule) else [None]
    return all(len({repr(e) for e in of_type(wanted, place.stack.node.config, of) if e.doors}) == 1 for of in types)


def pairs(encoding: Encoding) -> int:
    assert encoding.wavelengths is not None
    return len(encoding.wavelengths)


def besides_own(wanted: Sequence[Encoding], part: Part) -> list[Encoding]:
    """What is wanted of each layer without what the model's own code adds to its rotation, which still runs."""
    rest = []
    for new, old in zip(wanted, build_part(part), strict=True):
        own = {repr(e) for e in parts_of(old) if not isinstance(e, Rotations)}
        left = [e for e in parts_of(new) if repr(e) not in own]
        rest.append(Compose(*left) if len(left) > 1 else left[0] if left else build("none", part.shape))
    return rest


def counting(model: nn.Module, places: Sequence[Kind]) -> list[Change]:
    """Hooks that count positions from the padding mask, one before each stack that reads some of these places."""
    counts: dict[nn.Module, CountedFromMask] = {}
    for place in places:
        stack = token_door(model, place.path)
        if stack is None or stack in counts or getattr(place.stack.node.config, "reset_position_index_per_cell", False):
            # Tables of what tokens have besides, such as boxes, come behind that of their positions.
            continue
        if isinstance(place, LearnedTable) and place.first is not None:
            padding = getattr(model.get_submodule(place.path), "padding_idx", None)
            counts[stack] = CountedFromMask(place.first, stack, place.limit(model), padding)
        elif place.door == "turn" and not place.stack.node.of_images:
            counts[stack] = CountedFromMask(0, stack)
    return [hook(stack, count) for stack, count in counts.items()]


def decoder_parts(model: Any, reading: Reading) -> list[Part]:
    """The parts of a reading that speak of a model's decoder."""
    text = model.config.get_text_config()
    return [part for part in reading.parts if inner(model.config, part.name) is text]


def part_of(place: Kind, reading: Reading) -> Part | None:
    """The part of a reading that speaks of a place."""
    return next((part for part in reading.parts if part.name == place.stack.name), None)


def encodings_of(part: Part, place: Kind) -> list[Encoding]:
    """What a part says of a place, for each layer: of a sum, the one that this kind of place computes."""
    if place.door == "embed":
        # A stack may have several tables, and a projection may follow one.
        return [build(spec, replace(part.shape, dim=place.sizes[-1])) for spec in place.specs()]
    whole = build_part(part)
    return [next((e for e in parts_of(encoding) if isinstance(e, place.takes)), encoding) for encoding in whole]


def build_part(part: Part) -> list[Encoding]:
    """The encoding of each layer; layers that say the same share one."""
    built = {layer: part.encoding(i) for i, layer in enumerate(part.layers)}
    return [built[layer] for layer in part.layers]


def described(encodings: Sequence[Encoding], place: Kind) -> str:
    return ", ".join(dict.fromkeys(repr(e) for e in encodings if isinstance(e, place.takes) or e.doors))
