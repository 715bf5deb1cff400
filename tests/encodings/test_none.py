"""Three common beliefs about order in attention without an encoding are measured."""

import pytest
import torch
from torch import Tensor, nn

from posenc import Block, Decoder, masks
from posenc.encodings.none import NoPE
from posenc.tokens.masks import Mask


def stack(layers: int) -> nn.ModuleList:
    return nn.ModuleList(Block(12, 3, encoding="none") for _ in range(layers)).double()


def run(blocks: nn.ModuleList, x: Tensor, mask: Mask) -> Tensor:
    for block in blocks:
        x = block(x, mask=mask)
    return x


def test_it_opens_no_door() -> None:
    assert NoPE().doors == frozenset() and not list(NoPE().parameters())


def test_bidirectional_attention_is_equivariant_and_not_invariant() -> None:
    blocks, x, order = stack(2), torch.randn(2, 9, 12, dtype=torch.float64), torch.randperm(9)
    out, permuted_out = run(blocks, x, masks.bidirectional()), run(blocks, x[:, order], masks.bidirectional())
    torch.testing.assert_close(permuted_out, out[:, order], rtol=0, atol=1e-12)
    assert (permuted_out - out).abs().max().item() > 0.1
    torch.testing.assert_close(permuted_out.mean(1), out.mean(1), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("layers", "blind"), [(1, True), (2, False)])
def test_a_causal_stack_is_blind_to_the_order_of_the_past_in_its_first_layer_only(layers: int, blind: bool) -> None:
    blocks, x = stack(layers), torch.randn(2, 9, 12, dtype=torch.float64)
    order = torch.tensor([3, 0, 7, 1, 6, 2, 5, 4, 8])
    change = (
        (run(blocks, x, masks.causal())[:, -1] - run(blocks, x[:, order], masks.causal())[:, -1]).abs().max().item()
    )
    assert change < 1e-13 if blind else change > 1e-4


@pytest.mark.parametrize("layers", [1, 3])
def test_on_a_constant_sequence_nothing_is_counted(layers: int) -> None:
    x = torch.randn(1, 1, 12, dtype=torch.float64).expand(1, 9, 12)
    out = run(stack(layers), x, masks.causal())
    torch.testing.assert_close(out, out[:, :1].expand_as(out), rtol=0, atol=1e-13)


def test_an_anchor_makes_counting_possible() -> None:
    x = torch.randn(1, 1, 12, dtype=torch.float64).expand(1, 9, 12).clone()
    x[:, 0] = torch.randn(12, dtype=torch.float64)
    out = run(stack(1), x, masks.causal())
    assert out[:, 1:].diff(dim=1).abs().amax(-1).min().item() > 1e-4


def test_positions_change_nothing() -> None:
    model = Decoder(vocab=7, dim=12, heads=3, layers=2, encoding="none")
    ids = torch.randint(7, (2, 5))
    assert torch.equal(model(ids), model(ids, positions=torch.tensor([9, 3, 5, 5, 0])))
