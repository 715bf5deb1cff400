"""The class that joins the parts of a sum: `rotary + alibi`, `on(rotary, heads=(0, 1)) + alibi`."""

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ARGUMENTS = ("d_model", "num_heads", "head_dim", "max_seq_len")
PLACES = {
    "position_ids": "Tensor | None = None",
    "key_position_ids": "Tensor | None = None",
    "offset": "int = 0",
    "horizon": "int = 0",
}
"""How the classes of forms are told where tokens are."""


@dataclass(frozen=True)
class Member:
    """A class of a file, as a part of a sum: its text, its name in the sum, and its heads; () for all."""

    text: str
    name: str
    heads: tuple[int, ...] = ()

    @property
    def tree(self) -> ast.ClassDef:
        (tree,) = ast.parse(self.text).body
        assert isinstance(tree, ast.ClassDef)
        return tree

    def parameters(self, method: str) -> tuple[str, ...]:
        """Return the names of a method's parameters."""
        methods = {node.name: node for node in self.tree.body if isinstance(node, ast.FunctionDef)}
        return tuple(argument.arg for argument in methods[method].args.args[1:]) if method in methods else ()

    @property
    def kind(self) -> str:
        """Return what the class does; "" for what no sum can call, such as another rule of attention."""
        inputs = tuple(name for name in self.parameters("forward") if name not in PLACES)
        places = self.parameters("forward")[len(inputs) :]
        if inputs == ("q", "k"):
            return "rotate" if self.returns_pair else "bias"
        return {("x",): "embed" if places else "", ("q",): "rotate_query"}.get(inputs, "")

    @property
    def returns_pair(self) -> bool:
        (method,) = (node for node in self.tree.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
        return isinstance(method.returns, ast.Subscript)  # tuple[Tensor, Tensor]

    @property
    def places(self) -> tuple[str, ...]:
        """Return the parameters of `forward` that say where tokens are."""
        return tuple(name for name in self.parameters("forward") if name in PLACES)

    def construction(self) -> str:
        """Return the line that makes it."""
        names = self.parameters("__init__")
        arguments = [str(len(self.heads)) if self.heads and name == "num_heads" else name for name in names]
        return f"        self.{self.name} = {self.tree.name}({', '.join(arguments)})\n"

    def call(self, inputs: str) -> str:
        """Return the expression that calls it."""
        places = [name if name == "position_ids" else f"{name}={name}" for name in self.places]
        return f"self.{self.name}({', '.join([inputs, *places])})"


def sum_class(spec: str, members: Sequence[Member], seq_dim: int) -> str:
    """Return the text of the class of a sum, with a method for each thing that its parts do."""
    needs = {name for member in members for name in member.parameters("__init__") if name != "num_heads"}
    needs |= {"num_heads" for member in members if not member.heads and "num_heads" in member.parameters("__init__")}
    arguments = "".join(f", {name}: int" for name in ARGUMENTS if name in needs)
    text = (
        f'class PositionalEncoding(nn.Module):\n    """{spec}.\n\n{usage(members, seq_dim)}    """\n\n'
        f"    def __init__(self{arguments}) -> None:\n        super().__init__()\n"
        f"{''.join(member.construction() for member in members)}"
    )
    return text + "".join(method(members) for method in (embed_method, rotate_method, bias_method))


def usage(members: Sequence[Member], seq_dim: int) -> str:
    """Return the lines of the class docstring that say how a model calls it."""
    lines = ["x = positions.embed(x), for x [batch, seq_len, d_model]"] * bool(of_kind(members, "embed"))
    rotates, biases = of_kind(members, "rotate", "rotate_query"), of_kind(members, "bias")
    axes = "[batch, heads, seq_len, head_dim]" if seq_dim == 2 else "[batch, seq_len, heads, head_dim]"
    if rotates:
        lines.append(f"q, k = positions.rotate(q, k), for q, k {axes}")
    if biases:
        lines.append(f"bias = positions.bias(q, k){f', for q, k {axes}' * (not rotates)}")
    if rotates or biases:
        inputs = "q, k, v" if seq_dim == 2 else "*(x.transpose(1, 2) for x in (q, k, v))"
        options = ", attn_mask=bias + mask" if biases else ""
        lines.append(f"out = nn.functional.scaled_dot_product_attention({inputs}{options})")
    lines += ["mask: float, 0 where a query sees a key, -inf elsewhere"] * bool(biases)
    lines += [f"Call `{member.name}` as its class says" for member in members if not member.kind]
    return "".join(f"    {line}\n" for line in lines)


def of_kind(members: Iterable[Member], *kinds: str) -> list[Member]:
    """Return the members that do one of these things, in this order."""
    return [member for kind in kinds for member in members if member.kind == kind]


def method_text(name: str, inputs: str, members: Sequence[Member], result: str, words: str, lines: str) -> str:
    """Return the text of a method that takes tensors, and what its members need to know of places."""
    places = [place for place in PLACES if any(place in member.places for member in members)]
    arguments = ", ".join([*(f"{x}: Tensor" for x in inputs.split(", ")), *(f"{p}: {PLACES[p]}" for p in places)])
    head = f"    def {name}(self, {arguments}) -> {result}:\n"
    if len(head) > 100:
        head = f"    def {name}(\n        self, {arguments}\n    ) -> {result}:\n"
    return f'\n{head}        """{words}"""\n{lines}'


def embed_method(members: Sequence[Member]) -> str:
    if not (parts := of_kind(members, "embed")):
        return ""
    *lines, last = (part.call("x") for part in parts)
    text = "".join(f"        x = {line}\n" for line in lines) + f"        return {last}\n"
    return method_text("embed", "x", parts, "Tensor", "Return the embeddings with their positions added.", text)


def rotate_method(members: Sequence[Member]) -> str:
    if not (parts := of_kind(members, "rotate", "rotate_query")):
        return ""
    lines = []
    for part in parts:
        inputs = "q, k" if part.kind == "rotate" or part.heads else "q"
        call = part.call(inputs)
        if part.heads:
            call = f"rotate_heads(self.{part.name}, q, k, {part.heads}, {', '.join(part.places)})"
        lines.append((inputs, call))
    inputs, last = lines.pop()
    text = "".join(f"        {names} = {call}\n" for names, call in lines)
    text += f"        return {last}{', k' * (inputs == 'q')}\n"
    words = "Return q and k for attention" + ", and for `bias`." * bool(of_kind(members, "bias"))
    return method_text("rotate", "q, k", parts, "tuple[Tensor, Tensor]", words.rstrip(".") + ".", text)


def bias_method(members: Sequence[Member]) -> str:
    if not (parts := of_kind(members, "bias")):
        return ""
    terms = []
    for part in parts:
        on_heads = f"bias_on_heads(self.{part.name}, q, k, {part.heads}, {', '.join(part.places)})"
        terms.append(on_heads if part.heads else part.call("q, k"))
    (first, *other_terms) = terms
    text = f"        bias = {first}\n" + "".join(f"        bias = bias + {term}\n" for term in other_terms[:-1])
    text = f"{text}        return bias + {other_terms[-1]}\n" if other_terms else f"        return {first}\n"
    return method_text("bias", "q, k", parts, "Tensor", "Return what is added to the scaled logits.", text)
