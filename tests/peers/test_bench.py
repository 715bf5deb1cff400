"""The peers that the benchmark measures compute the same as posenc."""

import pytest
import torch

from posenc_bench import measure, peers
from posenc_bench.cases import adding, attention, rotation


@pytest.fixture
def small() -> rotation.Case:
    return rotation.Case("training", 2, 3, 1, 5, 8, torch.float32, start=2)


@pytest.mark.parametrize("name", peers.ROTATIONS)
def test_a_peer_that_is_installed_turns_as_we_do(name: str, small: rotation.Case) -> None:
    q, k = small.inputs()
    ids = torch.arange(2, 7)
    try:
        peer = peers.ROTATIONS[name](3, 8, ids, torch.float32, 10_000.0)
    except peers.AbsentPeer as reason:
        pytest.skip(str(reason))
    for x, out in zip((q, k), peer.rotate(q, k), strict=True):
        assert measure.difference(out, rotation.rotate_in_double(x, small, peer.layout)) < 1e-5


def test_their_sinusoids_and_slopes_are_ours() -> None:
    group = adding.sinusoidal(adding.Case(2, 7, 6), with_peers=True)
    candidates = [candidate for candidate in group.candidates if candidate.kind == "peer"]
    assert candidates or group.absent
    assert all(candidate.error() < 1e-5 for candidate in candidates)
    group = attention.causal(9, backward=False, with_peers=True, only="x-transformers: alibi")
    assert all(candidate.error() < 1e-5 for candidate in group.candidates if candidate.kind == "peer")
    assert len(group.candidates) + len(group.absent) == 2
