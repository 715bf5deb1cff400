"""Rotary as the modules of transformers do it: which spec turns unit vectors as each layer did."""

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.catalogue import build
from posenc.checkpoints.kinds.distances.relative_sines import makes_sines
from posenc.checkpoints.kinds.kind import Stack
from posenc.checkpoints.kinds.rotary.keys import Options, by_keys, rope_keys, rope_options
from posenc.checkpoints.models.nodes import Node, every_layer, of_role
from posenc.checkpoints.models.turns import Turn
from posenc.checkpoints.vocabulary.ledger import in_words
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checkpoints.vocabulary.specs import rotary_spec, spec_of
from posenc.encoding.base import Shape
from posenc.encodings.rotations.image_rotary import normalised_grid
from posenc.encodings.rotations.rotary import LAYOUTS
from posenc.tokens.positions import Positions

NEAR = 2e-5
"""By how much turned unit vectors may differ at the first positions, where the modules take angles in float32."""


GRIDS = (
    *itertools.product(("image_rotary",), (None,), (None, "interleaved"), (None,)),
    *itertools.product(("axial_rotary",), (None, 3), (None, "interleaved", "half_by_axis"), (None, "dealt")),
)
"""The encodings of patches, by their names and options: axes, layout, frequencies."""


def rotary_layers(stack: Stack) -> list[tuple[str, int]] | None:
    """The spec of each layer and the channels that it is given; None where neither keys nor modules turn anything."""
    node, turned, besides = stack.node, stack.turned, stack.besides
    turns = by_layer([turn for turn in node.seen.turns if of_role(turn.path, stack.role)])
    # Sines of distances are projected, and turn nothing.
    frequencies = [item for item in stack.pieces("frequencies") if not makes_sines(stack, item.path)]
    idle = [item for item in frequencies if never_applied(node, item.path)]
    for item in idle:
        frequencies.remove(item)
        node.claimed.add(item.path)
        besides.append(f"{item.path} is built and turns nothing")
    dictionaries = rope_keys(node)
    if idle and not frequencies and not turns:
        return [("none", turned)] * stack.layers
    if not turns and not frequencies and (node.modules or not dictionaries):
        return None
    options = {label: rope_options(node, rope, turned) for label, rope in dictionaries.items()}
    told = by_keys(node, stack.layers, options)
    neighbours = node.keys.flag("rope_interleave", "pairs of neighbouring channels: {}")
    usual = "interleaved" if neighbours else "half"
    if turns:
        tries = list(dict.fromkeys(one for one in (*told, *options.values()) if one is not None))
        layers = [measured(stack, turns, told[i], i, tries, usual) for i in range(stack.layers)]
        if options and not node.of_images:
            compare(node, told, layers, besides)
    else:
        if frequencies:
            reason = node.seen.failure or "no rotary code was seen to run"
            node.leave(f"its layout could not be measured ({reason}); {usual} is assumed")
        layers = [(option.spec(usual), option.head_dim) if option else ("none", turned) for option in told]
    return with_temperature(node, layers)


def never_applied(node: Node, path: str) -> bool:
    """Whether a run of what is around a module with frequencies turned nothing by them: it is no position code then."""
    owner, seen = path.rpartition(".")[0], node.seen
    around = owner.rpartition(".")[0]
    if seen.failure or around not in seen.entered:
        return False
    return owner not in seen.entered or bool(seen.turners and not seen.turns)


def measured(
    stack: Stack, turns: Mapping[int, Turn], option: Options | None, layer: int, tries: list[Options], usual: str
) -> tuple[str, int]:
    """The spec of one layer: what the keys say if its modules turn so, else whatever else explains them."""
    node, turn = stack.node, turns.get(layer)
    if turn is None and layer > max(turns) and node.seen.failure:
        node.leave(
            f"layers from {max(turns) + 1} on were not measured ({node.seen.failure}); they are as the keys say, or as "
            f"those before"
        )
        if node.of_images:
            return measured(stack, turns, option, max(turns), tries, usual)
        layout = next((one.layout for one in turns.values() if one.moved.any()), None)
        return (option.spec(layout or usual), option.head_dim) if option else ("none", stack.turned)
    if turn is None or not turn.moved.any():
        return "none", stack.turned
    key = id(turn.matrices), option
    if key not in node.explained:
        # Layers mostly share their matrices.
        first = [option] if option else []
        node.explained[key] = on_grid(stack, turn, tries) or explained(stack, turn, [*first, *tries])
    found = node.explained[key]
    if found is None:
        node.leave(f"{every_layer(turn.path)} turns its channels as no spec here says")
    return found or ("none", stack.turned)


def compare(node: Node, told: list[Options | None], layers: list[tuple[str, int]], besides: list[str]) -> None:
    """Say which layers turn or not against what the keys say."""
    if any("turns its channels" in sentence for sentence in node.keys.not_covered):
        return
    still = [i for i, (spec, _) in enumerate(layers) if spec == "none" and told[i]]
    turning = [i for i, (spec, _) in enumerate(layers) if spec != "none" and not told[i]]
    if still:
        besides.append(f"layers {in_words(still)} do not turn, which is measured and no key here says")
    if turning:
        besides.append(f"layers {in_words(turning)} turn, which is measured and no key here says")
    for key in filter(re.compile(r"rope\w*_layer").search, node.keys.given):
        node.keys.say(key, "which layers turn; what the modules do is followed")


def by_layer(turns: list[Turn]) -> dict[int, Turn]:
    """The first turn of each layer of the stack with the most turns: queries, or queries and keys at once."""
    stacks: dict[str, dict[int, Turn]] = {}
    for turn in turns:
        match = re.search(r"^(.*?)(?:^|\.)(\d+)(?:\.|$)", turn.path)
        stack, layer = (match.group(1), int(match.group(2))) if match else ("", 0)
        stacks.setdefault(stack, {}).setdefault(layer, turn)
    return max(stacks.values(), key=len) if stacks else {}


def explained(stack: Stack, turn: Turn, tries: list[Options]) -> tuple[str, int] | None:
    """The first spec that turns unit vectors as a layer did, and its channels; None where none does."""
    node = stack.node
    try:
        seen, sections = fitted(turn, stack.turned), sections_of(node, turn.path)
    except CannotRead:
        return None
    for option in (*tries, seen):
        wanted = option if sections is None else with_sections(node, option, *sections)
        for one in widths_of(wanted, turn.matrices.shape[-1]):
            for layout in LAYOUTS:
                # A spec that cannot be built is no explanation.
                with contextlib.suppress(ValueError):
                    if agrees(turn, one.spec(layout), one.head_dim, stack.shape, node.rounding):
                        # Heads of another width turn by the same share where the keys say nothing else of them.
                        if one.width * option.head_dim > option.width * one.head_dim:
                            node.keys.contradict(
                                f"the keys say that {option.width} of {option.head_dim} channels of a head turn, and "
                                f"in the modules {one.width} do; followed: the modules"
                            )
                        if tries and option is seen:
                            node.keys.contradict(
                                f"the keys say {tries[0].spec(layout)}, and the modules turn by {one.spec(layout)}; "
                                f"followed: the modules"
                            )
                        return one.spec(layout), one.head_dim
    return None


def widths_of(option: Options, channels: int) -> Iterator[Options]:
    """What the keys say; then the same for a head, or a share of it, as wide as the modules have it."""
    yield option
    if option.width < channels == option.head_dim and option.proportion is None:
        # Where no schedule is named, some modules do not ask which share of a head turns.
        yield replace(option, width=channels)
    if channels != option.head_dim and option.sections is None and channels % 2 == 0:
        if channels < option.head_dim:
            yield replace(option, width=channels)
        yield replace(option, head_dim=channels, width=channels)


def images_of(encoding: Any, at: Positions) -> Tensor:
    """What an encoding makes of unit vectors at positions [T, D, D], one a row."""
    unit = torch.eye(encoding.head_dim, dtype=torch.float64)[:, None, None].expand(-1, 1, at.coords.shape[1], -1)
    return encoding.query(unit, at)[:, 0].movedim(0, 1)


def agrees(turn: Turn, spec: str, head_dim: int, shape: Shape, rounding: float = 0.0) -> bool:
    """Whether an encoding does to unit vectors what a layer did, up to a shuffle of channels after the turn."""
    tokens, channels = min(turn.matrices.shape[0], 4), turn.matrices.shape[-1]
    encoding = build(spec, replace(shape, head_dim=head_dim))
    at = Positions.of(torch.arange(tokens))
    if channels > head_dim:
        return False
    images = images_of(encoding, at.with_horizon(tokens) if encoding.turns_when_attending else at)
    images = images[:, :channels, :channels]
    warm = float(images[0].norm(dim=-1)[turn.moved].mean()) if turn.moved.any() else 1.0
    # At position 0 nothing turns, so that only the temperature is to be taken out.
    relative = images / images[0].diagonal() - turn.relative[:tokens]
    return math.isclose(warm, turn.temperature, rel_tol=1e-5) and bool(relative.abs().max() < NEAR + tokens * rounding)


def fitted(turn: Turn, turned: int) -> Options:
    """Rotary as its fastest two pairs show it, where no key speaks of it."""
    angles = sorted((abs(angle) for _, _, angle in turn.pairs()), reverse=True)
    width = int(turn.moved.sum())
    base = float(f"{angles[1] ** (-width / 2):.5g}") if len(angles) > 1 and 0 < angles[1] < 1 else 10_000.0
    return Options(turned, width, base)


def sections_of(node: Node, path: str) -> tuple[tuple[int, ...], str] | None:
    """How many pairs read time, height and width, and in which order, where a layer tells the three apart."""
    turn = next((turn for turn in node.on_axes if turn.path == path), None)
    if turn is None:
        return None
    # The pairs that turn at any of the tokens.
    turned = (Turn(turn.path, turn.matrices[[0, token]]).pairs() for token in range(1, turn.matrices.shape[0]))
    pairs = sorted({min(first, second): (first, second) for of in turned for first, second, _ in of}.values())
    moved = (turn.relative - torch.eye(turn.matrices.shape[-1])).abs().amax(2)  # [T, D]
    axes = [int(moved[1:, first].argmax()) for first, _ in pairs]
    sections = tuple(axes.count(axis) for axis in range(max(axes) + 1))
    if sections[0] == len(pairs):
        return None
    for order in ("chunked", "interleaved", "time_last"):
        spec = rotary_spec(head_dim=2 * len(pairs), sections=sections, order=order)
        with contextlib.suppress(ValueError):
            encoding: Any = build(spec, Shape(1, 1, 2 * len(pairs), 1))
            if encoding.axis_of_pair() == axes:
                return sections, order
    return sections, "as no spec here says"


def with_sections(node: Node, option: Options, sections: tuple[int, ...], order: str) -> Options:
    """An option with what was measured of its axes; keys that say otherwise are contradicted."""
    if order not in ("chunked", "interleaved", "time_last"):
        node.leave(f"its pairs share out time, height and width {sections} {order}")
        return option
    if option.sections is not None and (option.sections, option.order or order) != (sections, order):
        node.keys.contradict(
            f"mrope_section says {option.sections} ({option.order or order}), and the modules turn {sections} "
            f"({order}); followed: the modules"
        )
    return replace(option, sections=sections, order=order)


def on_grid(stack: Stack, turn: Turn, tries: list[Options]) -> tuple[str, int] | None:
    """The spec that turns the patches of an image as a layer did, and its channels; None where none does.

    Where a token stands is read off one pair of each axis, and all other pairs have to agree.
    """
    channels, count = turn.matrices.shape[-1], turn.matrices.shape[0]
    # Tokens of a row, and far ones.
    tokens = sorted({*range(min(count, 6)), count // 2, count - 1})
    bases = list(dict.fromkeys(option.base for option in tries)) or [10_000.0]
    for base, (name, axes, layout, frequencies) in itertools.product(bases, GRIDS) if stack.node.of_images else ():
        spec = spec_of(name, axes=axes, base=None if base == 100 else base, layout=layout, frequencies=frequencies)
        try:
            encoding: Any = build(spec, Shape(channels, 1, channels, 1, False))
        except ValueError:
            continue
        square = name == "image_rotary"
        seen = turn.matrices.double() if square else turn.relative[tokens]
        coords = places_of(seen, encoding)
        at = Positions.of(coords[None])
        if (images_of(encoding, at) - seen).abs().max() > NEAR or not coords.abs().max() > 0.01:
            continue
        if square and is_square(coords):
            return spec, channels
        # All axes count in the same steps: otherwise it is the frequencies that differ between them.
        far = coords.abs()
        steps = coords / far[far > 0.01].min()
        if not square and (steps - steps.round()).abs().max() < 1e-3:
            step, besides = f"{float(far[1].max()):.3g}", list[str]()
            if encoding.axes == 2 and far[1, 0] > 100 * far[1, 1]:
                besides.append("the column of a patch is the first coordinate, and the row the second")
            if step not in ("0", "1"):
                besides.append(f"patches stand {step} apart, not 1, in some layers")
            stack.besides += [sentence for sentence in besides if sentence not in stack.besides]
            return spec, channels
    return None


def places_of(seen: Tensor, encoding: Any) -> Tensor:
    """Where tokens stand [T, A] that an encoding of several axes turned as was seen [T, D, D]."""
    count = encoding.head_dim // (2 * encoding.axes)
    pairs, coords = encoding.formula_pairs(count * encoding.axes), []
    for axis in range(encoding.axes):
        place = torch.zeros(len(seen), dtype=torch.float64)
        angles = encoding.formula_angles(tuple(float(a == axis) for a in range(encoding.axes)))
        # The slowest pair says how often the fastest has gone round, which says more exactly where.
        for pair in ((axis + 1) * count - 1, axis * count):
            (first, second), speed = pairs[pair], angles[pair]
            angle = torch.atan2(seen[:, first, second], seen[:, first, first])
            place = (angle + 2 * math.pi * ((place * speed - angle) / (2 * math.pi)).round()) / speed
        coords.append(place)
    return torch.stack(coords, -1)


def is_square(coords: Tensor) -> bool:
    """Whether tokens stand where the patches of a square image do, behind some without a place."""
    squares = (normalised_grid(side, side).coords[0] for side in range(2, math.isqrt(len(coords)) + 1))
    return any((F.pad(one, (0, 0, len(coords) - len(one), 0)) - coords).abs().max() < 1e-3 for one in squares)


def with_temperature(node: Node, layers: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """The layers with what sharpens queries by their position: Llama 4 where nothing turns, Ministral 3 everywhere."""
    keys = node.keys
    if keys.flag("attn_temperature_tuning", "queries are sharpened with their position: {}"):
        interval = keys.number("floor_scale", "in steps of {} positions", 8192)
        strength = keys.number("attn_scale", "by {} times a logarithm", 0.1)
        extra = spec_of("step_temperature", interval=int(interval), strength=strength, form="llama4")
        layers = [(extra if spec == "none" else spec, wide) for spec, wide in layers]
    for rope in rope_keys(node).values():
        beta = rope.number("llama_4_scaling_beta", "queries are sharpened by {} times a logarithm")
        interval = rope.whole("original_max_position_embeddings", "trained length {} before stretching")
        if beta and interval:
            extra = spec_of("step_temperature", interval=interval, strength=beta, form="ministral")
            layers = [(f"{spec} + {extra}" if spec != "none" else extra, wide) for spec, wide in layers]
    return layers
