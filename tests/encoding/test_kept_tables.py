"""Kept tables: known by the options of an encoding, the bits of those made on the spot, and in bounded memory."""

import copy
import pickle
import random
import threading
from dataclasses import dataclass
from itertools import product
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from tiers import variants
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from posenc import Positions, catalogue, testing
from posenc.encoding.base import Encoding
from posenc.schedules import Linear
from posenc.testing.subjects import Subject
from posenc.tokens import shared_tables
from posenc.tokens.shared_tables import KEPT, WINDOWS, kept, numbers, options_of


def table_of(at: Positions) -> Tensor:
    """Rows [2, T, 3] that tell their position."""
    coords = at.coords[0, :, 0].double()
    return torch.stack((coords, -coords))[..., None].expand(2, -1, 3).contiguous()


class Rows(Encoding):
    """Adds a table that depends on every option it has."""

    weights: ClassVar[list[float]] = [1.0]

    def __init__(self, rate: float = 1.0, words: tuple[str, ...] = ("a",), schedule: Any = None) -> None:
        super().__init__()
        self.rate, self.words, self.schedule = rate, words, schedule

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + self.once(self.table, at, x.dtype)

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        made.append(str(dtype))
        grown = 1.0 if self.schedule is None else self.schedule.factor
        return (at.coords.double() * self.rate * len(self.words) * grown).to(dtype)


class Scaled(Rows):
    """The same, times its parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = nn.Parameter(torch.ones(()))

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        return super().table(at, dtype) * self.learned.to(dtype)


class Listed(Rows):
    """The same, times a list of its own."""

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        return super().table(at, dtype) * sum(self.weights)


class Counting(Rows):
    """A table that remembers how often it was made."""

    calls = 0

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        self.calls += 1
        return super().table(at, dtype) * self.calls


made: list[str] = []
X = torch.zeros(1, 3, 2, dtype=torch.float64)


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    made.clear()
    KEPT.clear()


def test_encodings_that_hold_the_same_share_a_table_and_others_do_not() -> None:
    at = Positions.count(3)
    for same in (Rows(), Rows(), copy.deepcopy(Rows()), pickle.loads(pickle.dumps(Rows()))):
        assert same(X, positions=at)[0, 2, 0] == 2
    assert len(made) == 1
    assert Rows(3.0)(X, positions=at)[0, 2, 0] == 6
    assert Rows(words=("a", "b"))(X, positions=at)[0, 2, 0] == 4
    assert Rows(schedule=Linear(5))(X, positions=at)[0, 2, 0] == 10
    assert Rows()(X.float(), positions=at).dtype == torch.float32
    assert type("Other", (Rows,), {"table": lambda self, at, dtype: at.coords + 7.0})()(X, positions=at)[0, 0, 0] == 7


@pytest.mark.parametrize("before", [lambda e: e, copy.copy, copy.deepcopy, lambda e: e.double().half()])
def test_an_option_that_is_set_anew_makes_another_table(before) -> None:
    at, source = Positions.count(3), Rows()
    source(X, positions=at)
    changed = before(source)
    changed(X, positions=at)
    changed.rate = 2.0
    assert changed(X, positions=at)[0, 2, 0] == 4
    assert source(X, positions=at)[0, 2, 0] == (4 if source is changed else 2)
    changed.words = ("a", "b", "c")
    assert changed(X, positions=at)[0, 2, 0] == 12
    del changed.schedule
    with pytest.raises(AttributeError, match="schedule"):
        changed(X, positions=at)


def test_a_table_that_reads_a_parameter_is_never_kept() -> None:
    at, scaled = Positions.count(3), Scaled()
    assert scaled(X, positions=at)[0, 2, 0] == 2
    # What no counter of versions sees.
    scaled.learned.data = torch.tensor(3.0)
    assert scaled(X, positions=at)[0, 2, 0] == 6
    for _ in range(2):
        scaled(X, positions=at).sum().backward()
    assert scaled.learned.grad is not None and scaled.learned.grad == 12


def test_what_may_change_unseen_is_never_kept() -> None:
    at, growing = Positions.count(3), SimpleNamespace(factor=1.0)
    rows = Rows(schedule=growing)
    assert rows(X, positions=at)[0, 2, 0] == 2
    growing.factor = 4.0
    assert rows(X, positions=at)[0, 2, 0] == 8
    # Frozen, and yet what it holds may change.
    held = Holding([1.0])
    rows = Rows(schedule=held)
    assert rows(X, positions=at)[0, 2, 0] == 2
    held.factors.append(3.0)
    assert rows(X, positions=at)[0, 2, 0] == 8
    # A list of its own, where the class has one too.
    listed = Listed()
    listed.weights = [2.0]
    assert listed(X, positions=at)[0, 2, 0] == 4
    listed.weights.append(3.0)
    assert listed(X, positions=at)[0, 2, 0] == 10
    counting = Counting()
    assert [counting(X, positions=at)[0, 2, 0].item() for _ in range(3)] == [2, 4, 6]


def test_gradients_and_modes_have_tables_of_their_own() -> None:
    coords = torch.arange(3.0, requires_grad=True)
    at, rows = Positions.of(coords), Rows()
    with torch.inference_mode():
        rows(X, positions=at)
    with torch.no_grad():
        rows(X, positions=at)
    for _ in range(2):
        rows(X, positions=at).sum().backward()
    assert coords.grad is not None and coords.grad.tolist() == [4, 4, 4]


@dataclass
class Open:
    factor: float = 1.0


@dataclass(frozen=True)
class Holding:
    factors: list[float]

    @property
    def factor(self) -> float:
        return sum(self.factors)


def test_options_are_what_cannot_change() -> None:
    values = 1, 1.0, "a", None, range(2), torch.device("cpu"), Linear(2), ((1,), frozenset("a"))
    assert all(options_of(Rows(schedule=value)) for value in values)
    open_ones = torch.zeros(1), Open(), {}, [1], lambda: 0, (1, [2]), SimpleNamespace(), object(), Holding([1.0])
    assert not any(options_of(Rows(schedule=value)) for value in open_ones)


def given_by(encoding: Encoding, at: Positions, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """What doors 1 and 2 make of zeros and ones at these positions, [..., T, channels]."""
    found = []
    if "embed" in encoding.doors:
        found.append(encoding.embed(torch.zeros(1, at.tokens, testing.SHAPE.dim, dtype=dtype, device=device), at))
    if "turn" in encoding.doors:
        shape = (1, testing.SHAPE.heads, at.tokens, testing.SHAPE.head_dim)
        heads = torch.ones(shape, dtype=dtype, device=device)
        found += [encoding.turn(heads, at, "query"), encoding.turn(heads, at, "key")]
    return found


def one_device_after_another(spec: str) -> None:
    """Raises AssertionError, or torch's RuntimeError, where a device gets the table that was made for another."""
    encoding = catalogue.build(spec, testing.SHAPE)
    at = testing.on_axes(Positions.count(3), encoding.axes)
    fresh = given_by(encoding, testing.on_axes(Positions.count(3), encoding.axes), torch.float32)
    for device in ("meta", "cpu", "meta", "cpu"):
        for one, other in zip(given_by(encoding, at, torch.float32, device), fresh, strict=True):
            assert one.device.type == device and (device == "meta" or torch.equal(one, other))


def test_heads_of_several_devices_may_share_positions() -> None:
    for spec in [variants(name)[0] for name in catalogue.names()]:
        # Parameters lie on one device.
        if not [*catalogue.build(spec, testing.SHAPE).parameters()]:
            one_device_after_another(spec)


@pytest.mark.parametrize("spec", ["rotary", "log_temperature"])
def test_a_key_without_the_device_is_found(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    def once(encoding: Encoding, make: Any, at: Positions, *given: Any, **how: bool) -> Tensor:
        key = encoding, make.__func__, *(one for one in given if not isinstance(one, torch.device))
        return shared_tables.once(at, key, lambda: make(at, *given))

    monkeypatch.setattr(Encoding, "once", once)
    with pytest.raises((AssertionError, RuntimeError)):
        one_device_after_another(spec)


@pytest.mark.parametrize("name", ["rotary", "sinusoidal", "xpos", "rotary_values", "polar", "transformer_xl"])
def test_tables_of_another_base_are_others(name: str) -> None:
    shared, x = Positions.count(3, 5), torch.ones(1, 3, testing.SHAPE.dim, dtype=torch.float64)
    nets = [Subject(f"{name}(base={base})").net() for base in (100, 10_000)]
    alike = [net(x, shared) for net in nets]
    alone = [net.apart()(x, Positions.count(3, 5)) for net in nets]
    assert torch.equal(alike[0], alone[0]) and torch.equal(alike[1], alone[1]) and not torch.equal(*alone)


def keeps_tables(spec: str) -> bool:
    """Whether an encoding of one axis keeps a table beyond a call."""
    encoding = catalogue.build(spec, testing.SHAPE)
    KEPT.clear()
    try:
        given_by(encoding, Positions.count(2), torch.float32)
    except ValueError:
        return False
    return bool(KEPT)


KEEPING = [spec for name in catalogue.names() for spec in variants(name)[:2] if keeps_tables(spec)]


def test_encodings_keep_their_tables() -> None:
    names = {spec.partition("(")[0] for spec in KEEPING}
    assert {"rotary", "proportional_rotary", "multimodal_rotary", "xpos"} <= names


@pytest.mark.parametrize("spec", KEEPING)
def test_kept_rows_have_the_bits_of_rows_made_on_the_spot_however_they_are_cut(spec: str) -> None:
    encoding, cuts = catalogue.build(spec, testing.SHAPE), random.Random(0)
    # xPos refuses positions further out.
    windows = [1, 7, 30 if spec.startswith("xpos") else 2_000]
    for dtype, _ in product((torch.float32, torch.float64), range(12)):
        tokens = cuts.choice([1, 2, 3, 17, 130])
        start = 1024 * cuts.choice(windows) - cuts.randrange(-40, 140)
        row = cuts.randrange(tokens)
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            windowed = given_by(encoding, Positions.count(tokens, start), dtype)
            patch.setattr("posenc.tokens.shared_tables.kept", lambda at, key, make: make(at))
            on_the_spot = given_by(encoding, Positions.count(tokens, start), dtype)
            alone = given_by(encoding, Positions.count(1, start + row), dtype)
        for one, other, single in zip(windowed, on_the_spot, alone, strict=True):
            assert torch.equal(one, other) and torch.equal(one[..., row : row + 1, :], single)


@pytest.mark.parametrize(
    ("start", "tokens"), [(0, 1), (4000, 1), (1023, 2), (1_000_000, 7), (0, 1024), (0, 1025), (2048, 2048), (5, 3000)]
)
def test_kept_rows_are_those_that_would_be_made(start: int, tokens: int) -> None:
    for _ in range(2):
        at = Positions.count(tokens, start)
        assert torch.equal(kept(at, "a", table_of), table_of(at))
        # What lies across two windows is not kept.
        assert bool(KEPT) == (start % 1024 + tokens <= 1024)
    # Another key is another table.
    at = Positions.count(tokens, start)
    assert torch.equal(kept(at, "b", lambda at: 2 * table_of(at)), 2 * table_of(at))


def test_decoding_makes_one_window_for_a_thousand_tokens() -> None:
    windows: list[int] = []

    def make(at: Positions) -> Tensor:
        windows.append(at.tokens)
        return table_of(at)

    for position in range(999_000, 1_001_000):
        row = kept(Positions.count(1, position), "a", make)
        assert row.shape == (2, 1, 3) and row[0, 0, 0] == position
    assert windows == [1024] * 3


def test_memory_is_bounded() -> None:
    for number in range(WINDOWS + 3):
        rows = Rows(float(number))
        assert rows.once(rows.table, Positions.count(1), torch.float64, keep=True) == 0
    assert [dict(key[1])["rate"] for key, _ in KEPT] == [float(number) for number in range(3, WINDOWS + 3)]


def test_a_kept_table_may_be_saved_for_a_gradient_whoever_asked_first() -> None:
    with torch.inference_mode():
        kept(Positions.count(1), "a", table_of)
    x = torch.ones(2, 1, 3, dtype=torch.float64, requires_grad=True)
    (x * kept(Positions.count(1), "a", table_of)).sum().backward()


class Kept(Rows):
    """The same, kept beyond the forward pass."""

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + self.once(self.table, at, x.dtype, keep=True)


@pytest.mark.parametrize(
    "at",
    [
        Positions.of(torch.tensor([3, 4])),
        Positions.padded(torch.tensor([[0, 1]])),
        Positions.packed([1, 1]),
        Positions.count(2).with_coords(torch.tensor([[0.5, 1.5]])),
    ],
    ids=["ids", "padded", "packed", "moved"],
)
def test_where_the_start_is_not_known_nothing_is_kept(at: Positions) -> None:
    for _ in range(2):
        assert torch.equal(Kept()(X[:, :2], positions=at), (X[:, :2] + at.coords))
    assert not KEPT and made == ["torch.float64"]


def test_threads_share_kept_tables() -> None:
    wrong: list[int] = []

    def decode(first: int) -> None:
        for position in range(first, first + 4000, 7):
            if kept(Positions.count(1, position), "a", table_of)[0, 0, 0] != position:
                wrong.append(position)

    threads = [threading.Thread(target=decode, args=(first,)) for first in (0, 500, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_gpu_is_given_numbers_one_by_one_and_keeps_them() -> None:
    given = (1.5, -2.0), torch.float64, torch.device("meta")
    with torch.inference_mode():
        made = numbers(*given)
    assert made is numbers(*given) and made is not numbers(given[0], torch.float32, given[2])
    assert made.shape == (2,) and not made.is_inference()
    seen = []

    class Fills(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append((func, *args[1:]))
            return func(*args, **(kwargs or {}))

    with Fills():
        assert numbers(*given) is not made
    select, fill = torch.ops.aten.select.int, torch.ops.aten.fill_.Scalar
    assert seen[1:] == [(select, 0, 0), (fill, 1.5), (select, 0, 1), (fill, -2.0)]
    assert numbers((1.5, -2.0), torch.float64, torch.device("cpu")).tolist() == [1.5, -2.0]
