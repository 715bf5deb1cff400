"""MLPBias, the dynamic position bias, against x_transformers."""

import pytest
import torch

from posenc import Positions
from posenc.encodings.distance_biases.mlp_bias import MLPBias


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_x_transformers_has_the_same_network_of_the_same_distances(depth: int, log: bool) -> None:
    peer = pytest.importorskip("x_transformers.x_transformers", reason="the peers extra is not installed")
    network = peer.DynamicPositionBias(12, heads=3, depth=depth, log_distance=log)
    encoding = MLPBias(3, width=12, depth=depth, log=log)
    linear = [module for module in network.modules() if isinstance(module, torch.nn.Linear)]
    for layer, peer_layer in zip(encoding.layers, linear, strict=True):
        layer.load_state_dict(peer_layer.state_dict())
    torch.testing.assert_close(encoding.bias(40)[0], network(40, 40), rtol=1e-5, atol=1e-5)
    # The last five queries, as with a KV cache.
    actual = encoding.bias(Positions.count(5, start=35), Positions.count(40))
    torch.testing.assert_close(actual[0], network(5, 40), rtol=1e-5, atol=1e-5)
