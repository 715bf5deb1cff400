"""A GPT in nanochat's shape: heads [batch, tokens, heads, channels], norms without parameters, QK norm, rotary."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class GPTConfig:
    sequence_len: int = 64
    vocab_size: int = 64
    n_layer: int = 2
    n_head: int = 4
    n_kv_head: int = 2
    n_embd: int = 64


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    d = x.shape[3] // 2
    x1, x2 = x[..., :d], x[..., d:]
    return torch.cat([x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos], 3)


class CausalSelfAttention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.head_dim = config.n_embd // config.n_head
        self.c_q = nn.Linear(config.n_embd, config.n_head * self.head_dim, bias=False)
        self.c_k = nn.Linear(config.n_embd, config.n_kv_head * self.head_dim, bias=False)
        self.c_v = nn.Linear(config.n_embd, config.n_kv_head * self.head_dim, bias=False)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        B, T, C = x.shape
        q, k, v = (linear(x).view(B, T, -1, self.head_dim) for linear in (self.c_q, self.c_k, self.c_v))
        cos, sin = cos_sin
        q, k = apply_rotary_emb(q, cos, sin), apply_rotary_emb(k, cos, sin)
        q, k = norm(q), norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.c_proj(y.transpose(1, 2).reshape(B, T, C))


class Block(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attn = CausalSelfAttention(config)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=False)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attn(norm(x), cos_sin)
        return x + self.c_proj(F.relu(self.c_fc(norm(x))).square())


class GPT(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.h = nn.ModuleList([Block(config) for _ in range(config.n_layer)])
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        cos, sin = self._precompute_rotary_embeddings(config.sequence_len, config.n_embd // config.n_head)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def _precompute_rotary_embeddings(self, seq_len: int, head_dim: int) -> tuple[Tensor, Tensor]:
        inv_freq = 1.0 / (10000 ** (torch.arange(0, head_dim, 2) / head_dim))
        freqs = torch.outer(torch.arange(seq_len), inv_freq)
        return freqs.cos()[None, :, None, :], freqs.sin()[None, :, None, :]

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = norm(self.wte(idx))
        for block in self.h:
            x = block(x, (self.cos[:, : idx.shape[1]], self.sin[:, : idx.shape[1]]))
        logits = self.lm_head(norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build() -> GPT:
    return GPT(GPTConfig())
