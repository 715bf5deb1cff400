"""Rotary as the modules of transformers do it: which spec turns unit vectors as each layer did."""

import contextlib
import itertools
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posenc.catalogue import build
from posenc.checkpoints.kinds.kind import Stack
from posenc.checkpoints.kinds.relative_sines import makes_sines
from posenc.checkpoints.kinds.rotary_keys import Options, by_keys, rope_keys, rope_options
from posenc.checkpoints.models.found import Found
from posenc.checkpoints.models.nodes import Node, every_layer, of_role
from posenc.checkpoints.models.turns import Turn
from posenc.checkpoints.vocabulary.ledger import in_words
from posenc.checkpoints.vocabulary.reading import CannotRead
from posenc.checkpoints.vocabulary.specs import rotary_spec, spec_of
from posenc.encoding import Shape
from posenc.encodings.image_rotary import ImageRotary, normalised_grid
from posenc.positions import Positions

NEAR = 2e-5
"""By how much turned unit vectors may differ at the first positions, where the modules take angles in float32."""


def rotary_layers(stack: Stack) -> list[tuple[str, int]] | None:
    """The spec of each layer and the channels that it is given; None where neither keys nor modules turn anything."""
    node, role, shape, turned = stack.node, stack.role, stack.shape, stack.turned
    count, besides = stack.layers, stack.besides
    turns = by_layer([turn for turn in node.seen.turns if of_role(turn.path, role)])
    # Sines of distances are projected, and turn nothing.
    frequencies = [item for item in stack.pieces("frequencies") if not makes_sines(stack, item.path)]
    idle = [item for item in frequencies if never_applied(node, item.path)]
    for item in idle:
        frequencies.remove(item)
        node.claimed.add(item.path)
        besides.append(f"{every_layer(item.path)} is built and turns nothing")
    dictionaries = rope_keys(node)
    if idle and not frequencies and not turns:
        return [("none", turned)] * count
    if not turns and not frequencies and (node.modules or not dictionaries):
        return None
    options = {label: rope_options(node, rope, turned) for label, rope in dictionaries.items()}
    told = by_keys(node, count, options)
    neighbours = node.keys.flag("rope_interleave", "pairs of neighbouring channels: {}")
    usual = "interleaved" if neighbours else "half"
    if turns:
        layers = axial_layers(node, turns, list(options.values()), count, besides)
        layers = layers or [measured(node, turns, told, i, options, turned, usual, shape) for i in range(count)]
        if options:
            compare(node, told, layers, besides)
    else:
        if frequencies:
            reason = node.seen.failure or "no rotary code was seen to run"
            node.leave(f"its layout could not be measured ({reason}); {usual} is assumed")
        layers = [(option.spec(usual), option.head_dim) if option else ("none", turned) for option in told]
    claim_frequencies(node, frequencies, layers, shape)
    return with_temperature(node, layers)


def never_applied(node: Node, path: str) -> bool:
    """Whether a run of what is around a module with frequencies turned nothing by them: it is no position code then."""
    owner, seen = path.rpartition(".")[0], node.seen
    around = owner.rpartition(".")[0]
    if seen.failure or around not in seen.entered:
        return False
    return owner not in seen.entered or bool(seen.turners and not seen.turns)


def measured(
    node: Node,
    turns: Mapping[int, Turn],
    told: list[Options | None],
    layer: int,
    options: Mapping[str, Options],
    turned: int,
    usual: str,
    shape: Shape,
) -> tuple[str, int]:
    """The spec of one layer: what the keys say if its modules turn so, else whatever else explains them."""
    turn, option = turns.get(layer), told[layer]
    if turn is None and layer > max(turns) and node.seen.failure:
        node.leave(f"layers from {max(turns) + 1} on were not measured ({node.seen.failure}); they are as the keys say")
        layout = next((one.layout for one in turns.values() if one.moved.any()), None)
        return (option.spec(layout or usual), option.head_dim) if option else ("none", turned)
    if turn is None or not turn.moved.any():
        return "none", turned
    tries = list(dict.fromkeys(one for one in (option, *told, *options.values()) if one is not None))
    key = id(turn.matrices), option
    if key not in node.explained:
        # Layers mostly share their matrices.
        node.explained[key] = explained(node, turn, tries, turned, shape)
    found = node.explained[key]
    if found is None:
        node.leave(f"{every_layer(turn.path)} turns its channels as no spec here says")
    return found or ("none", turned)


def compare(node: Node, told: list[Options | None], layers: list[tuple[str, int]], besides: list[str]) -> None:
    """Say which layers turn or not against what the keys say."""
    if any("turns its channels as no spec" in sentence for sentence in node.keys.not_covered):
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


def explained(node: Node, turn: Turn, tries: list[Options], turned: int, shape: Shape) -> tuple[str, int] | None:
    """The first spec that turns unit vectors as a layer did, and its channels; None where none does."""
    try:
        seen, sections = fitted(turn, turned), sections_of(node, turn.path)
    except CannotRead:
        return None
    for option in (*tries, seen):
        wanted = option if sections is None else with_sections(node, option, *sections)
        for one in widths_of(wanted, turn.matrices.shape[-1]):
            for layout in ("half", "interleaved"):
                # A spec that cannot be built is no explanation.
                with contextlib.suppress(ValueError):
                    if agrees(turn, one.spec(layout), one.head_dim, shape, node.rounding):
                        if one.width > option.width:
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


def agrees(turn: Turn, spec: str, head_dim: int, shape: Shape, rounding: float = 0.0) -> bool:
    """Whether an encoding does to unit vectors what a layer did, up to a shuffle of channels after the turn."""
    tokens = min(turn.matrices.shape[0], 4)
    encoding = build(spec, replace(shape, head_dim=head_dim))
    at = Positions.of(torch.arange(tokens))
    if encoding.turns_when_attending:
        at = at.with_horizon(tokens)
    unit = torch.eye(head_dim, dtype=torch.float64)[:, None, None].expand(-1, 1, tokens, -1)
    images = encoding.query(unit, at)[:, 0].movedim(0, 1)  # [T, D, D]
    channels = turn.matrices.shape[-1]
    if channels > head_dim:
        return False
    images = images[:, :channels, :channels]
    first = images[0].diagonal()
    warm = float(images[0].norm(dim=-1)[turn.moved].mean()) if turn.moved.any() else 1.0
    if not math.isclose(warm, turn.temperature, rel_tol=1e-5):
        return False
    # At position 0 nothing turns, so that only the temperature is to be taken out.
    return bool((images / first - turn.relative[:tokens]).abs().max() < NEAR + tokens * rounding)


def fitted(turn: Turn, turned: int) -> Options:
    """Rotary as its fastest two pairs show it, where no key speaks of it."""
    angles = sorted((abs(angle) for _, _, angle in turn.pairs()), reverse=True)
    width = int(turn.moved.sum())
    base = float(f"{angles[1] ** (-width / 2):.5g}") if len(angles) > 1 and 0 < angles[1] < 1 else 10_000.0
    return Options(turned, width, base)


def sections_of(node: Node, path: str) -> tuple[tuple[int, ...], str] | None:
    """How many pairs read time, height and width, and in which order, where a layer tells the three apart."""
    turn = next((turn for turn in node.on_axes if turn.path == path and turn.matrices.shape[0] >= 4), None)
    if turn is None:
        return None
    pairs = sorted({min(first, second): (first, second) for first, second, _ in pairs_of_any(turn)}.values())
    moved = (turn.relative - torch.eye(turn.matrices.shape[-1])).abs().amax(2)  # [T, D]
    axes = [int(moved[1:4, first].argmax()) for first, _ in pairs]
    sections = tuple(axes.count(axis) for axis in range(3))
    if sections[0] == len(pairs):
        return None
    for order in ("chunked", "interleaved", "time_last"):
        spec = rotary_spec(head_dim=2 * len(pairs), sections=sections, order=order)
        with contextlib.suppress(ValueError):
            encoding: Any = build(spec, Shape(1, 1, 2 * len(pairs), 1))
            if encoding.axis_of_pair() == axes:
                return sections, order
    return sections, "as no spec here says"


def pairs_of_any(turn: Turn) -> list[tuple[int, int, float]]:
    """The pairs that turn at any of the tokens."""
    found = []
    for token in range(1, turn.matrices.shape[0]):
        found += Turn(turn.path, turn.matrices[[0, token]]).pairs()
    return found


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


def axial_layers(
    node: Node, turns: Mapping[int, Turn], options: list[Options], count: int, besides: list[str]
) -> list[tuple[str, int]] | None:
    """The layers of a tower whose pairs read the row or the column of a patch; None where it is no such tower."""
    first = turns[min(turns)]
    if not (node.keys.has("image_size") or node.keys.has("patch_size")) or not first.moved.any():
        return None
    for base in [option.base for option in options] or [10_000.0]:
        of = {id(turn.matrices): image_spec(turn, base) or axial_spec(turn, base) for turn in turns.values()}
        found = [one for one in of.values() if one is not None]
        if not found:
            continue
        spec, column_first, _ = found[0]
        if len(found) < len(of) or any(one[:2] != (spec, column_first) for one in found):
            return None
        if column_first:
            besides.append("the column of a patch is the first coordinate, and the row the second")
        steps = {f"{step:.3g}" for _, _, step in found} - {"0", "1"}
        if steps:
            besides.append(f"patches stand {' or '.join(sorted(steps))} apart, not 1, in some layers")
        wide = first.matrices.shape[-1]
        if node.seen.failure and max(turns) < count - 1:
            last = f"layers from {max(turns) + 1} on were not measured ({node.seen.failure})"
            node.leave(f"{last}; they are taken to turn as those before")
            return [(spec, wide)] * count
        return [(spec, wide) if i in turns and turns[i].moved.any() else ("none", wide) for i in range(count)]
    return None


def axial_spec(turn: Turn, base: float) -> tuple[str, bool, float] | None:
    """The axial rotary that turns unit vectors as a layer did; None where none does.

    With it go whether columns come before rows, and how far the second patch is from the first. Where a token stands is
    read off one pair of each axis, and all other pairs have to agree.
    """
    channels, count = turn.matrices.shape[-1], turn.matrices.shape[0]
    # Tokens of a row, and far ones.
    tokens = sorted({*range(min(count, 6)), count // 2, count - 1})
    relative = turn.relative[tokens]
    unit = torch.eye(channels, dtype=torch.float64)[:, None, None]
    for axes, layout, frequencies in itertools.product(
        (2, 3), ("half", "interleaved", "half_by_axis"), ("language", "dealt")
    ):
        spec = spec_of(
            "axial_rotary",
            axes=None if axes == 2 else axes,
            base=None if base == 100 else base,
            layout=None if layout == "half" else layout,
            frequencies=None if frequencies == "language" else frequencies,
        )
        try:
            encoding: Any = build(spec, Shape(channels, 1, channels, 1, False))
        except ValueError:
            continue
        coords = []
        for step in torch.eye(axes):
            image = encoding.query(unit, Positions.of(step[None, None]))[:, 0, 0]
            beside = (image - image.diagonal().diag()).abs()
            moved = [int(i) for i in beside.amax(1).argsort() if beside[i].any()]
            place = torch.zeros(len(tokens), dtype=torch.float64)
            for row in (moved[0], int(image.diagonal().argmin())):
                other = int(beside[row].argmax())
                speed = math.atan2(image[row, other], image[row, row])
                angle = torch.atan2(relative[:, row, other], relative[:, row, row])
                # The slowest pair says how often the fastest has gone round, which says more exactly where.
                place = (angle + 2 * math.pi * ((place * speed - angle) / (2 * math.pi)).round()) / speed
            coords.append(place)
        at = Positions.of(torch.stack(coords, -1)[None])
        images = encoding.query(unit.expand(-1, 1, len(tokens), -1), at)[:, 0].movedim(0, 1)
        far = at.coords.abs()
        if (images - relative).abs().max() < NEAR and far.max() > 0.01:
            # All axes count in the same steps: otherwise it is the frequencies that differ between them.
            steps = at.coords / far[far > 0.01].min()
            if (steps - steps.round()).abs().max() < 1e-3:
                second = far[0, 1]
                return spec, axes == 2 and bool(second[0] > 100 * second[1]), float(second.max())
    return None


def image_spec(turn: Turn, base: float) -> tuple[str, bool, float] | None:
    """The image rotary that turns unit vectors as a layer did: a square of patches behind tokens without a place."""
    channels, tokens = turn.matrices.shape[-1], turn.matrices.shape[0]
    unit = torch.eye(channels, dtype=torch.float64)[:, None, None]
    for side in range(2, math.isqrt(tokens) + 1):
        at, first = normalised_grid(side, side), tokens - side * side
        if (turn.matrices[:first] - torch.eye(channels)).abs().max() > NEAR if first else False:
            continue
        for layout in ("half", "interleaved"):
            options = {"base": None if base == 100 else base, "layout": None if layout == "half" else layout}
            spec = spec_of("image_rotary", **options)
            with contextlib.suppress(ValueError):
                encoding = build(spec, Shape(channels, 1, channels, 1, False))
                images = encoding.query(unit.expand(-1, 1, side * side, -1), at)[:, 0].movedim(0, 1)
                if (images - turn.matrices[first:]).abs().max() < NEAR:
                    return spec, False, 1.0
    return None


def claim_frequencies(node: Node, items: list[Found], layers: list[tuple[str, int]], shape: Shape) -> None:
    """Hold the frequencies and temperatures of the modules to those of the layers; what differs stays unclaimed."""
    for spec, head_dim in dict.fromkeys(layers):
        if spec == "none":
            continue
        encoding: Any = build(spec, replace(shape, head_dim=head_dim))
        spectra = axial_spectra(encoding) if encoding.axes > 1 else [encoding.spectrum()]
        for item in items:
            for frequencies, temperature in spectra:
                assert item.values is not None
                warm = float(temperature.flatten()[0]) if isinstance(temperature, Tensor) else temperature
                if same_numbers(frequencies, item.values, node.rounding) and math.isclose(
                    warm, item.temperature, rel_tol=1e-6
                ):
                    node.claimed.add(item.path)


def axial_spectra(encoding: Any) -> list[tuple[Tensor, float]]:
    """The frequencies of one axis, and those of all: modules hold the one or the other."""
    if isinstance(encoding, ImageRotary):
        # Modules hold the frequencies without the 2 pi.
        return [(encoding.periods.reciprocal(), 1.0)]
    spectra = [encoding.spectrum(axis) for axis in range(encoding.axes)]
    return [(spectra[0], 1.0), (torch.cat(spectra), 1.0)]


def same_numbers(frequencies: Tensor, values: Tensor, rounding: float) -> bool:
    """Whether two sets of frequencies are the same, in whatever order the pairs of a model lie."""
    ours, theirs = (x.double().flatten().sort().values for x in (frequencies, values))
    return ours.shape == theirs.shape and torch.allclose(ours, theirs, rtol=1e-5 + rounding, atol=0)


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
