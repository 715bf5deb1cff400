"""What models with positional encodings cost on a GPU, beside their peers: a row at a time.

    python benchmarks/gpu.py --minutes 8 --out runs/gpu.jsonl
    python benchmarks/gpu.py --minutes 2 --device cpu --small        # the same lines where there is no GPU

First every encoding is held to what it gives on a CPU, for a quarter of the time at most. Then each row is printed and
saved as it is there, so that a run which is cut off keeps its rows: a step of training, a prompt, a decoded token and
the memory of a decoder with 124 million parameters in bfloat16, as it is and compiled. Times are of the device, the
median of some calls; a case that fails is a row with its reason.
"""

import argparse
import functools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import Decoder, Encoder, Positions, Shape, catalogue

SPECS = ("none", "rotary", "alibi", "t5_bias", "kerple", "fire", "shaw", "forgetting")


class Sizes(NamedTuple):
    """The sizes of a model, and what it is measured with."""

    dim: int = 768
    heads: int = 12
    layers: int = 12
    vocab: int = 50304
    tokens: int = 16384
    """Tokens in a step, shared out among rows."""
    lengths: tuple[int, ...] = (1024, 4096, 16384)
    checked: int = 1100
    """Tokens of the check: more than 1,024, from which on biases are fused."""


SMALL = Sizes(64, 4, 2, 101, 256, (64, 128), 40)


class ByHand(nn.Module):
    """A decoder as nanoGPT's, with rotary, ALiBi through FlexAttention, or without positions."""

    def __init__(self, sizes: Sizes, positions: str) -> None:
        super().__init__()
        dim = sizes.dim
        self.heads, self.positions = sizes.heads, positions
        self.token = nn.Embedding(sizes.vocab, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * sizes.layers + 1))
        self.joined = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(sizes.layers))
        self.back = nn.ModuleList(nn.Linear(dim, dim) for _ in range(sizes.layers))
        self.up = nn.ModuleList(nn.Linear(dim, 4 * dim) for _ in range(sizes.layers))
        self.down = nn.ModuleList(nn.Linear(4 * dim, dim) for _ in range(sizes.layers))

    def forward(self, ids: Tensor) -> Tensor:
        x, (B, T) = self.token(ids), ids.shape
        turn, attend = self.by_positions(T, x)
        for n, joined in enumerate(self.joined):
            q, k, v = joined(self.norms[2 * n](x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            x = x + self.back[n](attend(turn(q), turn(k), v).transpose(1, 2).flatten(2))
            x = x + self.down[n](F.gelu(self.up[n](self.norms[2 * n + 1](x))))
        return F.linear(self.norms[-1](x), self.token.weight)

    def by_positions(self, T: int, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]:
        if self.positions == "alibi":
            from torch.nn.attention.flex_attention import create_block_mask, flex_attention

            slopes = torch.exp2(-8.0 / self.heads * torch.arange(1, self.heads + 1, device=x.device))
            causal = create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device=x.device)
            fused: Any = flex_attention if torch.compiler.is_compiling() or not x.is_cuda else compiled_flex_attention()

            def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + (j - i) * slopes[h]

            return lambda y: y, lambda q, k, v: fused(q, k, v, score_mod=alibi, block_mask=causal)
        plain = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True)  # noqa: E731
        if self.positions == "none":
            return lambda y: y, plain
        width = x.shape[-1] // self.heads
        frequencies = 10000 ** (-torch.arange(0, width, 2, device=x.device).float() / width)
        angles = torch.arange(T, device=x.device)[:, None] * frequencies
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)

        def turn(y: Tensor) -> Tensor:
            a, b = y.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

        return turn, plain


@functools.cache
def compiled_flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)


def llama(sizes: Sizes, length: int) -> nn.Module:
    """Hugging Face's, of the same sizes; its logits."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.dim,
        # Three matrices of this size have as many weights as two of four times the width.
        intermediate_size=8 * sizes.dim // 3,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        max_position_embeddings=length,
        tie_word_embeddings=True,
    )
    return LogitsOf(LlamaForCausalLM(config))


class LogitsOf(nn.Module):
    """A model of Hugging Face's that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(input_ids=ids, use_cache=False).logits


def x_transformers(sizes: Sizes, length: int, **positions: Any) -> nn.Module:
    from x_transformers import Decoder as Layers
    from x_transformers import TransformerWrapper

    layers = Layers(dim=sizes.dim, depth=sizes.layers, heads=sizes.heads, attn_flash=True, **positions)
    return TransformerWrapper(
        num_tokens=sizes.vocab, max_seq_len=length, attn_layers=layers, use_abs_pos_emb=False, tie_embedding=True
    )


def models(sizes: Sizes, length: int) -> Iterator[tuple[str, Callable[[], nn.Module]]]:
    """Each model by its name, those that matter most first."""

    def ours(spec: str) -> Callable[[], nn.Module]:
        return lambda: Decoder(sizes.vocab, sizes.dim, sizes.heads, sizes.layers, spec, tie_output=True, max_len=length)

    yield "by hand, none", lambda: ByHand(sizes, "none")
    yield "posenc none", ours("none")
    yield "by hand, rotary", lambda: ByHand(sizes, "rotary")
    yield "posenc rotary", ours("rotary")
    yield "by hand, alibi in FlexAttention", lambda: ByHand(sizes, "alibi")
    for spec in SPECS[2:]:
        yield f"posenc {spec}", ours(spec)
    yield "transformers, Llama", lambda: llama(sizes, length)
    yield "x-transformers, rotary", lambda: x_transformers(sizes, length, rotary_pos_emb=True)
    yield "x-transformers, alibi", lambda: x_transformers(sizes, length, alibi_pos_bias=True)


class Bench:
    """Rows of one run: printed, saved, and no more begun when the time is over."""

    def __init__(self, file: Path, device: str, minutes: float) -> None:
        self.file, self.device, self.begun, self.minutes = file, device, time.monotonic(), minutes
        file.parent.mkdir(parents=True, exist_ok=True)

    def left(self, share: float = 1.0) -> bool:
        """Whether some of this share of the time is left."""
        return time.monotonic() - self.begun < 60 * self.minutes * share

    def row(self, what: str, name: str, **facts: Any) -> None:
        row = {"what": what, "name": name, **facts, "at_s": round(time.monotonic() - self.begun, 1)}
        print(json.dumps(row), flush=True)
        with self.file.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")

    def measured(self, what: str, name: str, call: Callable[[], Any], **facts: Any) -> None:
        """A row with the milliseconds of a call and the most memory that it held; or with why there are none."""
        try:
            facts |= {"ms": round(self.milliseconds(call), 3)}
            if self.device == "cuda":
                facts["MiB"] = round(torch.cuda.max_memory_allocated() / 2**20)
        except Exception as error:  # a case that fails is a result, and the next one goes on
            facts["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:300]
        self.row(what, name, **facts)

    def milliseconds(self, call: Callable[[], Any]) -> float:
        """The median of some calls behind two that are not counted, in which things are compiled."""
        call(), call()
        self.wait()
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        times: list[float] = []
        while len(times) < 5 or (sum(times) < 0.5 and len(times) < 50):
            start = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - start)
        return 1000 * statistics.median(times)

    def wait(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def check(bench: Bench, sizes: Sizes) -> None:
    """Logits and gradients of each encoding, on the device beside the CPU, in float32."""
    side = math.isqrt(sizes.checked)
    for spec in catalogue.names():
        if not bench.left(0.25):
            return bench.row("check", spec, failed="no time was left")
        torch.manual_seed(0)
        one_axis = catalogue.build(spec, Shape(64, 4, 16, 32)).axes != 2
        made: Any = Decoder if one_axis else Encoder
        model = made(17, 64, 4, 1, spec, max_len=sizes.checked if one_axis else side)
        tokens = sizes.checked if one_axis else side * side
        ids, outs = torch.randint(17, (1, tokens)), []
        for device in ("cpu", bench.device):
            model.to(device).zero_grad()
            at = None if one_axis else Positions.grid(side, side, device=device)
            try:
                out = model(ids.to(device), positions=at)
                out.square().mean().backward()
            except Exception as error:
                bench.row("check", spec, failed=f"{type(error).__name__}: {error}"[:300])
                break
            slopes = [p.grad.detach().cpu().flatten() for p in model.parameters() if p.grad is not None]
            outs.append((out.detach().cpu(), torch.cat(slopes)))
        else:
            (value, slope), (value_there, slope_there) = outs
            off, slope_off = (value_there - value).norm() / value.norm(), (slope_there - slope).norm() / slope.norm()
            bench.row("check", spec, off=float(off), gradient_off=float(slope_off))
    return None


def measure(bench: Bench, sizes: Sizes, dtype: torch.dtype) -> None:
    """Training, prompts and decoding of each model and length, the decisive ones first."""
    for length in sizes.lengths:
        rows = max(1, sizes.tokens // length)
        ids = torch.randint(sizes.vocab, (rows, length), device=bench.device)
        for compiled in (False, True):
            for name, make in models(sizes, length):
                if not bench.left():
                    return bench.row("end", "the time is over")
                facts = {"tokens": length, "rows": rows, "dtype": str(dtype), "compiled": compiled}
                try:
                    model = make().to(bench.device, dtype)
                except Exception as error:
                    bench.row("made", name, failed=f"{type(error).__name__}: {error}"[:300], **facts)
                else:
                    measure_model(bench, name, model, ids, facts, decodes=length == sizes.lengths[0])
    return bench.row("end", "all rows are there")


def measure_model(
    bench: Bench, name: str, model: nn.Module, ids: Tensor, facts: dict[str, Any], *, decodes: bool
) -> None:
    run: Any = torch.compile(model) if facts["compiled"] else model

    def step() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(run(ids).flatten(0, 1).float(), ids.flatten()).backward()

    bench.measured("training", name, step, **facts)
    if facts["compiled"]:
        return
    model.eval()
    with torch.no_grad():
        bench.measured("prefill", name, lambda: model(ids), **facts)
        if decodes and isinstance(model, Decoder):
            cache = model.cache()
            model(ids, cache=cache)
            bench.measured("decode", name, lambda: model(ids[:, :1], cache=cache), **facts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="no row is begun later; default 8")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="small sizes, to try the command where no GPU is")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu.jsonl"), help="rows are put behind those it has")
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu --small tries the command without one")
    bench, sizes = Bench(asked.out, asked.device, asked.minutes), SMALL if asked.small else Sizes()
    card = torch.cuda.get_device_name() if asked.device == "cuda" else "a CPU"
    bench.row("machine", card, torch=torch.__version__, sizes=sizes._asdict())
    check(bench, sizes)
    measure(bench, sizes, torch.bfloat16 if asked.device == "cuda" else torch.float32)


if __name__ == "__main__":
    main()
