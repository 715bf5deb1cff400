"""Coordinate maps: where tokens stand, changed before any encoding sees them.

A map moves the coordinates of every document and leaves alone who is padding, what comes before what, which document a
token belongs to, and the declared length. So every encoding can be trained on random, shifted, skipped or
task-given positions without knowing of it. Maps look at data; like a tokenizer they run before the model and outside a
compiled graph. A sequence that is decoded step by step is mapped once and whole, and its steps take their rows.

    at = Randomised(longest=2048)(Positions.count(40))
    model(ids, positions=at)

What is random is drawn for each row, and for each document in it, and never from the global random state. Without a
generator the draw is that of the map's seed, the same at every call; a training run hands one generator to all its
calls, so that every step is another draw. Positions of one row that a whole batch shares are one draw that it shares,
unless token ids of more rows are given.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import reduce
from typing import ClassVar

import torch
from torch import Tensor

from posenc import checks
from posenc.positions import Positions


@dataclass(frozen=True, repr=False, kw_only=True)
class CoordinateMap:
    """Base of the maps: frozen numbers, printed as they are written in a spec. A subclass places one document."""

    source: ClassVar[str] = ""
    also_called: ClassVar[tuple[str, ...]] = ()
    at_evaluation: ClassVar[str] = "the same map"
    reads_ids: ClassVar[bool] = False

    seed = 0

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        """The new coordinates [n, A] of one document's tokens, from the old ones, in their causal order.

        ids [n] are the token ids, where the map reads them.
        """
        raise NotImplementedError

    def __call__(
        self, at: Positions, ids: Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Positions:
        """The same tokens elsewhere; padding stays where it is.

        ids        token ids [T] or [B, T], for the maps that read them
        generator  what to draw from (on the CPU); default: a fresh one from the map's seed
        Raises ValueError for missing ids, or ids that do not fit the positions.
        """
        rows = max(at.order.shape[0], at.coords.shape[0])
        if self.reads_ids and ids is None:
            raise ValueError(f"{self} reads token ids; give ids of shape [B, T] beside the positions")
        none = torch.zeros(1, at.tokens, dtype=torch.long, device="cpu")
        tokens = none if ids is None else torch.atleast_2d(checks.tensor("ids", ids)).cpu()
        if (
            tokens.dim() != 2
            or tokens.shape[1] != at.tokens
            or (1 not in (tokens.shape[0], rows) and tokens.shape[0] != rows)
        ):
            raise ValueError(
                f"ids must have shape [{rows}, {at.tokens}] to go with the positions, got {list(tokens.shape)}"
            )
        rows = max(rows, tokens.shape[0])
        old = at.coords.cpu().expand(rows, -1, -1)
        tokens = tokens.expand(rows, -1)
        master = torch.Generator("cpu").manual_seed(self.seed) if generator is None else generator
        placed = []
        for row in range(rows):
            # Each row, and each document in it, has a stream of its own: a neighbour's length changes no draw.
            stream = branch(master)
            for document in documents(at, row):
                new = self.place(old[row, document], tokens[row, document], branch(stream))
                placed.append((row, document, new))
        coords = old.to(reduce(torch.promote_types, (new.dtype for _, _, new in placed), old.dtype)).clone()
        for row, document, new in placed:
            coords[row, document] = new.to(coords.dtype)
        return at.with_coords(coords.to(at.coords.device))

    def __repr__(self) -> str:
        given = [f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if getattr(self, f.name) != f.default]
        return f"{name_of(type(self))}({', '.join(given)})"

    __str__ = __repr__


def name_of(cls: type[CoordinateMap]) -> str:
    """The name of a map in specs: its class name in small letters."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()


def branch(generator: torch.Generator) -> torch.Generator:
    """A generator of its own, seeded by one draw from another."""
    seed = torch.randint(2**62, (), generator=generator, device="cpu")
    return torch.Generator("cpu").manual_seed(int(seed))


def documents(at: Positions, row: int) -> Iterator[Tensor]:
    """The token indices of every document of a row, each in causal order, without padding."""
    order = at.order[row if at.order.shape[0] > 1 else 0].cpu()
    tokens = order.argsort(stable=True)
    tokens = tokens[order[tokens] >= 0]
    if at.document is None:
        if tokens.numel():
            yield tokens
        return
    document = at.document[row if at.document.shape[0] > 1 else 0].cpu()[tokens]
    for one in dict.fromkeys(document.tolist()):
        yield tokens[document == one]


def one_axis(who: CoordinateMap, coords: Tensor) -> None:
    if coords.shape[1] != 1:
        raise ValueError(f"{who} counts along one axis, got positions with {coords.shape[1]} axes")


def whole(who: CoordinateMap, name: str, least: int) -> None:
    """Raises ValueError unless a field is a whole number of at least so much."""
    checks.whole(f"{name_of(type(who))}: {name}", getattr(who, name), least)


def number(who: CoordinateMap, name: str, least: float | None = None, *, above: float | None = None) -> None:
    """Raises ValueError unless a field is a finite number, of at least so much or above something."""
    checks.number(f"{name_of(type(who))}: {name}", getattr(who, name), least, above=above)


@dataclass(frozen=True, repr=False, kw_only=True)
class Randomised(CoordinateMap):
    """Give the n tokens of a document n different whole positions out of a longer range, in order.

    p_1 < p_2 < ... < p_n,  a random subset of 0..longest-1

    longest  the range (positions); 2048 in the paper
    seed     of the draws

    At evaluation: the same map. The released code draws at test time as well; a model trained on gaps has hardly seen
    neighbours 0, 1, 2, ..., so leaving the map away there is another experiment.

    Raises ValueError for a document longer than the range.
    Source: Ruoss et al. 2023, arXiv:2305.16843, section 3.

    >>> at = Randomised(longest=100)(Positions.count(4))
    >>> bool((at.coords.diff(dim=1) > 0).all())
    True
    """

    source: ClassVar[str] = "Ruoss et al. 2023, arXiv:2305.16843, section 3"
    also_called: ClassVar[tuple[str, ...]] = ("randomized", "randomized_positions")
    at_evaluation: ClassVar[str] = "the same map: the released code draws at test time as well"

    longest: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "longest", 1)
        whole(self, "seed", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        one_axis(self, coords)
        n = len(coords)
        if n > self.longest:
            raise ValueError(
                f"{self} has {self.longest} positions, too few for a document of {n} tokens; choose longest={n} or more"
            )
        return torch.randperm(self.longest, generator=draw, device="cpu")[:n].sort().values[:, None]


@dataclass(frozen=True, repr=False, kw_only=True)
class RandomisedContinuous(CoordinateMap):
    """Give the n tokens of a document n random real positions out of a range, in order.

    random: p_1 <= p_2 <= ... <= p_n, sorted draws from U[0, longest)
    even:   p_i = longest (2 i - 1) / (2 max(trained, n)),  i = 1..n

    longest  the range (positions); 1 in the paper
    even     False for training: random. True for evaluation: evenly spread, nothing is drawn
    trained  the trained length (tokens), for even ones
    seed     of the draws

    At evaluation: even=True, as in the paper. There n counts the document's tokens: a sequence that still grows needs
    its final length as `trained`, else every step would move all tokens.

    Source: Shimizu, Taniguchi, Matsuo 2026, arXiv:2602.14050.

    >>> RandomisedContinuous(longest=8, even=True)(Positions.count(4)).coords[0, :, 0].tolist()
    [1.0, 3.0, 5.0, 7.0]
    """

    source: ClassVar[str] = "Shimizu, Taniguchi, Matsuo 2026, arXiv:2602.14050"
    also_called: ClassVar[tuple[str, ...]] = ("random_float_sampling", "rfs")
    at_evaluation: ClassVar[str] = "even=True: evenly spread over the same range"

    longest: float
    even: bool = False
    trained: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        number(self, "longest", above=0)
        checks.kind(f"{name_of(type(self))}: even", self.even, bool)
        whole(self, "trained", 1)
        whole(self, "seed", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        one_axis(self, coords)
        n = len(coords)
        if self.even:
            share = (2 * torch.arange(n, dtype=torch.float64, device="cpu") + 1) / (2 * max(self.trained, n))
        else:
            share = torch.rand(n, generator=draw, dtype=torch.float64, device="cpu").sort().values
        return self.longest * share[:, None]


@dataclass(frozen=True, repr=False, kw_only=True)
class Shifted(CoordinateMap):
    """Move every token by the same distance.

    p' = p + by

    by  the distance (positions; along every axis)

    At evaluation: the same map, or none; an encoding that reads distances cannot tell.

    Raises ValueError where whole positions would fall below 0.
    Source: a shift as such is common property.

    >>> Shifted(by=3)(Positions.count(2)).coords[0, :, 0].tolist()
    [3, 4]
    """

    source: ClassVar[str] = "common property; the random one: Kiyono et al. 2021, arXiv:2109.05644"

    by: float

    def __post_init__(self) -> None:
        number(self, "by")

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        moved = coords + self.by if self.by % 1 else coords + int(self.by)
        if not moved.is_floating_point() and int(moved.min()) < 0:
            raise ValueError(
                f"{self} moves position {int(coords.min())} below 0; give floating positions if that is meant"
            )
        return moved


@dataclass(frozen=True, repr=False, kw_only=True)
class ShiftedAtRandom(CoordinateMap):
    """Move every document by a random whole distance, so that absolute positions tell only where tokens lie to another.

    p' = p + k,  k drawn from 0..most

    most  the largest distance (positions; drawn for every axis)
    seed  of the draws

    At evaluation: none (k = 0), as in the paper.

    Source: Kiyono et al. 2021, arXiv:2109.05644, section 3.

    >>> at = ShiftedAtRandom(most=50)(Positions.count(3))
    >>> at.coords[0, :, 0].diff().tolist()
    [1, 1]
    """

    source: ClassVar[str] = "Kiyono et al. 2021, arXiv:2109.05644, section 3"
    also_called: ClassVar[tuple[str, ...]] = ("shape", "shifted_absolute")
    at_evaluation: ClassVar[str] = "none: positions start at 0"

    most: int
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "most", 0)
        whole(self, "seed", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        return coords + torch.randint(self.most + 1, (1, coords.shape[1]), generator=draw, device="cpu")


@dataclass(frozen=True, repr=False, kw_only=True)
class Augmented(CoordinateMap):
    """Shift every document, jitter every token, and stretch the whole, all at random.

    p'_i = (p_i + D + e_i) s,  D from U(-shift, shift),  e_i from U(-jitter, jitter),  ln s from U(-ln scale, ln scale)

    shift   the largest shift of a document (positions; drawn for every axis)
    jitter  the largest shift of one token (positions); up to 0.5 neighbours keep their order
    scale   the largest stretch (ratio, 1 or more)
    seed    of the draws

    At evaluation: none, as in the paper. Its variant that first subtracts each document's mean position is left out.

    Source: Likhomanenko et al. 2021, arXiv:2106.03143, section 3.

    >>> bool((Augmented(shift=5.0)(Positions.count(9)).coords.diff(dim=1) >= 0).all())
    True
    """

    source: ClassVar[str] = "Likhomanenko et al. 2021, arXiv:2106.03143, section 3"
    also_called: ClassVar[tuple[str, ...]] = ("continuous_augmented", "cape_augmented")
    at_evaluation: ClassVar[str] = "none: positions as they are"

    shift: float
    jitter: float = 0.5
    scale: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        number(self, "shift", 0)
        number(self, "jitter", 0)
        number(self, "scale", 1)
        whole(self, "seed", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        n, axes = coords.shape

        def between(most: float, *shape: int) -> Tensor:
            return most * (2 * torch.rand(*shape, generator=draw, dtype=torch.float64, device="cpu") - 1)

        # The jitter comes last: the draws of a document's start do not depend on its length.
        shift, stretch = between(self.shift, 1, axes), between(math.log(self.scale), 1, 1).exp()
        return (coords.double() + shift + between(self.jitter, n, axes)) * stretch


@dataclass(frozen=True, repr=False, kw_only=True)
class SkippedChunks(CoordinateMap):
    """Cut a document into chunks that lie apart: neighbours inside a chunk, random gaps between them.

    p_i = i + u_c(i),  0 = u_1 <= u_2 <= ... <= longest - n, each drawn from what its predecessor leaves

    longest  the range to be covered (positions): the context that one fine-tunes for
    chunks   into how many pieces, at random cuts; 2 in the paper
    seed     of the draws

    At evaluation: none; positions in a row, up to longest.

    The released code cuts in the first half and takes the second chunk's text from further on; which text stands there
    is for the data, not for a map. The first chunk starts at 0, as in the released code.

    Raises ValueError for a document longer than the range.
    Source: Zhu et al. 2023, arXiv:2309.10400, section 3.

    >>> at = SkippedChunks(longest=64)(Positions.count(8))
    >>> int((at.coords.diff(dim=1) != 1).sum()) <= 1
    True
    """

    source: ClassVar[str] = "Zhu et al. 2023, arXiv:2309.10400, section 3"
    also_called: ClassVar[tuple[str, ...]] = ("pose", "positional_skip")
    at_evaluation: ClassVar[str] = "none: positions in a row"

    longest: int
    chunks: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "longest", 1)
        whole(self, "chunks", 1)
        whole(self, "seed", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        one_axis(self, coords)
        n = len(coords)
        if n > self.longest:
            raise ValueError(
                f"{self} has {self.longest} positions, too few for a document of {n} tokens; choose longest={n} or more"
            )
        # Cuts between tokens: where one falls, the gap before this token opens.
        cuts = 1 + torch.randperm(n - 1, generator=draw, device="cpu")[: self.chunks - 1].sort().values
        at, skipped = torch.arange(n, device="cpu"), 0
        for cut in cuts.tolist():
            further = int(torch.randint(skipped, self.longest - n + 1, (), generator=draw, device="cpu")) - skipped
            skipped += further
            at[cut:] += further
        return at[:, None]


@dataclass(frozen=True, repr=False, kw_only=True)
class Abacus(CoordinateMap):
    """Count the digits of every number from 1, from its first digit on; all other tokens stand at 0.

    p = k + 1, k + 2, ... inside a number,  k drawn from 0..most once for a document

    first_digit  token id of the digit 0; the ids of digits follow one another
    digits       how many digits there are
    most         the largest offset (positions): it trains the rows that longer numbers will need; 99 in the paper
    seed         of the draws

    At evaluation: most=0, as in the released code. Numbers have to be written with the last digit first, else equal
    positions are no equal significance. The released code draws one k for a batch, this one for each document.

    Source: McLeish et al. 2024, arXiv:2405.17399, section 3.

    >>> Abacus(first_digit=0)(Positions.count(6), torch.tensor([7, 2, 11, 4, 4, 12])).coords[0, :, 0].tolist()
    [1, 2, 0, 1, 2, 0]
    """

    source: ClassVar[str] = "McLeish et al. 2024, arXiv:2405.17399, section 3"
    also_called: ClassVar[tuple[str, ...]] = ("digit_positions",)
    at_evaluation: ClassVar[str] = "most=0: digits count from 1"
    reads_ids: ClassVar[bool] = True

    first_digit: int
    digits: int = 10
    most: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "first_digit", 0)
        whole(self, "digits", 1)
        whole(self, "most", 0)
        whole(self, "seed", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        one_axis(self, coords)
        digit, place = in_runs(ids, self.first_digit, self.digits)
        offset = torch.randint(self.most + 1, (), generator=draw, device="cpu")
        return torch.where(digit, place + 1 + offset, 0)[:, None]


@dataclass(frozen=True, repr=False, kw_only=True)
class Coupled(CoordinateMap):
    """Give digits of equal significance the same position, in every number of a sum.

    p = k + width - s for a digit of significance s (0 for ones),  k + width + 1 for what is no digit,
    k drawn from 1..most+1 once for a document

    first_digit  token id of the digit 0; the ids of digits follow one another
    equals       token id behind which the result stands, written with its ones first
    width        digits of the longest number, the result included (positions)
    digits       how many digits there are
    most         how far a document may start from 1 (positions)
    seed         of the draws

    Numbers before `equals` are written with their ones last; each must be complete, the result may still grow.

    At evaluation: most=0, or the same map. The released code counts back from the longest operand of each sum; here it
    is from `width`, the same up to the start, so that positions do not depend on tokens to come.

    Raises ValueError for a number of more digits than width.
    Source: Cho et al. 2024, arXiv:2405.20671, section 3.

    >>> ids = torch.tensor([5, 3, 10, 4, 11, 7, 5])  # 53+4=75, the result reversed
    >>> Coupled(first_digit=0, equals=11, width=3)(Positions.count(7), ids).coords[0, :, 0].tolist()
    [3, 4, 5, 4, 5, 4, 3]
    """

    source: ClassVar[str] = "Cho et al. 2024, arXiv:2405.20671, section 3"
    also_called: ClassVar[tuple[str, ...]] = ("position_coupling",)
    at_evaluation: ClassVar[str] = "the same map, or most=0 for one fixed start"
    reads_ids: ClassVar[bool] = True

    first_digit: int
    equals: int
    width: int
    digits: int = 10
    most: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        whole(self, "first_digit", 0)
        whole(self, "equals", 0)
        whole(self, "width", 1)
        whole(self, "digits", 1)
        whole(self, "most", 0)
        whole(self, "seed", 0)
        if self.first_digit <= self.equals < self.first_digit + self.digits:
            raise ValueError(f"coupled: equals must be no digit, got the id {self.equals} of one")

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        one_axis(self, coords)
        digit, place = in_runs(ids, self.first_digit, self.digits)
        _, from_end = in_runs(ids.flip(0), self.first_digit, self.digits)
        behind = (ids == self.equals).cumsum(0) > 0
        significance = torch.where(behind, place, from_end.flip(0))
        longest = int(torch.where(digit, significance, -1).max()) + 1
        if longest > self.width:
            raise ValueError(
                f"{self} holds numbers of {self.width} digits, got one of {longest}; choose width={longest}"
            )
        ones = self.width + 1 + torch.randint(self.most + 1, (), generator=draw, device="cpu")
        return torch.where(digit, ones - significance, ones + 1)[:, None]


def in_runs(ids: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Which of the tokens [n] are digits, and how many digits stand before each one in its number."""
    digit = (ids >= first) & (ids < first + count)
    token = torch.arange(len(ids), device="cpu")
    # The last token that was no digit is where a number's count begins.
    last = torch.where(digit, -1, token).cummax(0).values
    return digit, token - last - 1


@dataclass(frozen=True, repr=False, kw_only=True)
class Restarted(CoordinateMap):
    """Count from 0 again behind every separator.

    p = the number of tokens since the last separator before it, which is itself the end of its piece

    separator  token id of it

    At evaluation: the same map. Causality stays: a token still sees the pieces before its own, unlike packed documents.

    Source: a reset as such is common property (Megatron-LM, --reset-position-ids).

    >>> Restarted(separator=9)(Positions.count(5), torch.tensor([3, 3, 9, 3, 3])).coords[0, :, 0].tolist()
    [0, 1, 2, 0, 1]
    """

    source: ClassVar[str] = "common property (Megatron-LM, --reset-position-ids)"
    also_called: ClassVar[tuple[str, ...]] = ("reset_position_ids",)
    reads_ids: ClassVar[bool] = True

    separator: int

    def __post_init__(self) -> None:
        whole(self, "separator", 0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        one_axis(self, coords)
        token = torch.arange(len(ids), device="cpu")
        begins = torch.where(torch.cat((ids.new_zeros(1), (ids == self.separator)[:-1].long())) == 1, token, 0)
        return (token - begins.cummax(0).values)[:, None]


@dataclass(frozen=True, repr=False, kw_only=True)
class Interpolated(CoordinateMap):
    """Squeeze positions, so that a longer text falls into the trained range.

    p' = p / factor

    factor  target length / trained length (along every axis); below 1 it stretches

    At evaluation: the same map. For rotary it is the linear schedule; here every encoding has it. Without
    fine-tuning the short range suffers at once.

    Source: Chen et al. 2023, arXiv:2306.15595, section 2.3.

    >>> Interpolated(factor=2)(Positions.count(4)).coords[0, :, 0].tolist()
    [0.0, 0.5, 1.0, 1.5]
    """

    source: ClassVar[str] = "Chen et al. 2023, arXiv:2306.15595, section 2.3"
    also_called: ClassVar[tuple[str, ...]] = ("position_interpolation",)

    factor: float

    def __post_init__(self) -> None:
        number(self, "factor", above=0)

    def place(self, coords: Tensor, ids: Tensor, draw: torch.Generator) -> Tensor:
        return coords.double() / self.factor


COORDINATE_MAPS: dict[str, type[CoordinateMap]] = {
    name_of(cls): cls
    for cls in (
        Randomised,
        RandomisedContinuous,
        Shifted,
        ShiftedAtRandom,
        Augmented,
        SkippedChunks,
        Abacus,
        Coupled,
        Restarted,
        Interpolated,
    )
}
"""The maps by their names in specs, such as randomised(longest=2048)."""
