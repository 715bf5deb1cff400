"""What several verbs take: how help writes what an option takes, and the settings of a run."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

POSITIONAL = "positional"
Positional: TypeAlias = Annotated[T, POSITIONAL]
"""What is typed without an option before it."""


class Taking(NamedTuple):
    """What help writes for the value of an option, and the option's name where it is not the field's.

    The word is PATH, NAME, SPEC (an encoding), TEXT, INT or FLOAT; "..." behind it says that there may be several.
    """

    metavar: str
    name: str | None = None


Whole = Annotated[int | None, Taking("INT")]
Number = Annotated[float | None, Taking("FLOAT")]
Name = Annotated[str | None, Taking("NAME")]
OneSpec = Annotated[str | None, Taking("SPEC")]
Folder = Annotated[Path | None, Taking("PATH")]
# Every verb has a method of this name.
Comparison = Annotated[Path | None, Taking("PATH", name="run")]
Wholes = Annotated[tuple[int, ...], Taking("INT ...")]
Numbers = Annotated[tuple[float, ...], Taking("FLOAT ...")]
Names = Annotated[tuple[str, ...], Taking("NAME ...")]
Labels = Annotated[tuple[str, ...], Taking("SPEC=NAME ...")]
Specs = Annotated[tuple[str, ...], Taking("SPEC ...")]
Files = Annotated[tuple[str, ...], Taking("PATH ...")]
Texts = Annotated[tuple[str, ...], Taking("TEXT ...")]
Source = Annotated[str, Taking("PATH")]
File = Annotated[str | None, Taking("PATH")]
Paths = Annotated[tuple[Path, ...], Taking("PATH ...")]


@dataclass(kw_only=True)
class RunOptions:
    """The settings of a run, as in posenc.lab.experiments.experiment.Experiment; what is left out is the recipe's."""

    train_length: Whole = None
    """The longest trained length (items of the task; text: tokens of a window)."""
    test_lengths: Wholes = ()
    """The longer lengths to test."""
    steps: Whole = None
    """Training steps."""
    tokens: Whole = None
    """Train until so many tokens were read, in place of steps."""
    seconds: Number = None
    """Train for so many CPU seconds, in place of steps."""
    batch: Whole = None
    """Sequences a step."""
    rate: Number = None
    """The highest learning rate."""
    matrix_rate: Number = None
    """The highest rate of Muon on the matrices of the blocks, such as 0.02; without it AdamW has them too."""
    schedule: Name = None
    """How the rate goes: cosine, or original (as in the original transformer, times the rate)."""
    layers: Whole = None
    """Layers of the model."""
    dim: Whole = None
    """Width of the model (channels)."""
    heads: Whole = None
    """Heads of the model."""
    kv_heads: Whole = None
    """Heads of keys and values."""
    head_dim: Whole = None
    """Width of a head (channels)."""
    intermediate_size: Whole = None
    """Width of the feed-forward layers (channels)."""
    feed_forward: Name = None
    """gelu, gelu_tanh, relu, relu2, swiglu, geglu or geglu_tanh."""
    norm: Name = None
    """layer or rms."""
    norm_first: bool = True
    """Norms before attention and feed-forward; without, after the sum with them, as in the original transformer."""
    branch_norm: bool = False
    """Norm what attention and feed-forward give: as in Gemma 2, and with --no-norm-first as in OLMo 2."""
    parallel_residual: bool = False
    """Attention and feed-forward both read the block's input, as in GPT-NeoX."""
    residual_scale: Number = None
    """Factor of what attention and feed-forward give."""
    embedding_norm: bool = False
    """Norm the embeddings."""
    qk_norm: bool = False
    """Norm the queries and the keys of each head."""
    joined_qk_norm: bool = False
    """Norm the queries and the keys of all heads as one vector, as in OLMo 2."""
    softcap: Number = None
    """Draw the products of queries and keys below this, as in Gemma 2."""
    output_softcap: Number = None
    """Draw the logits of a decoder below this."""
    init: Name = None
    """How weights begin: torch, normal, gpt2, small or xavier."""
    bias: Names = ()
    """The parts with biases: q_proj, k_proj, v_proj, o_proj, feed_forward, norm, output; or none. Default: all."""
    window: Wholes = ()
    """How many tokens a layer sees back; several are cycled over the layers, 0 sees all."""
    dropout: Number = None
    """The share of channels and weights that is dropped in training."""
    model: Name = None
    """path/to/mine.py:Mine, a torch module of your own in place of ours: Mine(vocab, encoding, ...)(ids, positions)."""
    text: File = None
    """A text file or a folder of them for tasks on text. Default: the Python standard library's own text."""
    test_map: OneSpec = None
    """A coordinate map of held-out positions. Default: what the map of training takes there."""
    device: Name = None
    """Where to compute: cpu, cuda, cuda:1, mps."""
    dtype: Name = None
    """float32 or bfloat16: what matrix products are computed in. Weights stay float32."""
    compile: bool = False
    """Put training steps through torch.compile: a graph for each trained length, of some ten seconds each."""

    def changes(self) -> dict[str, Any]:
        """What was given, by the names of Experiment."""
        given = {one.name: getattr(self, one.name) for one in fields(RunOptions)}
        given["window"] = tuple(size or None for size in self.window) or None
        for name in ("compile", "branch_norm", "parallel_residual", "embedding_norm"):
            given[name] = getattr(self, name) or None
        given["qk_norm"] = "joined" if given.pop("joined_qk_norm") else self.qk_norm or None
        given["norm_first"] = None if self.norm_first else False
        given["bias"] = tuple(part for part in self.bias if part != "none") if self.bias else None
        given["test_lengths"] = self.test_lengths or None
        return {name: value for name, value in given.items() if value is not None}
