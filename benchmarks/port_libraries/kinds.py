"""What a port to another library is: a function that gives a family of test vectors, and how it is called."""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

import torch
from torch import Tensor

HEADS, WIDTH, LENGTH, DIM = 4, 16, 512, 32  # vectors.SHAPE
REACH = 4 * LENGTH + 1  # positions, up to the last one of the vectors
STRETCH = 2 * REACH / LENGTH - 1  # how far dynamic NTK's factor 2 stretches at that length
SIX_HEADS = "alibi-6-heads"


@dataclass
class Case:
    """What a port is given in one case of the vectors, and what it has to return."""

    q_at: Tensor  # positions [B, T] or [B, T, axes], of queries or embeddings
    k_at: Tensor
    mask: Tensor  # [B, Q, K]
    inputs: dict[str, Tensor]
    expected: dict[str, Tensor]

    @property
    def tolerance(self) -> float:
        return 1e-5 + 2**-22 * float(max(self.q_at.max(), self.k_at.max()))

    def difference(self, outputs: dict[str, Tensor]) -> float | None:
        """Return the largest difference of an element of a real token; None if there is nothing to compare."""
        differences = []
        for name, output in outputs.items():
            expected, queries, keys = self.expected.get(name), self.mask.any(-1), self.mask.any(-2)
            if name in ("bias", "products"):
                is_later = self.k_at[:, None] > self.q_at[:, :, None]
                is_compared = (self.mask & ~(is_later if is_later.dim() == 3 else is_later.any(-1)))[:, None]
                if name == "products" and {"q", "k"} <= self.expected.keys():
                    expected = self.expected["q"] @ self.expected["k"].mT
            else:
                is_compared = (keys if name == "k" else queries)[..., None]
                is_compared = is_compared if name == "x" else is_compared[:, None]
            if expected is not None:
                assert output.shape[-2:] == expected.shape[-2:], (name, output.shape, expected.shape)
                differences.append(float((output - expected).abs().masked_fill(~is_compared, 0).max()))
        return float(torch.tensor(differences).max()) if differences else None  # keeps a NaN


Outputs = Callable[[Case], dict[str, Tensor]]


@dataclass
class Port:
    """What a library has of one family."""

    family: str
    api: str
    outputs: Outputs
    cases: tuple[str, ...] = ()  # those that the API can express; () is all
    reason: str = ""  # of a failure
    variation: Outputs | None = None  # of the library's code, which passes
    note: str = ""


def rotations(rotate: Callable[[Tensor, Tensor], Tensor]) -> Outputs:
    """Return the outputs of a function of heads [B, H, T, D] and positions [B, T]."""
    places = {"q": "q_at", "k": "k_at"}
    return lambda case: {x: rotate(case.inputs[x], getattr(case, places[x])) for x in places if x in case.expected}


def additions(add: Callable[[Tensor, Tensor], Tensor]) -> Outputs:
    """Return the outputs of a function of embeddings [B, T, D] and positions [B, T]."""
    return lambda case: {"x": add(case.inputs["x"], case.q_at)}


def biases(bias: Callable[[Tensor, Tensor], Tensor]) -> Outputs:
    """Return the outputs of a function of the positions of queries and keys, [B, H, Q, K]."""
    return lambda case: {"bias": bias(case.q_at, case.k_at)}


def by_keys(table: Tensor) -> Outputs:
    """Return the outputs of a bias [H, positions] of keys alone: the softmax ignores its value at the query."""
    return biases(lambda q_at, k_at: (table[:, k_at][:, :, None] - table[:, q_at][..., None]).transpose(0, 1))


def by_pairs(table: Tensor) -> Outputs:
    """Return the outputs of a bias [H, queries, keys] of all positions."""
    return biases(lambda q_at, k_at: table[:, q_at[:, :, None], k_at[:, None]].transpose(0, 1))


def by_products(rotate: Callable[[Case], tuple[Tensor, Tensor]]) -> Outputs:
    """Return q . k of heads that are rotated with another origin of positions."""
    return lambda case: {"products": torch.matmul(*(x.mT if n else x for n, x in enumerate(rotate(case))))}


def in_pairs(rotate: Callable[[Tensor, Tensor], Tensor], width: int = WIDTH) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of the half layout, of one that rotates neighbouring channels."""
    return lambda x, ids: half_channels(rotate(interleaved_channels(x, width), ids), width)


def interleaved_channels(x: Tensor, width: int = WIDTH) -> Tensor:
    """Return the first channels in the order of neighbouring pairs, from that of two halves."""
    return torch.cat((x[..., :width].unflatten(-1, (2, -1)).mT.flatten(-2), x[..., width:]), -1)


def half_channels(x: Tensor, width: int = WIDTH) -> Tensor:
    """Return the first channels in the order of two halves, from that of neighbouring pairs."""
    return torch.cat((x[..., :width].unflatten(-1, (-1, 2)).mT.flatten(-2), x[..., width:]), -1)


def by_row(rotate: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function of a batch, of one that takes the positions of one row."""
    return lambda x, ids: torch.cat([rotate(x[i : i + 1], ids[i]) for i in range(len(x))])


def files_of(package: str, module: str) -> ModuleType:
    """Import a module of a package without running the package's own files, which need much else."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named '{package}'")
    old_modules = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == package}
    names = module.split(".")
    for n in range(len(names)):
        parent = ModuleType(".".join((package, *names[:n])))
        parent.__path__ = ["/".join((spec.submodule_search_locations[0], *names[:n]))]
        sys.modules[parent.__name__] = parent
    try:
        return importlib.import_module(f"{package}.{module}")
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]
        sys.modules.update(old_modules)
