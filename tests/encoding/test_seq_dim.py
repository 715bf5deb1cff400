"""`seq_dim` names the axis of the tokens; the result is bit-equal to the transposed call."""

import pytest
import torch

from posenc import ALiBi, Rotary, Shape, Shaw, Sinusoidal, build
from posenc.catalogue import names

SHAPE = Shape.of(64, 4, 32)
ENCODINGS = {name: build(name, SHAPE) for name in names()}
EMBEDDINGS = [name for name, encoding in ENCODINGS.items() if "embed" in encoding.doors]
ROTATING = [name for name, e in ENCODINGS.items() if "turn" in e.doors and "remember" not in e.doors]


def options(name: str) -> dict:
    """Return positions for 6 tokens, on as many axes as an encoding reads."""
    axes = ENCODINGS[name].axes
    return {} if axes < 2 else {"positions": torch.arange(6)[:, None].expand(6, axes)[None]}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings_with_the_sequence_first(name: str) -> None:
    encoding, x = ENCODINGS[name], torch.randn(6, 3, 64)
    expected = encoding(x.transpose(0, 1), **options(name))
    for axis in (0, -3):
        assert torch.equal(encoding(x, seq_dim=axis, **options(name)).transpose(0, 1), expected)
    assert torch.equal(encoding(x.transpose(0, 1), seq_dim=1, **options(name)), expected)
    windows = torch.randn(2, 5, 6, 64)
    torch.testing.assert_close(encoding(windows, **options(name))[1, 2:3], encoding(windows[1, 2:3], **options(name)))


@pytest.mark.parametrize("name", ROTATING)
def test_heads_behind_the_tokens(name: str) -> None:
    encoding, q, k = ENCODINGS[name], torch.randn(2, 6, 4, 16), torch.randn(2, 6, 4, 16)
    at = options(name)
    expected = encoding(q.transpose(1, 2), k.transpose(1, 2), **at)
    for axis in (1, -3):
        for actual, right in zip(encoding(q, k, seq_dim=axis, **at), expected, strict=True):
            assert torch.equal(actual.transpose(1, 2), right)
    assert torch.equal(encoding.query(q, seq_dim=1, **at).transpose(1, 2), encoding.query(q.transpose(1, 2), **at))
    assert torch.equal(encoding.key(k, seq_dim=1, **at).transpose(1, 2), encoding.key(k.transpose(1, 2), **at))
    first = encoding(q.permute(1, 0, 2, 3), k.permute(1, 0, 2, 3), seq_dim=0, **at)
    assert torch.equal(first[0].permute(1, 2, 0, 3), expected[0])


def test_queries_that_a_bias_reads() -> None:
    q = torch.randn(2, 6, 4, 4)
    encoding = Shaw(4, max_distance=3, std=1.0)
    assert torch.equal(encoding.bias(6, q=q, seq_dim=1), encoding.bias(6, q=q.transpose(1, 2)))
    with pytest.raises(ValueError, match="neither was given; leave it out"):
        ALiBi(4).bias(6, seq_dim=1)


def test_an_offset_is_one_for_each_row_or_for_all() -> None:
    rotary, q, k = Rotary(4), torch.randn(3, 2, 6, 4), torch.randn(3, 1, 6, 4)
    rows = torch.tensor([0, 7, 2])
    expected = rotary(q, k, positions=rows[:, None] + torch.arange(6))
    assert torch.equal(rotary(q, k, offset=rows)[0], expected[0])
    assert torch.equal(rotary(q, k, rows[:, None] + torch.arange(6))[1], expected[1])
    assert torch.equal(rotary(q, k, offset=torch.tensor(3))[0], rotary(q, k, offset=3)[0])
    assert torch.equal(
        Sinusoidal(4)(q[:, 0], offset=rows), Sinusoidal(4)(q[:, 0], positions=rows[:, None] + torch.arange(6))
    )


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: Rotary(4)(torch.zeros(2, 6, 4, 4), torch.zeros(2, 6, 2, 4)),
            r"heads \[B, T, H, D\] say seq_dim=1",
        ),
        (lambda: Rotary(4)(*[torch.zeros(2, 6, 4, 4)] * 2, torch.arange(6)), "the axis of the tokens by seq_dim=..."),
        (lambda: Rotary(4)(*[torch.zeros(2, 6, 4, 4)] * 2, seq_dim=3), r"before its channels, 0 to 2, got 3 for shape"),
        (lambda: Rotary(4)(*[torch.zeros(2, 6, 4, 4)] * 2, seq_dim=-1), "seq_dim must be an axis of x"),
        (lambda: Rotary(4)(*[torch.zeros(2, 6, 4, 4)] * 2, seq_dim="1"), "seq_dim must be a whole number, got '1'"),
        (lambda: Sinusoidal(16)(torch.zeros(6, 3, 16), positions=torch.arange(6)), "by seq_dim=..."),
        (
            lambda: Rotary(4)(*[torch.zeros(2, 4, 6, 4)] * 2, offset=torch.tensor([1, 2, 3])),
            "of 3 rows for a batch of 2",
        ),
        (lambda: Rotary(4)(*[torch.zeros(2, 4, 6, 4)] * 2, offset=torch.tensor(1.5)), r"or a tensor \[B\] of them"),
    ],
)
def test_what_can_be_told_is_refused(call, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        call()
