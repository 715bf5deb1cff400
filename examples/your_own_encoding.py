"""An encoding of your own, in one class: used in a decoder, held to the contract, compared with the others.

NearLog biases each logit by the logarithm of the distance, up to a window; beyond it all keys are equally far. That
is one door, `by_distance`: the bias [H, ...] at signed distances. Caches, padding, packing, every kernel and every
mask work with it at once, because a bias by distance says nothing about tensors.

What to look for: the list of promises, each kept or without meaning for this encoding; then a decoder that trains
with it; then two commands that need no more than this file:

    posenc check examples/your_own_encoding.py:NearLog
    posenc compare --encodings rotary alibi examples/your_own_encoding.py:NearLog --tasks repeat
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posenc import Decoder, Encoding, testing
from posenc.cli import terminal
from posenc.lab import figures


class NearLog(Encoding):
    """Subtract from each logit a learned strength times the logarithm of the distance, as far as a window.

    logit(i, j) = scale * q_i . k_j - strength_h ln(1 + min(|m_i - n_j|, window))

    heads   number of heads
    window  distance (positions) from which all keys are equally far

    Raises ValueError for fewer than one head, or a window below 1.
    Source: this example, 2026.
    """

    source = "This example, 2026"

    def __init__(
        self,
        heads: int,
        window: int = 16,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if not heads >= 1:
            raise ValueError(f"heads must be 1 or more, got {heads}")
        if not window >= 1:
            raise ValueError(f"window must be 1 or more, got {window}")
        self.heads, self.window = heads, window
        self.strength = nn.Parameter(torch.empty(heads, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # From strong to weak, so that heads see near and far from the start.
        with torch.no_grad():
            self.strength.copy_(torch.linspace(2.0, 0.25, self.heads))

    def by_distance(self, delta: Tensor) -> Tensor:
        far = delta.abs().clamp(max=self.window).to(self.strength.dtype).log1p()
        return -self.strength.view(-1, *(1,) * delta.dim()) * far

    def formula_logit(self, q, k, m, n, head, scale) -> float:
        distance = min(abs(m - n), self.window)
        return super().formula_logit(q, k, m, n, head, scale) - self.strength[head].item() * math.log(1 + distance)


def main(out: Path, quick: bool) -> None:
    promises = ["says_what_the_paper_says", "a_cache_changes_nothing", "has_a_source"] if quick else None
    verdicts = testing.check(NearLog, promises)
    print(testing.describe(verdicts))

    # In a model: an instance, or the spec "examples/your_own_encoding.py:NearLog(window=8)".
    torch.manual_seed(0)
    model = Decoder(vocab=29, dim=32, heads=4, layers=2, encoding=NearLog(4, window=8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    steps, generator = 10 if quick else 300, torch.Generator().manual_seed(0)
    print("\nA decoder that learns to say what stood one token back:")
    for step in range(1, steps + 1):
        ids = torch.randint(29, (32, 24), generator=generator)
        loss = F.cross_entropy(model(ids)[:, 1:].flatten(0, 1), ids[:, :-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % max(steps // 6, 1) == 0:
            print(f"step {step:>3}  loss {loss.item():.3f}", flush=True)

    encoding = model.stack.encoding_of[0]
    rows = [[str(h), f"{s:.3f}"] for h, s in enumerate(encoding.strength.tolist())]
    terminal.table(["head", "strength after training"], rows)
    distances = torch.arange(32)
    with torch.inference_mode():
        fig = figures.bias_curves(
            distances.numpy(), encoding.by_distance(distances).numpy(), f"{encoding}: bias after training"
        )
    print("Picture:", figures.save(fig, out / "your_own_encoding.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/examples"), help="folder for the pictures")
    parser.add_argument("--quick", action="store_true", help="three promises and a few steps only")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    main(arguments.out, arguments.quick)
