"""Other libraries' functions, called as their own models do. AbsentPeer names a missing library."""

import importlib
import importlib.metadata
import importlib.util
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

LIBRARIES = (
    "transformers",
    "x-transformers",
    "rotary-embedding-torch",
    "torchtune",
    "positional-encodings",
    "liger-kernel",
)

Rotate = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


class AbsentPeer(Exception):
    """Raised for a candidate that cannot run here, with the reason."""


class Rotation(NamedTuple):
    """A peer's rotation with its channel layout. It takes q [B, H, T, D] and k [B, KV, T, D]."""

    rotate: Rotate
    layout: str


def versions() -> dict[str, str]:
    """Return the versions of the installed peers."""
    installed_versions = {}
    for name in LIBRARIES:
        try:
            installed_versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed_versions


def library(module: str, name: str) -> Any:
    """Import a peer's module. Raises AbsentPeer if it is not installed or fails to import with this torch."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        raise AbsentPeer(f"{name} is not installed") from None
    try:
        with warnings.catch_warnings():
            # Warnings from a peer's import do not concern the benchmark.
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except Exception as error:
        raise AbsentPeer(f"{name} does not import here: {type(error).__name__}: {error}") from None


def transformers(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    """Return Hugging Face Llama's rotation, with tables made once as for a whole model pass."""
    llama, tables = transformers_tables(heads, head_dim, ids, dtype, base)
    cos, sin = tables()
    return Rotation(lambda q, k: llama.apply_rotary_pos_emb(q, k, cos, sin), "half")


def transformers_with_tables(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    """Return the same rotation including the construction of its tables."""
    llama, tables = transformers_tables(heads, head_dim, ids, dtype, base)
    return Rotation(lambda q, k: llama.apply_rotary_pos_emb(q, k, *tables()), "half")


def transformers_tables(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> tuple[Any, Any]:
    config = library("transformers", "transformers").LlamaConfig(
        hidden_size=heads * head_dim,
        num_attention_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=int(ids[-1]) + 1,
        rope_parameters={"rope_type": "default", "rope_theta": base},
    )
    llama = library("transformers.models.llama.modeling_llama", "transformers")
    module, dtype_like = llama.LlamaRotaryEmbedding(config), torch.empty(0, dtype=dtype)
    return llama, lambda: module(dtype_like, ids[None])


def x_transformers(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    package = library("x_transformers.x_transformers", "x-transformers")
    angles, scale = package.RotaryEmbedding(head_dim, base=base)(ids)
    apply = package.apply_rotary_pos_emb
    return Rotation(lambda q, k: (apply(q, angles, scale), apply(k, angles, scale)), "interleaved")


def rotary_embedding_torch(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    module = library("rotary_embedding_torch", "rotary-embedding-torch").RotaryEmbedding(head_dim, theta=base)
    start, end = int(ids[0]), int(ids[-1]) + 1
    if 0 < start and end <= module.cache_max_seq_len:
        # An earlier prompt would have filled its cache, in the dtype of the queries.
        module.forward(module.get_seq_pos(end, dtype=dtype), seq_len=end)
    turn = module.rotate_queries_or_keys
    return Rotation(lambda q, k: (turn(q, offset=start), turn(k, offset=start)), "interleaved")


def torchtune(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    module = torchtune_module().RotaryPositionalEmbeddings(head_dim, max_seq_len=int(ids[-1]) + 1, base=base)
    at = ids[None] if int(ids[0]) else None

    def turn(x: Tensor) -> Tensor:
        # torchtune takes [B, T, H, D].
        return module(x.transpose(1, 2), input_pos=at).transpose(1, 2)

    return Rotation(lambda q, k: (turn(q), turn(k)), "interleaved")


def torchtune_module() -> Any:
    """Import only torchtune's position embeddings, because the package itself requires torchao."""
    name = "torchtune_position_embeddings"
    if name in sys.modules:
        return sys.modules[name]
    try:
        folder = importlib.metadata.distribution("torchtune").locate_file("torchtune")
    except importlib.metadata.PackageNotFoundError:
        raise AbsentPeer("torchtune is not installed") from None
    path = Path(str(folder)) / "modules" / "position_embeddings.py"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise AbsentPeer(f"this torchtune has no {path.name}")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKING_TABLES = "transformers, making tables"

ROTATIONS: dict[str, Callable[[int, int, Tensor, torch.dtype, float], Rotation]] = {
    "transformers": transformers,
    MAKING_TABLES: transformers_with_tables,
    "rotary-embedding-torch": rotary_embedding_torch,
    "torchtune": torchtune,
    "x-transformers": x_transformers,
}
"""Constructors of every peer's rotation, from heads, head dimension, position ids, dtype and base."""


def by_hand(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    """Return the usual hand-written rotation: float32 tables built in each call, halves swapped by cat."""

    def rotate(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        frequencies = 1.0 / base ** (torch.arange(0, head_dim, 2, device=ids.device).float() / head_dim)
        angles = torch.outer(ids.float(), frequencies)
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)

        def turn(x: Tensor) -> Tensor:
            first, second = x.chunk(2, -1)
            return x * cos + torch.cat((-second, first), -1) * sin

        return turn(q), turn(k)

    return Rotation(rotate, "half")


def liger(heads: int, head_dim: int, ids: Tensor, dtype: torch.dtype, base: float) -> Rotation:
    """Return Liger's Triton rotation, which works in place with tables made once per model pass."""
    apply = library("liger_kernel.transformers.rope", "liger-kernel").liger_rotary_pos_emb
    _, tables = transformers_tables(heads, head_dim, ids, dtype, base)
    cos, sin = tables()
    return Rotation(lambda q, k: apply(q, k, cos, sin), "half")


def alibi_of_x_transformers(heads: int) -> Callable[[int], Tensor]:
    """Return x-transformers' ALiBi, a function from T to the bias [H, T, T]."""
    module = library("x_transformers.x_transformers", "x-transformers").AlibiPositionalBias(heads)
    return lambda tokens: module(tokens, tokens)


def sinusoidal_of_positional_encodings(dim: int) -> Callable[[Tensor], Tensor]:
    """Return the positional-encodings package's sinusoids for embeddings [B, T, dim]."""
    return library("positional_encodings.torch_encodings", "positional-encodings").PositionalEncoding1D(dim)


def sinusoidal_of_x_transformers(dim: int) -> Callable[[Tensor], Tensor]:
    """Return x-transformers' sinusoids [T, dim] for embeddings [B, T, dim], with their learned scale."""
    module = library("x_transformers.x_transformers", "x-transformers").ScaledSinusoidalEmbedding(dim)
    with torch.no_grad():
        module.scale.fill_(1.0)
    return module


def llama(vocab: int, dim: int, heads: int, layers: int) -> Any:
    """Return a transformers Llama of our decoder's size. It has three matrices of width 8/3 dim, not two of 4 dim."""
    config = library("transformers", "transformers").LlamaConfig(
        vocab_size=vocab,
        hidden_size=dim,
        intermediate_size=8 * dim // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
    )
    return library("transformers.models.llama.modeling_llama", "transformers").LlamaForCausalLM(config)
