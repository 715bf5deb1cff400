"""`posenc eject` and `posenc vectors`: an encoding as one file for PyTorch, and as test vectors for ports."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from posenc.cli.options import File, Name, Positional, Usage, Whole
from posenc.foreign import quote

if TYPE_CHECKING:
    from posenc.checkpoints.vocabulary.reading import Reading
    from posenc.encoding.base import Shape


@dataclass
class Eject:
    """Write an encoding as one file that needs PyTorch alone.

    Example: posenc eject rotary --out rope.py

    Run the file to test it: python rope.py. Without --out the text is printed.
    """

    spec: Positional[Annotated[str, Usage("SPEC")]] = ""
    """The encoding, as a spec."""
    out: Annotated[Path | None, Usage("PATH")] = None
    """The file to write."""
    checkpoint: File = None
    """Take the encoding of this checkpoint instead: a folder, a config file, a GGUF file, or a model of the hub."""
    trained_length: Whole = None
    """The trained length (tokens), for schedules that compare with it."""
    bidirectional: bool = False
    """Tokens see both sides, as in an encoder."""
    layout: Name = None
    """Which channels form a pair: half, interleaved or swapped."""
    seq_dim: int = 2
    """The axis of the tokens in q and k: 2 for [B, H, T, D], 1 for [B, T, H, D]."""
    tokens: bool = False
    """Add the embedding of tokens (learned and sinusoidal)."""
    cache: bool = False
    """Add a KV cache."""
    packed: bool = False
    """Add position ids and a mask for several documents in a row."""
    flex: bool = False
    """Add score_mod closures for FlexAttention to biases."""

    def run(self) -> None:
        from posenc.cli import terminal
        from posenc.lab import store
        from posenc.standalone import eject

        if bool(self.spec) == bool(self.checkpoint):
            raise ValueError("give one encoding: a SPEC, such as rotary, or --checkpoint PATH")
        spec, length = self.read_checkpoint() if self.checkpoint else (self.spec, None)
        text = eject(
            spec,
            trained_length=self.trained_length or length,
            causal=not self.bidirectional,
            **{name: getattr(self, name) for name in ("layout", "seq_dim", "tokens", "cache", "packed", "flex")},
        )
        if self.out is None:
            print(text, end="")
            return
        store.write(self.out, text.encode())
        terminal.say(f"File: {self.out} ({len(text.splitlines())} lines, {spec}); python {self.out} tests it")

    def read_checkpoint(self) -> tuple[str, int | None]:
        """Return the encoding of the checkpoint, and its trained length. Raises ValueError if it has several."""
        from posenc.checkpoints.formats import load
        from posenc.checkpoints.inspection.inspect import inspect

        assert self.checkpoint is not None
        reading = inspect(load.find_checkpoint(self.checkpoint, weights=False))
        places = places_of_encodings(reading)
        if not places:
            raise ValueError(f"no encoding was read from {quote(self.checkpoint)}; posenc inspect says what was found")
        if len(places) > 1:
            several = "; ".join(f"{', '.join(where)}: {spec}" for spec, where in places.items())
            raise ValueError(f"{quote(self.checkpoint)} has {several}; give one of them as SPEC")
        (spec,) = places
        return spec, reading.parts[0].trained_length


@dataclass
class Vectors:
    """Write test vectors of an encoding, for ports.

    Example: posenc vectors all --out vectors

    Of each encoding there are NAME.npz and NAME.json: queries, keys and embeddings before and after, and biases, at the
    first positions, at the ends of the trained length and beyond, packed, padded, decoded and moved. The folder also
    has vector_reader.py, which needs NumPy alone and says what the arrays are.
    """

    source: Positional[Annotated[str, Usage("SPEC")]]
    """An encoding, as a spec; a checkpoint, as for inspect; or all, for twenty well-known encodings."""
    out: Annotated[Path, Usage("PATH")] = Path("runs/vectors")
    """The folder to write."""

    def run(self) -> None:
        from posenc import vectors
        from posenc.cli import terminal

        results = [(name, vectors.vectors(spec, shape)) for name, spec, shape in self.named_specs()]
        paths = vectors.write(results, self.out)
        for name, result in results:
            for case, reason in result.description["left_out"].items():
                terminal.note(f"{name} has no case {case}: {reason}")
        terminal.say(f"Files: {len(paths)} in {self.out}; python {paths[0]} {self.out} reads them")

    def named_specs(self) -> "Iterator[tuple[str, str, Shape]]":
        """Yield the name of a file, the spec and the shape of each encoding."""
        from posenc import vectors
        from posenc.catalogue import parse
        from posenc.checkpoints.formats import load
        from posenc.checkpoints.inspection.inspect import inspect

        if self.source == "all":
            yield from ((name, spec, vectors.SHAPE) for name, spec in vectors.FAMILIES.items())
            return
        try:
            parse(self.source)
        except ValueError:
            if not Path(self.source).exists() and "/" not in self.source:
                raise
        else:
            yield "encoding", self.source, vectors.SHAPE
            return
        reading = inspect(load.find_checkpoint(self.source, weights=False))
        for part in reading.parts:
            specs = dict.fromkeys((part.embed, *(layer.spec for layer in part.layers)))
            for number, spec in enumerate(spec for spec in specs if spec != "none"):
                yield f"{part.name or 'model'}-{number}", spec, part.shape


def places_of_encodings(reading: "Reading") -> dict[str, list[str]]:
    """Return the encodings of a checkpoint, and where each of them is used."""
    places = defaultdict[str, list[str]](list)
    for part in reading.parts:
        prefix = f"{part.name}, " if part.name else ""
        if part.embed != "none":
            places[part.embed].append(f"{prefix}embeddings")
        for spec in dict.fromkeys(layer.spec for layer in part.layers if layer.spec != "none"):
            numbers = [number for number, layer in enumerate(part.layers) if layer.spec == spec]
            whole = len(numbers) == len(part.layers)
            places[spec].append(f"{prefix}{'all layers' if whole else f'layers {list_of(numbers)}'}")
    return dict(places)


def list_of(numbers: list[int]) -> str:
    """Return the first numbers of a list, and how many there are."""
    return (
        ", ".join(map(str, numbers))
        if len(numbers) < 5
        else f"{', '.join(map(str, numbers[:3]))}, ... ({len(numbers)})"
    )
