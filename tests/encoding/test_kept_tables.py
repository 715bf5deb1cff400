"""Cached tables: keyed by an encoding's options, bit-equal to fresh tables, in bounded memory."""

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
from posenc.tokens.shared_tables import KEPT_WINDOWS, MAX_WINDOWS, kept_rows, module_options, number_tensor


def signed_positions(at: Positions) -> Tensor:
    """Return rows [2, T, 3] that hold their position and its negative."""
    coords = at.coords[0, :, 0].double()
    return torch.stack((coords, -coords))[..., None].expand(2, -1, 3).contiguous()


class Rows(Encoding):
    """Adds a table that depends on each of its options."""

    weights: ClassVar[list[float]] = [1.0]

    def __init__(self, rate: float = 1.0, words: tuple[str, ...] = ("a",), schedule: Any = None) -> None:
        super().__init__()
        self.rate, self.words, self.schedule = rate, words, schedule

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + self.once(self.table, at, x.dtype)

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        computed_dtypes.append(str(dtype))
        factor = 1.0 if self.schedule is None else self.schedule.factor
        return (at.coords.double() * self.rate * len(self.words) * factor).to(dtype)


class ScaledRows(Rows):
    """Rows times a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.learned = nn.Parameter(torch.ones(()))

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        return super().table(at, dtype) * self.learned.to(dtype)


class ListRows(Rows):
    """Rows times the sum of its list."""

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        return super().table(at, dtype) * sum(self.weights)


class Counting(Rows):
    """A table that counts how often it was computed."""

    calls = 0

    def table(self, at: Positions, dtype: torch.dtype) -> Tensor:
        self.calls += 1
        return super().table(at, dtype) * self.calls


computed_dtypes: list[str] = []
X = torch.zeros(1, 3, 2, dtype=torch.float64)


@pytest.fixture(autouse=True)
def nothing_made() -> None:
    computed_dtypes.clear()
    KEPT_WINDOWS.clear()


def test_encodings_that_hold_the_same_share_a_table_and_others_do_not() -> None:
    at = Positions.count(3)
    for twin in (Rows(), Rows(), copy.deepcopy(Rows()), pickle.loads(pickle.dumps(Rows()))):
        assert twin(X, positions=at)[0, 2, 0] == 2
    assert len(computed_dtypes) == 1
    assert Rows(3.0)(X, positions=at)[0, 2, 0] == 6
    assert Rows(words=("a", "b"))(X, positions=at)[0, 2, 0] == 4
    assert Rows(schedule=Linear(5))(X, positions=at)[0, 2, 0] == 10
    assert Rows()(X.float(), positions=at).dtype == torch.float32
    assert type("Other", (Rows,), {"table": lambda self, at, dtype: at.coords + 7.0})()(X, positions=at)[0, 0, 0] == 7


@pytest.mark.parametrize("copy_of", [lambda e: e, copy.copy, copy.deepcopy, lambda e: e.double().half()])
def test_an_option_that_is_set_anew_makes_another_table(copy_of) -> None:
    at, source = Positions.count(3), Rows()
    source(X, positions=at)
    encoding = copy_of(source)
    encoding(X, positions=at)
    encoding.rate = 2.0
    assert encoding(X, positions=at)[0, 2, 0] == 4
    assert source(X, positions=at)[0, 2, 0] == (4 if source is encoding else 2)
    encoding.words = ("a", "b", "c")
    assert encoding(X, positions=at)[0, 2, 0] == 12
    del encoding.schedule
    with pytest.raises(AttributeError, match="schedule"):
        encoding(X, positions=at)


def test_a_table_that_reads_a_parameter_is_never_kept() -> None:
    at, encoding = Positions.count(3), ScaledRows()
    assert encoding(X, positions=at)[0, 2, 0] == 2
    # Assigning .data changes no version counter.
    encoding.learned.data = torch.tensor(3.0)
    assert encoding(X, positions=at)[0, 2, 0] == 6
    for _ in range(2):
        encoding(X, positions=at).sum().backward()
    assert encoding.learned.grad is not None and encoding.learned.grad == 12


def test_what_may_change_unseen_is_never_kept() -> None:
    at, growing = Positions.count(3), SimpleNamespace(factor=1.0)
    rows = Rows(schedule=growing)
    assert rows(X, positions=at)[0, 2, 0] == 2
    growing.factor = 4.0
    assert rows(X, positions=at)[0, 2, 0] == 8
    # The dataclass is frozen, but its list may change.
    schedule = ListHolder([1.0])
    rows = Rows(schedule=schedule)
    assert rows(X, positions=at)[0, 2, 0] == 2
    schedule.factors.append(3.0)
    assert rows(X, positions=at)[0, 2, 0] == 8
    # An instance attribute hides the class attribute.
    encoding = ListRows()
    encoding.weights = [2.0]
    assert encoding(X, positions=at)[0, 2, 0] == 4
    encoding.weights.append(3.0)
    assert encoding(X, positions=at)[0, 2, 0] == 10
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
class ListHolder:
    factors: list[float]

    @property
    def factor(self) -> float:
        return sum(self.factors)


def test_options_are_what_cannot_change() -> None:
    values = 1, 1.0, "a", None, range(2), torch.device("cpu"), Linear(2), ((1,), frozenset("a"))
    assert all(module_options(Rows(schedule=value)) for value in values)
    open_ones = torch.zeros(1), Open(), {}, [1], lambda: 0, (1, [2]), SimpleNamespace(), object(), ListHolder([1.0])
    assert not any(module_options(Rows(schedule=value)) for value in open_ones)


def door_outputs(encoding: Encoding, at: Positions, dtype: torch.dtype, device: str = "cpu") -> list[Tensor]:
    """Return `embed` of zeros and `turn` of ones at these positions, [..., T, channels]."""
    tensors = []
    if "embed" in encoding.doors:
        tensors.append(encoding.embed(torch.zeros(1, at.tokens, testing.SHAPE.dim, dtype=dtype, device=device), at))
    if "turn" in encoding.doors:
        shape = (1, testing.SHAPE.heads, at.tokens, testing.SHAPE.head_dim)
        heads = torch.ones(shape, dtype=dtype, device=device)
        tensors += [encoding.turn(heads, at, "query"), encoding.turn(heads, at, "key")]
    return tensors


def check_devices(spec: str) -> None:
    """Raise AssertionError, or torch's RuntimeError, if a device gets another device's table."""
    encoding = catalogue.build(spec, testing.SHAPE)
    at = testing.on_axes(Positions.count(3), encoding.axes)
    fresh = door_outputs(encoding, testing.on_axes(Positions.count(3), encoding.axes), torch.float32)
    for device in ("meta", "cpu", "meta", "cpu"):
        for tensor, expected in zip(door_outputs(encoding, at, torch.float32, device), fresh, strict=True):
            assert tensor.device.type == device and (device == "meta" or torch.equal(tensor, expected))


def test_heads_of_several_devices_may_share_positions() -> None:
    for spec in [variants(name)[0] for name in catalogue.names()]:
        # Parameters are on one device.
        if not [*catalogue.build(spec, testing.SHAPE).parameters()]:
            check_devices(spec)


@pytest.mark.parametrize("spec", ["rotary", "log_temperature"])
def test_a_key_without_the_device_is_found(monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    def once(encoding: Encoding, make: Any, at: Positions, *args: Any, **how: bool) -> Tensor:
        key = encoding, make.__func__, *(arg for arg in args if not isinstance(arg, torch.device))
        return shared_tables.once(at, key, lambda: make(at, *args))

    monkeypatch.setattr(Encoding, "once", once)
    with pytest.raises((AssertionError, RuntimeError)):
        check_devices(spec)


@pytest.mark.parametrize("name", ["rotary", "sinusoidal", "xpos", "rotary_values", "polar", "transformer_xl"])
def test_tables_of_another_base_are_others(name: str) -> None:
    at, x = Positions.count(3, 5), torch.ones(1, 3, testing.SHAPE.dim, dtype=torch.float64)
    nets = [Subject(f"{name}(base={base})").net() for base in (100, 10_000)]
    alike = [net(x, at) for net in nets]
    alone = [net.without_kept_tables()(x, Positions.count(3, 5)) for net in nets]
    assert torch.equal(alike[0], alone[0]) and torch.equal(alike[1], alone[1]) and not torch.equal(*alone)


def keeps_tables(spec: str) -> bool:
    """Return whether an encoding of one axis caches a table beyond a call."""
    encoding = catalogue.build(spec, testing.SHAPE)
    KEPT_WINDOWS.clear()
    try:
        door_outputs(encoding, Positions.count(2), torch.float32)
    except ValueError:
        return False
    return bool(KEPT_WINDOWS)


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
            slices = door_outputs(encoding, Positions.count(tokens, start), dtype)
            patch.setattr("posenc.tokens.shared_tables.kept_rows", lambda at, key, make: make(at))
            on_the_spot = door_outputs(encoding, Positions.count(tokens, start), dtype)
            alone = door_outputs(encoding, Positions.count(1, start + row), dtype)
        for actual, expected, single in zip(slices, on_the_spot, alone, strict=True):
            assert torch.equal(actual, expected) and torch.equal(actual[..., row : row + 1, :], single)


@pytest.mark.parametrize(
    ("start", "tokens"), [(0, 1), (4000, 1), (1023, 2), (1_000_000, 7), (0, 1024), (0, 1025), (2048, 2048), (5, 3000)]
)
def test_kept_rows_are_those_that_would_be_made(start: int, tokens: int) -> None:
    for _ in range(2):
        at = Positions.count(tokens, start)
        assert torch.equal(kept_rows(at, "a", signed_positions), signed_positions(at))
        # A range over two windows is not cached.
        assert bool(KEPT_WINDOWS) == (start % 1024 + tokens <= 1024)
    # Another key is another table.
    at = Positions.count(tokens, start)
    assert torch.equal(kept_rows(at, "b", lambda at: 2 * signed_positions(at)), 2 * signed_positions(at))


def test_decoding_makes_one_window_for_a_thousand_tokens() -> None:
    windows: list[int] = []

    def make(at: Positions) -> Tensor:
        windows.append(at.tokens)
        return signed_positions(at)

    for position in range(999_000, 1_001_000):
        row = kept_rows(Positions.count(1, position), "a", make)
        assert row.shape == (2, 1, 3) and row[0, 0, 0] == position
    assert windows == [1024] * 3


def test_memory_is_bounded() -> None:
    for number in range(MAX_WINDOWS + 3):
        rows = Rows(float(number))
        assert rows.once(rows.table, Positions.count(1), torch.float64, keep=True) == 0
    assert [dict(key[1])["rate"] for key, _ in KEPT_WINDOWS] == [float(number) for number in range(3, MAX_WINDOWS + 3)]


def test_a_kept_table_may_be_saved_for_a_gradient_whoever_asked_first() -> None:
    with torch.inference_mode():
        kept_rows(Positions.count(1), "a", signed_positions)
    x = torch.ones(2, 1, 3, dtype=torch.float64, requires_grad=True)
    (x * kept_rows(Positions.count(1), "a", signed_positions)).sum().backward()


class ListTable(Rows):
    """Rows, cached beyond the forward pass."""

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
        assert torch.equal(ListTable()(X[:, :2], positions=at), (X[:, :2] + at.coords))
    assert not KEPT_WINDOWS and computed_dtypes == ["torch.float64"]


def test_threads_share_kept_tables() -> None:
    wrong: list[int] = []

    def decode(first: int) -> None:
        for position in range(first, first + 4000, 7):
            if kept_rows(Positions.count(1, position), "a", signed_positions)[0, 0, 0] != position:
                wrong.append(position)

    threads = [threading.Thread(target=decode, args=(first,)) for first in (0, 500, 2000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_gpu_is_given_numbers_one_by_one_and_keeps_them() -> None:
    numbers = (1.5, -2.0), torch.float64, torch.device("meta")
    with torch.inference_mode():
        tensor = number_tensor(*numbers)
    assert tensor is number_tensor(*numbers) and tensor is not number_tensor(numbers[0], torch.float32, numbers[2])
    assert tensor.shape == (2,) and not tensor.is_inference()
    operators = []

    class Fills(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            operators.append((func, *args[1:]))
            return func(*args, **(kwargs or {}))

    with Fills():
        assert number_tensor(*numbers) is not tensor
    select, fill = torch.ops.aten.select.int, torch.ops.aten.fill_.Scalar
    assert operators[1:] == [(select, 0, 0), (fill, 1.5), (select, 0, 1), (fill, -2.0)]
    assert number_tensor((1.5, -2.0), torch.float64, torch.device("cpu")).tolist() == [1.5, -2.0]
