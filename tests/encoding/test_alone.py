"""An encoding outside this library's layers takes positions in every form."""

import pytest
import torch
from torch import Tensor

from posenc import ALiBi, Learned, LogTemperature, MixedRotary, Positions, Rotary, Shaw, Sinusoidal, XPos, catalogue
from posenc.testing import SHAPE

ROTATIONS = [
    name
    for name, cls in catalogue.ENCODINGS.items()
    if "turn" in cls.doors and catalogue.build(name, SHAPE).axes in (0, 1)
]
T, START = 5, 3
WAYS = {
    "an offset": {"offset": START},
    "an int": {"positions": START},
    "ids": {"positions": torch.arange(START, START + T)},
    "ids of each row": {"positions": torch.arange(START, START + T).expand(2, -1)},
    "ids with an axis": {"positions": torch.arange(START, START + T).expand(2, -1)[..., None]},
    "floating ids": {"positions": torch.arange(START, START + T, dtype=torch.float64)},
    "Positions": {"positions": Positions.count(T, START)},
}


def build_double(name: str):
    torch.manual_seed(0)
    return catalogue.build(name, SHAPE).double()


def heads(*leading: int) -> Tensor:
    torch.manual_seed(1)
    return torch.randn(*leading, T, SHAPE.head_dim, dtype=torch.float64)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ROTATIONS)
def test_queries_and_keys_are_turned_by_positions_said_in_any_way(name: str, way: str) -> None:
    encoding = build_double(name)
    x, at = heads(2, SHAPE.heads), Positions.count(T, START)
    for call, side in ((encoding.query, "query"), (encoding.key, "key")):
        torch.testing.assert_close(call(x, **WAYS[way]), encoding.turn(x, at, side), rtol=0, atol=1e-12)
    q, k = encoding(x, x, **WAYS[way])
    torch.testing.assert_close(q, encoding.turn(x, at, "query"), rtol=0, atol=1e-12)
    torch.testing.assert_close(k, encoding.turn(x, at, "key"), rtol=0, atol=1e-12)
    first = Positions.count(T)
    torch.testing.assert_close(encoding.query(x), encoding.turn(x, first, "query"), rtol=0, atol=1e-12)


@pytest.mark.parametrize("leading", [(), (3,), (2, 3), (2, 2, 3), (1, 2, 2, 3)])
def test_heads_may_have_any_leading_axes_and_strides(leading: tuple[int, ...]) -> None:
    rope, x = Rotary(SHAPE.head_dim, partial=2 / 3).double(), heads(*leading)
    copy = x.clone()
    rotated = rope.query(x, offset=START)
    assert rotated.shape == x.shape and torch.equal(x, copy)
    flat = rope.turn(x.reshape(-1, 1, T, SHAPE.head_dim), Positions.count(T, START), "query")
    assert torch.equal(rotated.reshape(flat.shape), flat)
    assert all(torch.equal(tensor, rotated) for tensor in rope(x, x, offset=START))
    assert torch.equal(rope.key(x, START), rotated) and torch.equal(rope(x, offset=START), rotated)
    if leading:
        view = x.transpose(-2, -3).contiguous().transpose(-2, -3)  # [..., T, H, D] in memory
        assert torch.equal(rope.query(view, offset=START), rotated)


def test_three_axes_are_heads_or_where_positions_are_those_of_several_rows_a_batch() -> None:
    rope, x = Rotary(SHAPE.head_dim).double(), heads(3)
    ids = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 10, 11], [2, 4, 6, 8, 10]])
    for row, rotated in enumerate(rope.query(x, ids)):
        assert torch.equal(rotated, rope.query(x[row], ids[row]))
    mixed_rope = MixedRotary(3, SHAPE.head_dim, axes=1).double()
    assert mixed_rope.query(x).shape == x.shape
    with pytest.raises(ValueError, match="sets of heads"):
        mixed_rope.query(heads(4))


def test_one_tensor_alone_is_turned_where_no_side_is_needed() -> None:
    x = heads(2, 3)
    assert torch.equal(Rotary(SHAPE.head_dim).double()(x), Rotary(SHAPE.head_dim).double().key(x))
    temperature = LogTemperature(4)
    assert torch.equal(temperature(x), temperature.query(x)) and torch.equal(temperature.key(x), x)
    total = Rotary(SHAPE.head_dim) + ALiBi(3)
    assert torch.equal(total(x), Rotary(SHAPE.head_dim)(x))
    with pytest.raises(
        ValueError, match=r"xpos .*turns queries and keys each in their own way; call query\(q\) or key\(k\)"
    ):
        XPos(SHAPE.head_dim)(x)
    with pytest.raises(ValueError, match="turns queries and keys each in their own way"):
        (Rotary(SHAPE.head_dim) + temperature)(x)
    with pytest.raises(ValueError, match=r"alibi adds nothing to embeddings; it opens \['by_distance'\]"):
        ALiBi(3)(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Rotary(8).query(torch.zeros(8)), r"q must have shape \[..., tokens, head_dim\], got \[8\]"),
        (lambda: Rotary(8).key(torch.zeros(2, 8).long()), r"k must be floating"),
        (lambda: Rotary(8)(torch.zeros(1, 3, 8), torch.zeros(3, 8)), r"k must have as many axes as x, got \[3, 8\]"),
        (lambda: Rotary(8)(torch.zeros(3, 8), torch.zeros(8)), r"k must have shape \[..., tokens, head_dim\]"),
        (lambda: Rotary(8).query(torch.zeros(3, 8), torch.arange(4)), "got positions of 4 tokens for 3 tokens"),
        (lambda: Rotary(8).query(torch.zeros(3, 8), torch.arange(3), offset=2), "give positions or offset=2, not both"),
        (lambda: Rotary(8).query(torch.zeros(3, 8), -1), "start"),
        (lambda: Rotary(8).query(torch.zeros(3, 6)), r"rotary is built for heads of 8 channels, got 6"),
        (lambda: Rotary(8)(torch.zeros(2, 3, 8), torch.zeros(2, 4, 8)), "got 3 and 4 of them; for cross-attention"),
        (lambda: Sinusoidal(8)(torch.zeros(3, 8)), r"x must have shape \[batch, tokens, dim\], got \[3, 8\]"),
        (lambda: Sinusoidal(8).table(Positions.count(3), offset=1), "give positions or offset=1, not both"),
        (lambda: Sinusoidal(8).table(0), "a sequence needs at least one token, got 0"),
    ],
)
def test_what_does_not_fit_is_refused_in_a_sentence(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_table_is_of_as_many_tokens_as_are_said() -> None:
    waves = Sinusoidal(8)
    assert torch.equal(waves.table(6), waves.table(Positions.count(6)))
    assert torch.equal(waves.table(6, offset=2), waves.table(torch.arange(2, 8)))
    assert torch.equal(ALiBi(3).bias(6), ALiBi(3).bias(torch.arange(6)))


def test_queries_and_keys_of_cross_attention_have_positions_of_their_own() -> None:
    rope = Rotary(SHAPE.head_dim).double()
    q, k = heads(2, 3), heads(2, 3)[:, :, :4]
    logits = rope.query(q, offset=9) @ rope.key(k, torch.arange(4)).transpose(-1, -2)
    at, keys_at = Positions.count(T, 9), Positions.count(4)
    torch.testing.assert_close(logits, rope.turn(q, at, "query") @ rope.turn(k, keys_at, "key").transpose(-1, -2))


def test_what_turns_nothing_gives_the_tensor_itself() -> None:
    x = heads(2, 3)
    for encoding in (ALiBi(3), Learned(SHAPE.dim, 9), Shaw(SHAPE.head_dim, values=False)):
        assert encoding.query(x) is x and encoding.key(x, 3) is x
