"""Measure models with positional encodings and their peers on a GPU, row by row.

    python benchmarks/gpu.py --minutes 8 --out runs/gpu.jsonl
    python benchmarks/gpu.py --minutes 2 --device cpu --small        # the same lines where there is no GPU

First, masked attention and all encodings are compared with their results on a CPU, each in a separate process because
a CUDA error ends the process. Then attention alone and a decoder with 124 million parameters in bfloat16, eager and
compiled, are timed, the most important first. Times are medians; `beside_ms` times the first model between the calls.
"""

import argparse
import functools
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.attention.flex_attention as flex
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import Decoder, Encoder, Keys, Positions, Shape, catalogue, kernels, masks

SPECS = ("none", "rotary", "alibi", "t5_bias", "kerple", "fire", "shaw", "forgetting")

compiled_flex_attention = functools.cache(lambda: torch.compile(flex.flex_attention))


class Sizes(NamedTuple):
    """The sizes of a model and of its inputs."""

    dim: int = 768
    heads: int = 12
    layers: int = 12
    vocab: int = 50304
    tokens: int = 16384
    """Tokens per step, divided among the rows."""
    lengths: tuple[int, ...] = (4096, 1024, 16384)
    check_tokens: int = 33 * 33
    """Tokens in the check: a square number above 1,024, where fusing of biases begins."""


SMALL = Sizes(64, 4, 2, 101, 256, (128, 64), 36)


class ByHand(nn.Module):
    """A decoder like nanoGPT's, with rotary, ALiBi through FlexAttention, or no positions."""

    def __init__(self, sizes: Sizes, positions: str) -> None:
        super().__init__()
        dim, self.heads, self.positions = sizes.dim, sizes.heads, positions
        self.token = nn.Embedding(sizes.vocab, dim)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * sizes.layers + 1))
        widths = (dim, 3 * dim), (dim, dim), (dim, 4 * dim), (4 * dim, dim)
        self.blocks = nn.ModuleList(nn.ModuleList(nn.Linear(*w) for w in widths) for _ in range(sizes.layers))

    def forward(self, ids: Tensor) -> Tensor:
        x, (B, T) = self.token(ids), ids.shape
        turn, attend = self.by_positions(T, x)
        for n, (qkv, back, wide, narrow) in enumerate(self.blocks):
            q, k, v = qkv(self.norms[2 * n](x)).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            x = x + back(attend(turn(q), turn(k), v).transpose(1, 2).flatten(2))
            x = x + narrow(F.gelu(wide(self.norms[2 * n + 1](x))))
        return F.linear(self.norms[-1](x), self.token.weight)

    def by_positions(self, T: int, x: Tensor) -> tuple[Callable[[Tensor], Tensor], Callable[..., Tensor]]:
        if self.positions == "alibi":
            slopes = torch.exp2(-8.0 / self.heads * torch.arange(1, self.heads + 1, device=x.device))
            causal = flex.create_block_mask(lambda b, h, i, j: i >= j, None, None, T, T, device=x.device)
            attend: Any = (
                flex.flex_attention if torch.compiler.is_compiling() or x.is_cpu else compiled_flex_attention()
            )

            def alibi(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
                return score + (j - i) * slopes[h]

            return lambda y: y, lambda q, k, v: attend(q, k, v, score_mod=alibi, block_mask=causal)
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


def llama(sizes: Sizes) -> nn.Module:
    """Return Hugging Face's Llama. Three matrices of width 8/3 dim have as many weights as two of 4 dim."""
    from transformers import LlamaConfig, LlamaForCausalLM

    class Logits(LlamaForCausalLM):
        def forward(self, ids: Tensor) -> Any:
            return super().forward(input_ids=ids, use_cache=False).logits

    config = LlamaConfig(
        vocab_size=sizes.vocab,
        hidden_size=sizes.dim,
        intermediate_size=8 * sizes.dim // 3,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        tie_word_embeddings=True,
    )
    return Logits(config)


def x_transformers(sizes: Sizes, length: int, **positions: Any) -> nn.Module:
    import x_transformers as library

    layers = library.Decoder(dim=sizes.dim, depth=sizes.layers, heads=sizes.heads, attn_flash=True, **positions)
    return library.TransformerWrapper(
        num_tokens=sizes.vocab, max_seq_len=length, attn_layers=layers, use_abs_pos_emb=False, tie_embedding=True
    )


def models(sizes: Sizes, length: int) -> dict[str, Callable[[], nn.Module]]:
    """Return a constructor for each model by name, the most important first."""

    def posenc_decoder(spec: str) -> nn.Module:
        return Decoder(sizes.vocab, sizes.dim, sizes.heads, sizes.layers, spec, tie_output=True, max_len=length)

    return {
        "by hand, none": lambda: ByHand(sizes, "none"),
        "posenc rotary": lambda: posenc_decoder("rotary"),
        "by hand, rotary": lambda: ByHand(sizes, "rotary"),
        "posenc none": lambda: posenc_decoder("none"),
        "posenc alibi": lambda: posenc_decoder("alibi"),
        "posenc t5_bias": lambda: posenc_decoder("t5_bias"),
        "by hand, alibi in FlexAttention": lambda: ByHand(sizes, "alibi"),
        **{f"posenc {spec}": functools.partial(posenc_decoder, spec) for spec in SPECS[4:]},
        "transformers, Llama (rotary)": lambda: llama(sizes),
        "x-transformers, rotary": lambda: x_transformers(sizes, length, rotary_pos_emb=True),
        "x-transformers, alibi": lambda: x_transformers(sizes, length, alibi_pos_bias=True),
    }


def reason(error: Exception) -> str:
    """Return in one line why a case failed. The compiler's errors give the reason after their first line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


class Bench:
    """Prints and saves the rows of one run. When the time is over, no new row starts."""

    def __init__(self, file: Path, device: str, sizes: Sizes, minutes: float) -> None:
        self.file, self.device, self.sizes, self.minutes = file, device, sizes, minutes
        self.on_card, self.dtype = device != "cpu", torch.float32 if device == "cpu" else torch.bfloat16
        self.start, self.memory_before = time.monotonic(), 0
        self.first: dict[str, tuple[str, Callable[[], Any]]] = {}
        self.times: dict[tuple[int, bool, str], dict[str, tuple[float, float, str]]] = {}
        file.parent.mkdir(parents=True, exist_ok=True)

    def left(self) -> bool:
        """Return whether any time is left."""
        return time.monotonic() - self.start < 60 * self.minutes

    def row(self, kind: str, name: str, **facts: Any) -> None:
        row = {"what": kind, "name": name, **facts, "at_s": round(time.monotonic() - self.start, 1)}
        print(json.dumps(row), flush=True)
        with self.file.open("a", encoding="utf-8") as rows:
            rows.write(json.dumps(row) + "\n")

    def free(self) -> int:
        """Collect garbage (frames and errors refer to each other) and return the bytes still allocated."""
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.memory_allocated()

    def seconds_of(self, call: Callable[[], Any]) -> float:
        start = time.perf_counter()
        call()
        if self.on_card:
            torch.cuda.synchronize()
        return time.perf_counter() - start

    def measure_call(self, kind: str, name: str, call: Callable[[], Any], tokens: int, compiled: bool = False) -> None:
        """Add a row with a call's milliseconds, the first model's, and the peak memory."""
        facts: dict[str, Any] = {"tokens": tokens, "compiled": compiled}
        try:
            self.seconds_of(call)  # the first call compiles
            if self.on_card:
                torch.cuda.reset_peak_memory_stats()
            self.seconds_of(call)
            if self.on_card:
                facts["MiB"] = round((torch.cuda.max_memory_allocated() - self.memory_before) / 2**20)
            first, first_call = self.first.setdefault(kind, (name, call))
            times: list[tuple[float, float]] = []
            while len(times) < 7 or (sum(map(sum, times)) < 1 and len(times) < 50):
                times.append((self.seconds_of(call), self.seconds_of(first_call)))
            ms, beside_ms = (1000 * statistics.median(column) for column in zip(*times, strict=True))
            facts |= {"ms": round(ms, 3), "beside": first, "beside_ms": round(beside_ms, 3)}
            self.times.setdefault((tokens, compiled, kind), {})[name] = ms, ms / beside_ms, first
        except Exception as error:  # a failure is a result too; the next case still runs
            facts["failed"] = reason(error)
        self.row(kind, name, **facts)
        if "failed" in facts:
            self.free()

    def ratios(self, length: int) -> None:
        """Add a row of ratios to the first model, peers and eager mode."""
        ratios: dict[str, dict[str, float]] = {}
        for (tokens, is_compiled, kind), times in self.times.items():
            plain = self.times.get((tokens, False, kind), {}) if is_compiled else {}
            for name, (ms, ratio, first) in times.items() if tokens == length else ():
                spec = name.removeprefix("posenc ")
                comparisons = {peer: ratio / times[peer][1] for peer in times if spec in peer and peer != name}
                comparisons |= {first: ratio} | ({"uncompiled": ms / plain[name][0]} if name in plain else {})
                ratios[f"{kind}{', compiled' * is_compiled}: {name}"] = {
                    other: round(x, 3) for other, x in comparisons.items()
                }
        self.row("ratios", f"{length} tokens", **ratios)


def compare(bench: Bench, name: str, run: Callable[[str], tuple[Tensor, ...]], **facts: Any) -> None:
    """Add a row with relative differences from the CPU's values and gradients, or the error."""
    try:
        if not bench.left():
            raise TimeoutError("no time was left")
        here, there = ([x.detach().cpu().float().flatten() for x in run(device)] for device in ("cpu", bench.device))
        for quantity, part in (("off", slice(1)), ("gradient_off", slice(1, None))):
            expected = torch.cat(here[part])
            facts[quantity] = float((torch.cat(there[part]) - expected).norm() / expected.norm())
    except Exception as error:
        facts["failed"] = reason(error)
    bench.row("check", name, **facts)


def check_masked(bench: Bench, tokens: int) -> None:
    """Compare masked attention in bfloat16 on the device with float32 on the CPU."""
    torch.default_generator.manual_seed(0)
    heads = [torch.randn(2, 4, tokens, 64).bfloat16() for _ in range(3)]
    i, j = torch.arange(tokens)[:, None], torch.arange(tokens)
    slopes = torch.exp2(-2.0 * torch.arange(1, 5))[:, None, None]
    cases = {
        "no mask": None,
        "padding": (j < tokens - tokens // 4).expand(2, 1, tokens, tokens),
        "window": (i >= j) & (i - j < tokens // 4),
        "a bias with a float mask": (slopes * (j - i)).masked_fill(j > i, -math.inf)[None],
    }
    for name, mask in cases.items():

        def run(device: str, mask: Tensor | None = mask) -> tuple[Tensor, ...]:
            dtype = torch.bfloat16 if device == bench.device else torch.float32
            q, k, v = (x.to(device, dtype).requires_grad_() for x in heads)
            out = kernels.sdpa.call_with_mask(
                q, k, v, None if mask is None else mask.to(device), scale=0.125, dropout=0.0
            )
            return out, *torch.autograd.grad(out.float().square().mean(), (q, k, v))

        compare(bench, f"masked attention in bfloat16, {name}", run, tokens=tokens)


def train_steps(spec: str, tokens: int, steps: int, device: str) -> tuple[Tensor, ...]:
    """Train a small float32 model and return the logits and gradients of the last step."""
    torch.default_generator.manual_seed(0)
    grid, side = catalogue.build(spec, Shape(64, 4, 16, 32)).axes == 2, math.isqrt(tokens)
    model: Any = (Encoder if grid else Decoder)(17, 64, 4, 1, spec, max_len=side if grid else tokens)
    ids = torch.randint(17, (1, tokens)).to(device)
    at = Positions.grid(side, side, device=device) if grid else None
    optimizer = torch.optim.SGD(model.to(device).parameters(), 0.1)
    for _ in range(steps):
        out = model(ids, positions=at)
        optimizer.zero_grad()
        out.square().mean().backward()
        optimizer.step()
    return out, *[p.grad for p in model.parameters() if p.grad is not None]


def check(bench: Bench) -> None:
    """Compare masked attention and each encoding's logits and gradients on the device with the CPU's."""
    tokens = bench.sizes.check_tokens
    check_masked(bench, tokens // 4), check_masked(bench, tokens)
    for spec in sorted(catalogue.names(), key=lambda spec: (spec not in SPECS, spec)):
        compare(bench, spec, functools.partial(train_steps, spec, tokens, 1), tokens=tokens)


def check_segments(bench: Bench) -> None:
    """Compare a few training steps, with expandable memory segments if the environment asks for them."""
    expandable, tokens = False, bench.sizes.lengths[0] // 2
    if bench.on_card:
        torch.zeros(1, device=bench.device)
        expandable = torch.cuda.memory._snapshot().get("allocator_settings", {}).get("expandable_segments")
    for spec in ("rotary", "alibi"):
        compare(
            bench,
            f"{spec}, trained",
            functools.partial(train_steps, spec, tokens, 4),
            tokens=tokens,
            expandable=expandable,
        )


def measure_attention(bench: Bench) -> None:
    """Measure causal attention alone at the first length, with biases and without (PyTorch's own)."""
    sizes, T, width = bench.sizes, bench.sizes.lengths[0], bench.sizes.dim // bench.sizes.heads
    shape = max(1, sizes.tokens // T), sizes.heads, T, width
    q, k, v, upstream = (torch.randn(shape, device=bench.device, dtype=bench.dtype) for _ in range(4))
    at, inputs = Positions.count(T, device=bench.device), [x.requires_grad_() for x in (q, k, v)]

    def rows(name: str, forward: Callable[[], Tensor], encoding: nn.Module) -> None:
        leaves = (*inputs, *encoding.parameters())
        bench.memory_before = bench.free()
        bench.measure_call("attention", name, torch.no_grad()(forward), T)
        bench.measure_call("attention, trained", name, lambda: torch.autograd.grad(forward(), leaves, upstream), T)

    def attend(encoding: Any) -> Tensor:
        bound = kernels.bind("auto", encoding, scale=width**-0.5)
        return encoding.attend(q, at, Keys(k, v, at), masks.causal(), bound)[0]

    rows("by PyTorch", lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), nn.Identity())
    for spec in ("none", "alibi", "t5_bias", "kerple"):
        encoding = catalogue.build(spec, Shape(sizes.dim, sizes.heads, width, T)).to(bench.device)
        rows(spec, functools.partial(attend, encoding), encoding)


def measure(bench: Bench) -> None:
    """Measure attention, then the models at each length. The first matter most, as compiling takes up to a minute."""
    measure_attention(bench)
    first, *longer = bench.sizes.lengths
    stages = [(first, False, slice(7)), (first, True, slice(3)), (first, False, slice(7, None))]
    stages += [(first, True, slice(3, None))]
    stages += [(length, is_compiled, slice(None)) for length in longer for is_compiled in (False, True)]
    for length, is_compiled, part in stages:
        bench.first.clear()
        if bench.on_card or is_compiled:
            # Without this, the next length would trigger a second compilation, with dynamic shapes.
            torch.compiler.reset()
        builders = list(models(bench.sizes, length).items())
        for name, make in dict([builders[0], *builders[part]]).items():
            if not bench.left():
                bench.ratios(length)
                return bench.row("end", "the time is over")
            try:
                bench.memory_before = bench.free()
                measure_model(bench, name, make, length, is_compiled)
            except Exception as error:
                bench.row("made", name, failed=reason(error), tokens=length, compiled=is_compiled)
        bench.ratios(length)
    return bench.row("end", "all rows are there")


def measure_model(bench: Bench, name: str, make: Callable[[], nn.Module], length: int, is_compiled: bool) -> None:
    # The model is created on the device, because initialising its weights on a CPU takes seconds.
    with torch.device(bench.device):
        model = make().to(bench.dtype)
        ids = torch.randint(bench.sizes.vocab, (max(1, bench.sizes.tokens // length), length))
    run: Any = torch.compile(model, dynamic=False) if is_compiled else model
    answer = torch.no_grad()(model.forward)

    def step() -> None:
        model.zero_grad(set_to_none=True)
        F.cross_entropy(run(ids).flatten(0, 1).float(), ids.flatten()).backward()

    if is_compiled:
        # Models of one class share its code, which torch compiles at most eight times (the recompile limit).
        with torch._dynamo.config.patch(recompile_limit=64):
            bench.measure_call("training", name, step, length, is_compiled)
        return
    bench.measure_call("training", name, step, length)
    bench.measure_call("prefill", name, lambda: answer(ids), length)
    if length == bench.sizes.lengths[0] and isinstance(model, Decoder):
        cache = model.cache()
        answer(ids, cache=cache)
        bench.measure_call("decode", name, lambda: answer(ids[:, :1], cache=cache), length)


PARTS = {"segments": check_segments, "check": check, "measure": measure}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8, help="no new row starts after this time; default 8")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--small", action="store_true", help="small sizes, to try the command without a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu.jsonl"), help="the file to which rows are appended")
    parser.add_argument("--part", choices=PARTS, help="only this part, in this process; default: all")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device; --device cpu --small tries the command without one")
    bench = Bench(arguments.out, arguments.device, SMALL if arguments.small else Sizes(), arguments.minutes)
    if arguments.part:
        return PARTS[arguments.part](bench)
    card = torch.cuda.get_device_name() if arguments.device == "cuda" else "a CPU"
    bench.row("machine", card, torch=torch.__version__, sizes=bench.sizes._asdict())
    # torch 2.9 does not read the variable's newer name for this (pytorch/pytorch#183387).
    segments = dict.fromkeys(("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"), "expandable_segments:True")
    limit = ["timeout", "-k", "5", str(20 * arguments.minutes)]
    command = [*limit, sys.executable, __file__, *sys.argv[1:], f"--minutes={arguments.minutes / 4}", "--part"]
    environments = {"segments": os.environ | segments, "check": None}
    children = {part: subprocess.Popen([*command, part], env=env) for part, env in environments.items()}
    for part, child in children.items():
        if code := child.wait():
            bench.row(part, "all of it", failed=f"the process ended with {code} (124: it took too long)")
    return measure(bench)


if __name__ == "__main__":
    main()
