"""Option types that verbs share, and the settings of a run."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

POSITIONAL = "positional"
Positional: TypeAlias = Annotated[T, POSITIONAL]
"""An argument without an option name."""


class Usage(NamedTuple):
    """The placeholder of an option's value in help, and the option's name if it differs from the field's.

    The placeholder is PATH, NAME, SPEC (an encoding), TEXT, INT or FLOAT; "..." means one or more.
    """

    metavar: str
    name: str | None = None


Whole = Annotated[int | None, Usage("INT")]
Number = Annotated[float | None, Usage("FLOAT")]
Name = Annotated[str | None, Usage("NAME")]
OneSpec = Annotated[str | None, Usage("SPEC")]
Folder = Annotated[Path | None, Usage("PATH")]
# Every verb has a method of this name.
Comparison = Annotated[Path | None, Usage("PATH", name="run")]
Wholes = Annotated[tuple[int, ...], Usage("INT ...")]
Numbers = Annotated[tuple[float, ...], Usage("FLOAT ...")]
Names = Annotated[tuple[str, ...], Usage("NAME ...")]
Labels = Annotated[tuple[str, ...], Usage("SPEC=NAME ...")]
Specs = Annotated[tuple[str, ...], Usage("SPEC ...")]
Files = Annotated[tuple[str, ...], Usage("PATH ...")]
Texts = Annotated[tuple[str, ...], Usage("TEXT ...")]
Source = Annotated[str, Usage("PATH")]
File = Annotated[str | None, Usage("PATH")]
Paths = Annotated[tuple[Path, ...], Usage("PATH ...")]


@dataclass(kw_only=True)
class RunOptions:
    """The settings of a run, as in posenc.lab.experiments.experiment.Experiment; the recipe fills in the others."""

    train_length: Whole = None
    """The longest trained length (items of the task; text: tokens of a window)."""
    test_lengths: Wholes = ()
    """The longer lengths to test."""
    steps: Whole = None
    """Training steps."""
    tokens: Whole = None
    """Train on this number of tokens, instead of --steps."""
    seconds: Number = None
    """Train for this many CPU seconds, instead of --steps."""
    batch: Whole = None
    """Sequences per step."""
    rate: Number = None
    """The highest learning rate."""
    matrix_rate: Number = None
    """The highest rate of Muon on the matrices of the blocks, such as 0.02. Default: AdamW trains them too."""
    schedule: Name = None
    """The schedule of the rate: cosine, or original (of the original transformer, times the rate)."""
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
    """Norms before attention and feed-forward; --no-norm-first: after the sum, as in the original transformer."""
    branch_norm: bool = False
    """Norm the outputs of attention and feed-forward: as in Gemma 2, and with --no-norm-first as in OLMo 2."""
    parallel_residual: bool = False
    """Attention and feed-forward both read the block's input, as in GPT-NeoX."""
    residual_scale: Number = None
    """Factor of the outputs of attention and feed-forward."""
    embedding_norm: bool = False
    """Norm the embeddings."""
    qk_norm: bool = False
    """Norm the queries and the keys of each head."""
    joined_qk_norm: bool = False
    """Norm the queries and the keys of all heads as one vector, as in OLMo 2."""
    softcap: Number = None
    """Soft cap of the attention logits, as in Gemma 2."""
    output_softcap: Number = None
    """Soft cap of a decoder's output logits."""
    init: Name = None
    """Initial weights: torch, normal, gpt2, small or xavier."""
    bias: Names = ()
    """The parts with biases: q_proj, k_proj, v_proj, o_proj, feed_forward, norm, output; or none. Default: all."""
    window: Wholes = ()
    """Sliding window of a layer (tokens); several are cycled over the layers, 0 sees all."""
    dropout: Number = None
    """Dropout rate of channels and attention weights."""
    model: Name = None
    """path/to/mine.py:Mine, your own torch module instead of ours: Mine(vocab, encoding, ...)(ids, positions)."""
    text: File = None
    """A text file or a folder of them for tasks on text. Default: the Python standard library's own text."""
    test_map: OneSpec = None
    """A coordinate map of held-out positions. Default: the one that belongs to the map of training."""
    device: Name = None
    """Device: cpu, cuda, cuda:1, mps."""
    dtype: Name = None
    """float32 or bfloat16 of matrix products. Weights stay float32."""
    compile: bool = False
    """Compile training steps with torch.compile: a graph for each trained length, about ten seconds each."""

    def changes(self) -> dict[str, Any]:
        """Return the options that differ from the recipe, by the names of Experiment."""
        values = {field.name: getattr(self, field.name) for field in fields(RunOptions)}
        values["window"] = tuple(size or None for size in self.window) or None
        for name in ("compile", "branch_norm", "parallel_residual", "embedding_norm"):
            values[name] = getattr(self, name) or None
        values["qk_norm"] = "joined" if values.pop("joined_qk_norm") else self.qk_norm or None
        values["norm_first"] = None if self.norm_first else False
        values["bias"] = tuple(part for part in self.bias if part != "none") if self.bias else None
        values["test_lengths"] = self.test_lengths or None
        return {name: value for name, value in values.items() if value is not None}
