"""DeBERTa's buckets and bias against transformers' versions 1 and 2."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from posenc.encodings.content_biases.deberta import DeBERTa

pytest.importorskip("transformers", reason="transformers is not installed; it comes with the peers extra")


@pytest.mark.parametrize(
    ("buckets", "max_distance", "wrong"),
    [
        (256, 512, {}),  # the released models
        (512, 1024, {}),
        (32, 128, {}),
        (8, 33, {}),
        # transformers' logarithms are float32: a distance just past an edge falls into the previous bucket.
        (128, 1793, {453: (101, 102)}),
        (256, 2945, {686: (196, 197)}),
    ],
)
def test_buckets_are_theirs_but_for_rounding_at_the_edges(buckets: int, max_distance: int, wrong: dict) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    delta = torch.arange(-2 * max_distance, 2 * max_distance + 1)
    reference = make_log_bucket_position(delta, buckets, max_distance).long().clamp(-buckets, buckets - 1)
    actual = DeBERTa(4, 1, 4, buckets=buckets, max_distance=max_distance).bucket(delta).clamp(-buckets, buckets - 1)
    differ = {d: (a, b) for d, a, b in zip(delta.tolist(), reference.tolist(), actual.tolist(), strict=True) if a != b}
    assert differ == wrong | {-d: (-a, -b) for d, (a, b) in wrong.items()}
    half, power = buckets // 2, buckets // 2 - 1
    for distance, (_, bucket) in wrong.items():
        # In whole numbers, the distance is past the edge of the previous bucket, and not past that of its own.
        lower_edge, upper_edge = ((max_distance - 1) ** s * half**power for s in (bucket - half - 1, bucket - half))
        assert distance**power * half ** (bucket - half - 1) > lower_edge
        assert distance**power * half ** (bucket - half) <= upper_edge


def load_weights(layer: torch.nn.Module, table: Tensor, **options) -> DeBERTa:
    """Return a DeBERTa with the weights of a layer of version 2."""
    heads, head_dim = layer.num_attention_heads, layer.attention_head_size
    encoding = DeBERTa(table.shape[1], heads, head_dim, buckets=layer.pos_ebd_size, mirror=False, **options)
    share = layer.share_att_key
    with torch.no_grad():
        encoding.table.copy_(table)
        if encoding.to_key is not None:
            encoding.to_key.weight.copy_((layer.key_proj if share else layer.pos_key_proj).weight)
        if encoding.to_query is not None:
            encoding.to_query.load_state_dict((layer.query_proj if share else layer.pos_query_proj).state_dict())
    return encoding.double()


@pytest.mark.parametrize("share", [False, True])
@pytest.mark.parametrize(
    ("kinds", "terms"),
    [
        (["c2p", "p2c"], "both"),
        (["c2p"], "content_to_position"),
        (["p2c"], "position_to_content"),
    ],
)
def test_version_2_gives_the_same_with_rows_not_mirrored(kinds: list, terms: str, share: bool) -> None:
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = SimpleNamespace(
        hidden_size=12,
        num_attention_heads=3,
        share_att_key=share,
        pos_att_type=kinds,
        relative_attention=True,
        position_buckets=6,
        max_relative_positions=20,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    layer = DisentangledSelfAttention(config)
    table, T = torch.randn(12, 12, dtype=torch.float64), 40
    encoding = load_weights(layer, table, max_distance=20, terms=terms)
    layer = layer.double()
    q, k = (torch.randn(2, 3, T, 4, dtype=torch.float64) for _ in range(2))
    reference = layer.disentangled_attention_bias(q.flatten(0, 1), k.flatten(0, 1), None, table, 1 + len(kinds))
    actual, reference = encoding.bias(T, q=q, k=k), reference.view(2, 3, T, T)
    # transformers has a bias in W_K, the same for all keys of a query, and a float32 square root.
    reference, actual = (x - x.mean(-1, keepdim=True) for x in (reference, actual))
    torch.testing.assert_close(actual, reference, rtol=1e-6, atol=1e-7)
    if terms != "content_to_position":
        paper = DeBERTa(12, 3, 4, buckets=6, max_distance=20, terms=terms).double()
        paper.load_state_dict(encoding.state_dict())
        far = paper.bias(T, q=q, k=k)
        assert (far - far.mean(-1, keepdim=True) - reference).abs().max() > 0.1


def test_version_1_gives_the_same_with_rows_not_mirrored() -> None:
    from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention, build_relative_position

    config = SimpleNamespace(
        hidden_size=12,
        num_attention_heads=3,
        pos_att_type=["c2p", "p2c"],
        relative_attention=True,
        max_relative_positions=8,
        talking_head=False,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    layer = DisentangledSelfAttention(config).double()
    table = torch.randn(16, 12, dtype=torch.float64)
    encoding = DeBERTa(12, 3, 4, buckets=8, max_distance=None, mirror=False).double()
    with torch.no_grad():
        encoding.table.copy_(table)
        encoding.to_key.load_state_dict(layer.pos_proj.state_dict())
        encoding.to_query.load_state_dict(layer.pos_q_proj.state_dict())
    for T in (5, 20):
        q, k = (torch.randn(2, 3, T, 4, dtype=torch.float64) for _ in range(2))
        # Version 1 divides the query by the scale first.
        reference = layer.disentangled_att_bias(q / 12**0.5, k, build_relative_position(q, k), table, 3)
        torch.testing.assert_close(encoding.bias(T, q=q, k=k), reference, rtol=1e-6, atol=1e-7)


def test_theirs_swaps_two_arguments_when_queries_are_fewer_than_keys() -> None:
    """build_rpos is declared (..., buckets, max) and called (..., max, buckets): buckets differ from training's."""
    import inspect

    from transformers.models.deberta_v2 import modeling_deberta_v2 as peer

    assert list(inspect.signature(peer.build_rpos).parameters)[3:] == ["position_buckets", "max_relative_positions"]
    call = inspect.getsource(peer.DisentangledSelfAttention.disentangled_attention_bias).split("build_rpos(")[1]
    words = [word.strip(" ,\n") for word in call.split(")")[0].split("\n") if word.strip()]
    assert words[3:5] == ["self.max_relative_positions", "self.position_buckets"]
