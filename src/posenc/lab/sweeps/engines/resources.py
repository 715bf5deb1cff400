"""What a run needs of a machine, by the size of its model."""

from dataclasses import dataclass
from functools import lru_cache

from posenc.lab.evaluation.evaluate import TOKENS_AT_ONCE
from posenc.lab.experiments.experiment import Experiment
from posenc.sizes import Sizes

FLOAT = 4
PROCESS = 720 << 20
"""Bytes of a process that has imported torch and posenc, and what torch imports for its first step."""

PROCESS_WITH_GPU = 3 << 30
"""Bytes of one that has a CUDA context beside, in the memory of the machine; what lies on the GPU is not counted."""

HELD_OUT = 256
"""Held-out sequences that are answered at once, at most: `exact_match` of posenc.lab.evaluation.evaluate."""


@dataclass(frozen=True)
class Resources:
    """Cores, GPUs and bytes of memory, of a run or of a machine.

    >>> str(Resources(cores=1, gpus=0, memory=3 << 29))
    '1 core and 1.5 GiB of memory'
    """

    cores: int
    gpus: int
    memory: int

    def fit(self, machine: "Resources") -> int:
        """How many of these a machine has room for."""
        pairs = (machine.cores, self.cores), (machine.gpus, self.gpus), (machine.memory, self.memory)
        return min(has // needs for has, needs in pairs if needs)

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        gpus = f", {self.gpus} GPU{'s' * (self.gpus != 1)}" if self.gpus else ""
        return f"{cores}{gpus} and {self.memory / 2**30:.1f} GiB of memory"


@lru_cache(maxsize=1024)
def resources_of(experiment: Experiment) -> Resources:
    """What a run asks for: one core, a GPU where its device is one, and memory by the size of its model.

        memory = process + 16 P + 4 max(training, held-out)                                   bytes
        P = L (4 d^2 + 2 d h) + 2 V d                                                         parameters
        training = B T (L (14 d + 4 h + 4 H T) + 3 V)                                         numbers
        held-out = R N (14 d + 4 h + 4 H N + 2 V)                                             numbers

    with L layers, d channels, h hidden ones, H heads, V ids; B sequences of T tokens a step, R held-out ones of N
    tokens, the longest tested length: 256 at once, or of text as many as have 4096 tokens. 16 bytes are a weight, its
    gradient and two moments of AdamW. Training keeps what every layer made for the way back, held-out sequences one
    layer at a time. The logits of every pair count four times: with a bias beside them, as a kernel without blocks
    holds them. It is meant as a bound for the encodings that ship, and no exact number.

    A model of one's own is taken for one of ours of the same sizes.
    """
    task, longest = experiment.made_task(), max(experiment.train_length, *experiment.test_lengths, 0)
    T, N = task.tokens(experiment.train_length), task.tokens(longest)
    sizes = experiment.sizes(T)
    d, h, L, H, V = sizes.dim, hidden_of(sizes), sizes.layers, sizes.heads, task.vocab
    parameters = L * (4 * d * d + 2 * d * h) + 2 * V * d
    training = experiment.batch * T * (L * (14 * d + 4 * h + 4 * H * T) + 3 * V)
    rows = max(1, TOKENS_AT_ONCE // N) if task.in_bits else HELD_OUT
    held_out = rows * N * (14 * d + 4 * h + 4 * H * N + 2 * V)
    on_gpu = experiment.device.startswith("cuda")
    process = PROCESS_WITH_GPU if on_gpu else PROCESS + FLOAT * max(training, held_out)
    return Resources(cores=1, gpus=int(on_gpu), memory=process + 4 * FLOAT * parameters)


def hidden_of(sizes: Sizes) -> int:
    return sizes.hidden or 4 * sizes.dim
