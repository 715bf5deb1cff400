"""Put posenc's modules into a live transformers model, and take them out again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from posenc.catalogue import LayerSpec, build, build_layers
from posenc.checkpoints.formats.config_json import MARK as CONFIG_MARK
from posenc.checkpoints.formats.config_json import config_at
from posenc.checkpoints.kinds.added.learned_table import LearnedTable
from posenc.checkpoints.kinds.all_kinds import KINDS
from posenc.checkpoints.kinds.calls import PositionsFromMask, token_module
from posenc.checkpoints.kinds.kind import CannotFill, Kind, Undo, hook
from posenc.checkpoints.kinds.rotary.module import RotaryModule, encodings_of_type
from posenc.checkpoints.vocabulary.reading import Part, Reading, names_no_code
from posenc.encoding.base import Compose, Encoding, parts_of
from posenc.encodings.rotations import Rotations

MARK = "posenc_attachment"
"""The attribute of a model that holds its Attachment."""


@dataclass
class Attachment:
    """The changes of `attach` in a model; a context manager that detaches at the end.

    replaced  path of a piece of the model -> the encoding that computes it now
    left      path of a recognised piece that did not change -> the reason
    """

    model: nn.Module
    replaced: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    changes: list[Undo] = field(default_factory=list)
    undo: list[Callable[[], None]] = field(default_factory=list)

    def detach(self) -> None:
        """Restore the model's own modules."""
        detach(self.model)

    def __enter__(self) -> "Attachment":
        return self

    def __exit__(self, *_: object) -> None:
        if MARK in self.model.__dict__:
            self.detach()

    def __getstate__(self) -> dict[str, Any]:
        # Its hooks follow this model and its caches; those of a copy would follow the original.
        if self.undo:
            raise TypeError(
                f"a {type(self.model).__name__} that attends through posenc cannot be copied or pickled; detach it, "
                f"copy it, and attach both"
            )
        return self.__dict__


def attach(model: nn.Module, encoding: LayerSpec | None = None, *, horizon: int | None = None) -> Attachment:
    """Let posenc compute the position code of a live transformers model, in place. The weights stay the model's own.

    posenc's encodings compute the model's rotary (RoPE) tables, learned tables, ALiBi and buckets in place, so any
    attention and any cache of transformers can use them. Encodings that need unturned keys or another attention rule
    go through transformers' AttentionInterface.

    model     a transformers model
    encoding  None for the model's own by its config: each new piece is compared with the old one, number by number,
              before use. If `posenc convert` wrote an encoding into the config, that one. Else a spec, an encoding, or
              a tuple of them that is cycled over the layers, for the decoder, whatever it was trained with
    horizon   the length of every sequence (tokens), for encodings that depend on one; the default is the number of
              tokens so far of each sequence, at every step

    Afterwards positions are exact in any dtype of the model. If the caller passes a padding mask and no `position_ids`,
    the first token of each row is at 0, unless the model takes no ids (BART) or numbers in its own way (Nystroemformer,
    YOSO, TAPAS). A position past a learned table raises an error before the model runs. `save_pretrained` and
    `state_dict` give what they gave before, and the parameters of an encoding that has some. The model can be copied
    and pickled, unless it attends through the interface: then that raises.

    Limits: a piece does not change if it is not recognised, if the config's reading lacks it, or if it computes other
    numbers (`Attachment.left`, with the reason). Code of the model that mixes positions with other things (temperatures
    by position, masks) still runs.

    Raises ValueError for a model in which no piece could be replaced (with the reasons: if a piece and the config's
    reading compute different numbers, the place and the numbers), for one that is attached already, and for an encoding
    that does not fit the model; TypeError for another object than a transformers model.
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
            f"{', '.join(dict.fromkeys(kind.description.removeprefix('a ') for kind in KINDS))}"
            f"{''.join(f'; {sentence}' for sentence in reading.not_covered)}"
        )
    attachment = Attachment(model)
    config_encoding = getattr(config, CONFIG_MARK, None)
    if encoding is None and config_encoding is not None:
        encoding = config_encoding if isinstance(config_encoding, str) else tuple(config_encoding)
        for spec in [encoding] if isinstance(encoding, str) else encoding:
            names_no_code(spec)
    try:
        if encoding is None:
            fill_as_read(attachment, places, reading, horizon)
        else:
            fill_with_encoding(attachment, places, reading, encoding, horizon)
    except BaseException:
        take_out(attachment)
        raise
    model.__dict__[MARK] = attachment
    return attachment


def detach(model: nn.Module) -> None:
    """Take posenc's modules out of a model, and restore its modules, methods and hooks.

    Raises ValueError for a model that is not attached.
    """
    attachment = model.__dict__.get(MARK)
    if attachment is None:
        inner_path = next((path for path, module in model.named_modules() if MARK in module.__dict__), None)
        hint = f"; it is attached to its '{inner_path}'" if inner_path else ""
        raise ValueError(f"nothing is attached to this {type(model).__name__}{hint}")
    take_out(attachment)
    del model.__dict__[MARK]


def take_out(attachment: Attachment) -> None:
    for take_back in (*reversed(attachment.undo), *reversed(attachment.changes)):
        take_back()


def fill_as_read(attachment: Attachment, places: Sequence[Kind], reading: Reading, horizon: int | None) -> None:
    """Fill each place with the encoding of the config's reading, compared with the model's own numbers."""
    filled_places: list[Kind] = []
    for place in places:
        part = part_for(place, reading)
        try:
            if part is None:
                raise CannotFill(f"the config's reading has no part for it: {place.path} is {place.description}")
            encodings = place_encodings(part, place)
            by_horizon = place.door == "turn" and any(e.turns_when_attending for e in encodings)
            if by_horizon and horizon is None:
                attach_attention(attachment, place, encodings, None)
                continue
            # The model's own modules know no declared horizon, so there is nothing to compare with.
            attachment.changes += place.fill(attachment.model, encodings, horizon, exact=not by_horizon)
        except ValueError as reason:
            attachment.left[place.path or place.description] = str(reason)
            continue
        filled_places.append(place)
        attachment.replaced[place.path or place.description] = encoding_text(encodings, place)
    if not attachment.replaced:
        reasons = "; ".join((*attachment.left.values(), *reading.not_covered))
        raise ValueError(f"nothing in {type(attachment.model).__name__} could be replaced: {reasons}")
    attachment.changes += counting_hooks(attachment.model, filled_places)


def fill_with_encoding(
    attachment: Attachment, places: Sequence[Kind], reading: Reading, encoding: LayerSpec, horizon: int | None
) -> None:
    """Fill the places of the decoder, or of the only stack, with the caller's encoding."""
    model: Any = attachment.model
    paths = {part.name for part in decoder_parts(model, reading)}
    decoder_places = [p for p in places if p.stack.node.path in paths] or [p for p in places if not p.stack.node.path]
    filled_places: list[Kind] = []
    for place in decoder_places or places:
        part = part_for(place, reading)
        if part is None:
            raise ValueError(
                f"the config of {type(model).__name__} says too little to build {encoding} for {place.path}: "
                f"{'; '.join(reading.not_covered) or 'no part of it was read'}"
            )
        encodings = encodings_for_heads(encoding, part, place.stack.shape.causal)
        encodings = without_own_biases(encodings, part) if place.door == "turn" else encodings
        if place.door == "turn" and not fits_tables(place, encodings, part, horizon):
            attach_attention(attachment, place, encodings, horizon)
            continue
        attachment.changes += place.fill(model, encodings, horizon, exact=False)
        filled_places.append(place)
        attachment.replaced[place.path or place.description] = encoding_text(encodings, place)
    attachment.changes += counting_hooks(attachment.model, filled_places)


def encodings_for_heads(encoding: LayerSpec, part: Part, causal: bool) -> list[Encoding]:
    """Build the caller's encoding for each layer, whose heads may differ in width."""
    cycle: list[Any] = list(encoding) if isinstance(encoding, (list, tuple)) else [encoding]
    by_layer: dict[int, Encoding] = {}
    for width in dict.fromkeys(layer.head_dim for layer in part.layers):
        numbers = [number for number, layer in enumerate(part.layers) if layer.head_dim == width]
        layer_specs = [cycle[number % len(cycle)] for number in numbers] if cycle else ()
        shape = replace(part.shape, head_dim=width, causal=causal)
        by_layer |= dict(zip(numbers, build_layers(tuple(layer_specs), shape, len(numbers))[1], strict=True))
    return [by_layer[number] for number in range(len(part.layers))]


def attach_attention(attachment: Attachment, place: Kind, encodings: Sequence[Encoding], horizon: int | None) -> None:
    """Let the decoder attend through encodings that no table of cosines and sines expresses."""
    from posenc.checkpoints.live.unturned_keys import attach_unturned

    # One attention serves the whole decoder, which may have several rotary modules.
    if not attachment.undo:
        attachment.undo.append(attach_unturned(attachment.model, encodings, horizon=horizon))
    attachment.replaced[place.path or place.description] = f"{encoding_text(encodings, place)}, on unturned keys"


def fits_tables(place: Kind, encodings: Sequence[Encoding], part: Part, horizon: int | None) -> bool:
    """Whether the model's own code can compute these encodings from a table of cosines and sines.

    The model's code fixes which layers rotate, which channels form a pair and the number of pairs, so the encodings
    must agree in these.
    """
    for new, old in zip(encodings, place_encodings(part, place), strict=True):
        if not isinstance(old, Rotations) or not isinstance(new, Rotations):
            if isinstance(old, Rotations) or new.doors:
                return False
            continue
        plain = type(new).rotated is Rotations.rotated and new.axes in (old.axes, 0)
        if not plain or new.layout != old.layout or (new.turns_when_attending and horizon is None):
            return False
        if pair_count(new) != pair_count(old):
            return False
    config, types = place.stack.node.config, place.types if isinstance(place, RotaryModule) else [None]
    return all(len({repr(e) for e in encodings_of_type(encodings, config, kind) if e.doors}) == 1 for kind in types)


def pair_count(encoding: Encoding) -> int:
    assert encoding.wavelengths is not None
    return len(encoding.wavelengths)


def without_own_biases(encodings: Sequence[Encoding], part: Part) -> list[Encoding]:
    """Return the encodings without the parts that the model's own code still adds, such as its biases."""
    rest = []
    for new, old in zip(encodings, build_part(part), strict=True):
        own_biases = {repr(e) for e in parts_of(old) if not isinstance(e, Rotations)}
        terms = [e for e in parts_of(new) if repr(e) not in own_biases]
        rest.append(Compose(*terms) if len(terms) > 1 else terms[0] if terms else build("none", part.shape))
    return rest


def counting_hooks(model: nn.Module, places: Sequence[Kind]) -> list[Undo]:
    """Hook a count of positions from the padding mask before each stack that reads some of these places."""
    counts: dict[nn.Module, PositionsFromMask] = {}
    for place in places:
        stack = token_module(model, place.path)
        if stack is None or stack in counts or getattr(place.stack.node.config, "reset_position_index_per_cell", False):
            # Tables of other features of tokens, such as boxes, follow the table of positions.
            continue
        if isinstance(place, LearnedTable) and place.first is not None:
            padding = getattr(model.get_submodule(place.path), "padding_idx", None)
            counts[stack] = PositionsFromMask(place.first, stack, place.limit(model), padding)
        elif place.door == "turn" and not place.stack.node.of_images:
            counts[stack] = PositionsFromMask(0, stack)
    return [hook(stack, count) for stack, count in counts.items()]


def decoder_parts(model: nn.Module, reading: Reading) -> list[Part]:
    """Return the parts of a reading for the decoder of a model."""
    config: Any = model.config
    return [part for part in reading.parts if config_at(config, part.name) is config.get_text_config()]


def part_for(place: Kind, reading: Reading) -> Part | None:
    """Return the part of a reading for a place."""
    return next((part for part in reading.parts if part.name == place.stack.name), None)


def place_encodings(part: Part, place: Kind) -> list[Encoding]:
    """Return the encoding of a place for each layer. Of a sum it is the term that this kind of place computes."""
    if place.door == "embed":
        # A stack may have several tables, and a projection may follow a table.
        return [build(spec, replace(part.shape, dim=place.sizes[-1])) for spec in place.specs()]
    whole = build_part(part)
    return [next((e for e in parts_of(encoding) if isinstance(e, place.takes)), encoding) for encoding in whole]


def build_part(part: Part) -> list[Encoding]:
    """Build the encoding of each layer; equal layers share an instance."""
    by_layer = {layer: part.encoding(i) for i, layer in enumerate(part.layers)}
    return [by_layer[layer] for layer in part.layers]


def encoding_text(encodings: Sequence[Encoding], place: Kind) -> str:
    return ", ".join(dict.fromkeys(repr(e) for e in encodings if isinstance(e, place.takes) or e.doors))
