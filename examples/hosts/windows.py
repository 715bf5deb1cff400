"""A GPT in a speed-runner's shape: [batch, tokens, heads, channels], half of the channels rotated, windows that grow.

When a window grows, the frequencies are stretched by YaRN, by as much as the window has grown.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass
class GPTConfig:
    vocab_size: int = 64
    num_layers: int = 2
    num_heads: int = 4
    model_dim: int = 64
    window: int = 16


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


class Yarn(nn.Module):
    angular_freq: Tensor

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        freq = (1 / 1024) ** torch.linspace(0, 1, steps=head_dim // 4)
        self.register_buffer("angular_freq", torch.cat([freq, freq.new_zeros(head_dim // 4)]), persistent=False)

    def apply(self, old_window: int, new_window: int, alpha: int = 1, beta: int = 32) -> None:
        rotations = old_window * self.angular_freq / (2 * torch.pi)
        weight = ((rotations - alpha) / (beta - alpha)).clamp(0, 1)
        self.angular_freq *= old_window / new_window * (1 - weight) + weight

    def rotary(self, x_BTHD: Tensor) -> Tensor:
        theta = torch.outer(torch.arange(x_BTHD.size(1)), self.angular_freq)
        cos, sin = theta.cos()[None, :, None], theta.sin()[None, :, None]
        x1, x2 = x_BTHD.chunk(2, dim=-1)
        return torch.cat((x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos), 3)


class Attention(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.qkv = nn.Linear(config.model_dim, 3 * config.model_dim, bias=False)
        self.proj = nn.Linear(config.model_dim, config.model_dim, bias=False)

    def forward(self, x: Tensor, yarn: nn.Module, window: int) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3 * self.num_heads, -1).chunk(3, dim=-2)
        q, k = norm(q), norm(k)
        q, k = yarn.rotary(q), yarn.rotary(k)
        distance = torch.arange(T)[:, None] - torch.arange(T)
        mask = (distance >= 0) & (distance < window)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask)
        return self.proj(y.transpose(1, 2).reshape(B, T, C))


class MLP(nn.Sequential):
    def __init__(self, dim: int) -> None:
        super().__init__(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))


class GPT(nn.Module):
    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.embed = nn.Embedding(config.vocab_size, config.model_dim)
        self.attns = nn.ModuleList([Attention(config) for _ in range(config.num_layers)])
        self.mlps = nn.ModuleList([MLP(config.model_dim) for _ in range(config.num_layers)])
        self.lm_head = nn.Linear(config.model_dim, config.vocab_size, bias=False)
        self.window = config.window
        self.yarn = Yarn(config.model_dim // config.num_heads)

    def grow(self, window: int) -> None:
        self.yarn.apply(self.window, window)
        self.window = window

    def forward(self, idx: Tensor, targets: Tensor) -> Tensor:
        x = norm(self.embed(idx))
        for attn, mlp in zip(self.attns, self.mlps, strict=True):
            x = x + attn(norm(x), self.yarn, self.window)
            x = x + mlp(norm(x))
        return F.cross_entropy(self.lm_head(norm(x)).flatten(0, 1), targets.flatten())


def build() -> GPT:
    return GPT(GPTConfig())
