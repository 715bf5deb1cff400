"""Measure RoPE (rotary) in transformers: find the spec that rotates unit vectors as each layer did."""

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
from posenc.checkpoints.kinds.kind import LayerStack
from posenc.checkpoints.kinds.rotary.keys import Options, layer_options, rope_keys, rope_options
from posenc.checkpoints.models.nodes import ConfigNode, every_layer, has_role
from posenc.checkpoints.models.rotations import Turn
from posenc.checkpoints.vocabulary.ledger import show_value
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checkpoints.vocabulary.specs import new_spec, rotary_spec
from posenc.encoding.base import Shape
from posenc.encodings.rotations.image_rotary import normalised_grid
from posenc.encodings.rotations.rotary import LAYOUTS
from posenc.tokens.positions import Positions

ATOL = 2e-5
"""Tolerance of rotated unit vectors at the first positions, where modules compute angles in float32."""


GRIDS = (
    *itertools.product(("image_rotary",), (None,), (None, "interleaved"), (None,)),
    *itertools.product(("axial_rotary",), (None, 3), (None, "interleaved", "half_by_axis"), (None, "dealt")),
)
"""The encodings of patches, by their names and options: axes, layout, frequencies."""


def rotary_layers(stack: LayerStack) -> list[tuple[str, int]] | None:
    """Return the spec and head dimension of each layer; None if neither keys nor modules rotate anything."""
    node, rotary_dim, remarks = stack.node, stack.rotary_dim, stack.remarks
    turns = turns_by_layer([turn for turn in node.trace.turns if has_role(turn.path, stack.role)])
    # Sines of distances are projected, and rotate nothing.
    frequencies = [item for item in stack.pieces("frequencies") if not makes_sines(stack, item.path)]
    idle = [item for item in frequencies if is_unused(node, item.path)]
    for item in idle:
        frequencies.remove(item)
        node.claimed_paths.add(item.path)
        remarks.append(f"{item.path} is built and turns nothing")
    dictionaries = rope_keys(node)
    if idle and not frequencies and not turns:
        return [("none", rotary_dim)] * stack.layers
    if not turns and not frequencies and (node.modules or not dictionaries):
        return None
    options = {label: rope_options(node, rope, rotary_dim) for label, rope in dictionaries.items()}
    key_options = layer_options(node, stack.layers, options)
    neighbours = node.keys.flag("rope_interleave", "pairs of neighbouring channels: {}")
    usual = "interleaved" if neighbours else "half"
    if turns:
        tries = list(dict.fromkeys(option for option in (*key_options, *options.values()) if option is not None))
        layers = [measure_layer(stack, turns, key_options[i], i, tries, usual) for i in range(stack.layers)]
        if options and not node.of_images:
            compare_with_keys(stack, key_options, layers)
    else:
        if frequencies:
            reason = node.trace.failure or "no rotary code was seen to run"
            node.leave(f"its layout could not be measured ({reason}); {usual} is assumed")
        layers = [(option.spec(usual), option.head_dim) if option else ("none", rotary_dim) for option in key_options]
    return add_step_temperature(node, layers)


def is_unused(node: ConfigNode, path: str) -> bool:
    """Whether a module's frequencies are no position code, because its parent ran without using them."""
    owner, trace = path.rpartition(".")[0], node.trace
    parent = owner.rpartition(".")[0]
    if trace.failure or parent not in trace.entered_paths:
        return False
    return owner not in trace.entered_paths or bool(trace.rotary_count and not trace.turns)


def measure_layer(
    stack: LayerStack, turns: Mapping[int, Turn], option: Options | None, layer: int, tries: list[Options], usual: str
) -> tuple[str, int]:
    """Return the spec of one layer: the keys' if its modules rotate so, else one that matches them."""
    node, turn = stack.node, turns.get(layer)
    if turn is None and layer > max(turns) and node.trace.failure:
        node.leave(
            f"layers from {max(turns) + 1} on were not measured ({node.trace.failure}); they are as the keys say, or "
            f"as those before"
        )
        if node.of_images:
            return measure_layer(stack, turns, option, max(turns), tries, usual)
        layout = next((t.layout for t in turns.values() if t.moving_channels.any()), None)
        return (option.spec(layout or usual), option.head_dim) if option else ("none", stack.rotary_dim)
    if turn is None or not turn.moving_channels.any():
        return "none", stack.rotary_dim
    key = id(turn.matrices), option
    if key not in node.explanations:
        # Layers mostly share their matrices.
        first = [option] if option else []
        node.explanations[key] = grid_spec(stack, turn, tries) or matching_spec(stack, turn, [*first, *tries])
    match = node.explanations[key]
    if match is None:
        node.leave(f"{every_layer(turn.path)} turns its channels as no spec here says")
    return match or ("none", stack.rotary_dim)


def compare_with_keys(stack: LayerStack, by_keys: list[Options | None], layers: list[tuple[str, int]]) -> None:
    """Add a remark on layers that rotate, or do not, against the keys."""
    keys = stack.node.keys
    if any("turns its channels" in sentence for sentence in keys.not_covered):
        return
    still = [i for i, (spec, _) in enumerate(layers) if spec == "none" and by_keys[i]]
    turning = [i for i, (spec, _) in enumerate(layers) if spec != "none" and not by_keys[i]]
    if still:
        stack.remarks.append(f"layers {show_value(still)} do not turn, which is measured and no key here says")
    if turning:
        stack.remarks.append(f"layers {show_value(turning)} turn, which is measured and no key here says")
    for key in filter(re.compile(r"rope\w*_layer").search, keys.entries):
        keys.note(key, "which layers turn; what the modules do is followed")


def turns_by_layer(turns: list[Turn]) -> dict[int, Turn]:
    """Return the first turn of each layer in the stack with the most turns."""
    stacks: dict[str, dict[int, Turn]] = {}
    for turn in turns:
        match = re.search(r"^(.*?)(?:^|\.)(\d+)(?:\.|$)", turn.path)
        stack, layer = (match.group(1), int(match.group(2))) if match else ("", 0)
        stacks.setdefault(stack, {}).setdefault(layer, turn)
    return max(stacks.values(), key=len) if stacks else {}


def matching_spec(stack: LayerStack, turn: Turn, tries: list[Options]) -> tuple[str, int] | None:
    """Return the first spec that rotates unit vectors as a layer did, and its channels; None without one."""
    node = stack.node
    try:
        from_angles, sections = options_from_angles(turn, stack.rotary_dim), sections_of(node, turn.path)
    except CannotRead:
        return None
    for option in (*tries, from_angles):
        candidate = option if sections is None else with_sections(node, option, *sections)
        for variant in widths_of(candidate, turn.matrices.shape[-1]):
            for layout in LAYOUTS:
                # A spec that cannot be built is no explanation.
                with contextlib.suppress(ValueError):
                    if is_same_turn(turn, variant.spec(layout), variant.head_dim, stack.shape, node.rounding):
                        # Heads of another width turn by the same share where the keys say nothing else of them.
                        if variant.width * option.head_dim > option.width * variant.head_dim:
                            node.keys.contradict(
                                f"the keys say that {option.width} of {option.head_dim} channels of a head turn, and "
                                f"in the modules {variant.width} do; followed: the modules"
                            )
                        if tries and option is from_angles:
                            node.keys.contradict(
                                f"the keys say {tries[0].spec(layout)}, and the modules turn by "
                                f"{variant.spec(layout)}; followed: the modules"
                            )
                        return variant.spec(layout), variant.head_dim
    return None


def widths_of(option: Options, channels: int) -> Iterator[Options]:
    """Yield the options of the keys, then the same with the width of the modules."""
    yield option
    if option.width < channels == option.head_dim and option.proportion is None:
        # Without a schedule some modules ignore the share of a head that rotates.
        yield replace(option, width=channels)
    if channels != option.head_dim and option.sections is None and channels % 2 == 0:
        if channels < option.head_dim:
            yield replace(option, width=channels)
        yield replace(option, head_dim=channels, width=channels)


def images_of(encoding: Any, at: Positions) -> Tensor:
    """Return the unit vectors as an encoding rotates them at T positions [T, D, D], one a row."""
    unit = torch.eye(encoding.head_dim, dtype=torch.float64)[:, None, None].expand(-1, 1, at.coords.shape[1], -1)
    return encoding.query(unit, at)[:, 0].movedim(0, 1)


def is_same_turn(turn: Turn, spec: str, head_dim: int, shape: Shape, rounding: float = 0.0) -> bool:
    """Whether an encoding rotates unit vectors as a layer did, up to a permutation of channels afterwards."""
    tokens, channels = min(turn.matrices.shape[0], 4), turn.matrices.shape[-1]
    encoding = build(spec, replace(shape, head_dim=head_dim))
    at = Positions.of(torch.arange(tokens))
    if channels > head_dim:
        return False
    images = images_of(encoding, at.with_horizon(tokens) if encoding.turns_when_attending else at)
    images = images[:, :channels, :channels]
    warm = float(images[0].norm(dim=-1)[turn.moving_channels].mean()) if turn.moving_channels.any() else 1.0
    # At position 0 only the temperature acts, which is divided out.
    relative = images / images[0].diagonal() - turn.relative[:tokens]
    return math.isclose(warm, turn.temperature, rel_tol=1e-5) and bool(relative.abs().max() < ATOL + tokens * rounding)


def options_from_angles(turn: Turn, rotary_dim: int) -> Options:
    """Return rotary options from the angles of the fastest two pairs."""
    angles = sorted((abs(angle) for _, _, angle in turn.pairs()), reverse=True)
    width = int(turn.moving_channels.sum())
    base = float(f"{angles[1] ** (-width / 2):.5g}") if len(angles) > 1 and 0 < angles[1] < 1 else 10_000.0
    return Options(rotary_dim, width, base)


def sections_of(node: ConfigNode, path: str) -> tuple[tuple[int, ...], str] | None:
    """Return the pairs for time, height and width and their order, if a layer has such axes."""
    turn = next((turn for turn in node.on_axes if turn.path == path), None)
    if turn is None:
        return None
    # The pairs that turn at any of the tokens.
    by_token = (Turn(turn.path, turn.matrices[[0, token]]).pairs() for token in range(1, turn.matrices.shape[0]))
    pairs = sorted({min(a, b): (a, b) for token_pairs in by_token for a, b, _ in token_pairs}.values())
    displacement = (turn.relative - torch.eye(turn.matrices.shape[-1])).abs().amax(2)  # [T, D]
    axes = [int(displacement[1:, first].argmax()) for first, _ in pairs]
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


def with_sections(node: ConfigNode, option: Options, sections: tuple[int, ...], order: str) -> Options:
    """Return options with the measured axes; note a contradiction if the keys have others."""
    if order not in ("chunked", "interleaved", "time_last"):
        node.leave(f"its pairs share out time, height and width {sections} {order}")
        return option
    if option.sections is not None and (option.sections, option.order or order) != (sections, order):
        node.keys.contradict(
            f"mrope_section says {option.sections} ({option.order or order}), and the modules turn {sections} "
            f"({order}); followed: the modules"
        )
    return replace(option, sections=sections, order=order)


def grid_spec(stack: LayerStack, turn: Turn, tries: list[Options]) -> tuple[str, int] | None:
    """Return the spec that rotates image patches as a layer did, and its channels; None without one.

    One pair of each axis gives the coordinates of tokens, and all other pairs have to agree.
    """
    channels, count = turn.matrices.shape[-1], turn.matrices.shape[0]
    # Tokens of a row, and far ones.
    tokens = sorted({*range(min(count, 6)), count // 2, count - 1})
    bases = list(dict.fromkeys(option.base for option in tries)) or [10_000.0]
    for base, (name, axes, layout, frequencies) in itertools.product(bases, GRIDS) if stack.node.of_images else ():
        spec = new_spec(name, axes=axes, base=None if base == 100 else base, layout=layout, frequencies=frequencies)
        try:
            encoding: Any = build(spec, Shape(channels, 1, channels, 1, False))
        except ValueError:
            continue
        square = name == "image_rotary"
        matrices = turn.matrices.double() if square else turn.relative[tokens]
        coords = grid_coordinates(matrices, encoding)
        at = Positions.of(coords[None])
        if (images_of(encoding, at) - matrices).abs().max() > ATOL or not coords.abs().max() > 0.01:
            continue
        if square and is_square(coords):
            return spec, channels
        # All axes have to count in the same steps; otherwise their frequencies differ.
        far = coords.abs()
        steps = coords / far[far > 0.01].min()
        if not square and (steps - steps.round()).abs().max() < 1e-3:
            step, remarks = f"{float(far[1].max()):.3g}", list[str]()
            if encoding.axes == 2 and far[1, 0] > 100 * far[1, 1]:
                remarks.append("the column of a patch is the first coordinate, and the row the second")
            if step not in ("0", "1"):
                remarks.append(f"patches stand {step} apart, not 1, in some layers")
            stack.remarks += [sentence for sentence in remarks if sentence not in stack.remarks]
            return spec, channels
    return None


def grid_coordinates(matrices: Tensor, encoding: Any) -> Tensor:
    """Return the coordinates [T, A] at which an encoding of several axes has these rotations [T, D, D]."""
    count = encoding.head_dim // (2 * encoding.axes)
    pairs, coords = encoding.formula_pairs(count * encoding.axes), []
    for axis in range(encoding.axes):
        place = torch.zeros(len(matrices), dtype=torch.float64)
        angles = encoding.formula_angles(tuple(float(a == axis) for a in range(encoding.axes)))
        # The slowest pair counts the rounds of the fastest, which is more exact.
        for pair in ((axis + 1) * count - 1, axis * count):
            (first, second), speed = pairs[pair], angles[pair]
            angle = torch.atan2(matrices[:, first, second], matrices[:, first, first])
            place = (angle + 2 * math.pi * ((place * speed - angle) / (2 * math.pi)).round()) / speed
        coords.append(place)
    return torch.stack(coords, -1)


def is_square(coords: Tensor) -> bool:
    """Whether coordinates are those of a square image, after some tokens without any."""
    squares = (normalised_grid(side, side).coords[0] for side in range(2, math.isqrt(len(coords)) + 1))
    return any((F.pad(grid, (0, 0, len(coords) - len(grid), 0)) - coords).abs().max() < 1e-3 for grid in squares)


def add_step_temperature(node: ConfigNode, layers: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Return the layers with a temperature by position: Llama 4 without rotary, Ministral 3 everywhere."""
    keys = node.keys
    if keys.flag("attn_temperature_tuning", "queries are sharpened with their position: {}"):
        interval = keys.number("floor_scale", "in steps of {} positions", 8192)
        strength = keys.number("attn_scale", "by {} times a logarithm", 0.1)
        extra = new_spec("step_temperature", interval=int(interval), strength=strength, form="llama4")
        layers = [(extra if spec == "none" else spec, wide) for spec, wide in layers]
    for rope in rope_keys(node).values():
        beta = rope.number("llama_4_scaling_beta", "queries are sharpened by {} times a logarithm")
        interval = rope.whole("original_max_position_embeddings", "trained length {} before stretching")
        if beta and interval:
            extra = new_spec("step_temperature", interval=interval, strength=beta, form="ministral")
            layers = [(f"{spec} + {extra}" if spec != "none" else extra, wide) for spec, wide in layers]
    return layers
