"""A call with another library's names gets an error with our names, and the proposed call works.

Each row is a call, a pattern of its error, and the working call if the error proposes one.
"""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import posenc
from posenc import (
    ALiBi,
    Attention,
    Block,
    Decoder,
    Encoder,
    EncoderDecoder,
    Learned,
    LearnedGrid,
    Positions,
    Rotary,
    Shape,
    Sinusoidal,
    T5Bias,
    TokenPositionEmbedding,
    masks,
)

X, Q, K = torch.zeros(1, 6, 16), torch.zeros(2, 4, 6, 16), torch.zeros(2, 2, 6, 16)
IDS, MODEL, LAYER = torch.zeros(1, 6, dtype=torch.long), Decoder(11, 16, 4, 1).eval(), Attention(16, 4)
TRANSLATOR = EncoderDecoder(11, 16, 4, 1)
SHAPE, ROTARY = Shape.of(64, 4, 32), Rotary(16)
PADDING = torch.tensor([[1, 1, 1, 1, 0, 0]])
SEGMENTS = torch.tensor([[1, 1, 2, 2, 2, 0]])
IMAGE = Positions.grid(3, 5)
GRID = LearnedGrid(16, grid=(4, 4))

Row = tuple[Callable[[], Any], str, Callable[[], Any] | None]
CALLS: dict[str, Row] = {
    "num_heads": (lambda: Attention(64, num_heads=4), "mean 'heads'", lambda: Attention(64, heads=4)),
    "embed_dim": (lambda: Attention(embed_dim=64, heads=4), "mean 'dim'", lambda: Attention(dim=64, heads=4)),
    "nhead": (lambda: Block(d_model=64), "mean 'dim'", lambda: Block(dim=64)),
    "d_model": (lambda: Encoder(11, d_model=64), "mean 'dim'", lambda: Encoder(11, dim=64)),
    "n_head": (lambda: Encoder(11, n_head=4), "mean 'heads'", None),
    "nhead of a model": (lambda: EncoderDecoder(11, nhead=4), "mean 'heads'", None),
    "vocab_size": (lambda: Decoder(vocab_size=11), "mean 'vocab'", None),
    "n_layer": (lambda: Decoder(11, n_layer=2), "mean 'layers'", lambda: Decoder(11, layers=2)),
    "block_size": (lambda: Decoder(11, block_size=9), "mean 'max_len'", None),
    "context_length": (lambda: Decoder(11, context_length=9), "mean 'max_len'", None),
    "max_seq_len": (lambda: Learned(16, max_seq_len=9), "mean 'max_len'", lambda: Learned(16, max_len=9)),
    "pre_norm": (lambda: Decoder(11, pre_norm=True), "mean 'norm_first=True'", lambda: Decoder(11, norm_first=True)),
    "hidden": (lambda: Block(64, hidden=9), "mean 'intermediate_size'", lambda: Block(64, intermediate_size=9)),
    "tie_weights": (lambda: Decoder(11, tie_weights=True), "mean 'tie_output'", None),
    "is_causal": (lambda: Attention(64, is_causal=True), "mean 'causal'", lambda: Attention(64, causal=True)),
    "theta": (lambda: Rotary(16, theta=5e5), "mean 'base'", lambda: Rotary(16, base=5e5)),
    "rope_theta": (lambda: Rotary(16, rope_theta=5e5), "mean 'base'", None),
    "rope_scaling": (lambda: Rotary(16, rope_scaling=None), "mean 'schedule'", None),
    "partial_rotary_factor": (lambda: Rotary(16, partial_rotary_factor=0.5), "'partial'", None),
    "dim of a head": (lambda: Rotary(dim=16), "mean 'head_dim'", lambda: Rotary(head_dim=16)),
    "embedding_dim": (lambda: Sinusoidal(embedding_dim=16), "mean 'dim'", lambda: Sinusoidal(dim=16)),
    "num_buckets": (lambda: T5Bias(4, num_buckets=32), "mean 'buckets'", lambda: T5Bias(4, buckets=32)),
    "bidirectional": (lambda: T5Bias(4, bidirectional=True), "causal=False", lambda: T5Bias(4, causal=False)),
    "num_heads of a bias": (lambda: ALiBi(num_heads=4), "mean 'heads'", lambda: ALiBi(heads=4)),
    "num_embeddings": (lambda: TokenPositionEmbedding(num_embeddings=9), "mean 'vocab'", None),
    "theta in a spec": (lambda: posenc.build("rotary(theta=500)", SHAPE), "mean 'base'", None),
    "scaling in a spec": (lambda: posenc.build("rotary(rope_scaling=1)", SHAPE), "mean 'schedule'", None),
    "an option of a schedule": (lambda: posenc.build("rotary(schedule=yarn(scale_factor=4))", SHAPE), "'factor'", None),
    "rope": (lambda: posenc.build("rope", SHAPE), "mean 'rotary'", lambda: posenc.build("rotary", SHAPE)),
    "ape": (lambda: posenc.build("ape", SHAPE), "mean 'learned'", lambda: posenc.build("learned", SHAPE)),
    "sincos": (lambda: posenc.build("sincos", SHAPE), "'sinusoidal'", lambda: posenc.build("sinusoidal", SHAPE)),
    "relative": (lambda: posenc.build("relative", SHAPE), "mean 'shaw'", lambda: posenc.build("shaw", SHAPE)),
    "PositionalEncoding": (lambda: posenc.PositionalEncoding, "mean 'Sinusoidal'", None),
    "MultiHeadAttention": (lambda: posenc.MultiHeadAttention, "mean 'Attention'", None),
    "TransformerBlock": (lambda: posenc.TransformerBlock, "mean 'Block'", None),
    "LearnedPositionalEncoding": (lambda: posenc.LearnedPositionalEncoding, "mean 'Learned'", None),
    "RotaryEmbedding": (lambda: posenc.RotaryEmbedding, "mean 'Rotary'", None),
    "apply_rotary_pos_emb": (lambda: posenc.apply_rotary_pos_emb, "mean 'Rotary'", None),
    "attn_mask": (lambda: LAYER(X, attn_mask=None), "mean 'mask'", lambda: LAYER(X, mask=None)),
    "weights": (lambda: LAYER(X, weights=True), "mean 'need_weights'", lambda: LAYER(X, need_weights=True)),
    "weights of a block": (lambda: Block(16, 4)(X, weights=True), "mean 'need_weights'", None),
    "weights of a decoder": (lambda: MODEL(IDS, weights=True), "Decoder.* mean 'need_weights'", None),
    "weights of an encoder": (lambda: Encoder(11, 16, 4, 1)(IDS, weights=True), "mean 'need_weights'", None),
    "weights of both": (lambda: TRANSLATOR(IDS, IDS, weights=True), "mean 'need_weights'", None),
    "is_causal of a call": (lambda: LAYER(X, is_causal=True), "mask='causal'", lambda: LAYER(X, mask="causal")),
    "key_padding_mask": (
        lambda: LAYER(X, key_padding_mask=PADDING == 0),
        re.escape("positions=Positions.padded(~key_padding_mask)"),
        lambda: LAYER(X, positions=Positions.padded(~(PADDING == 0))),
    ),
    "attention_mask": (lambda: MODEL(IDS, attention_mask=PADDING), "mean 'mask'", None),
    "cu_seqlens": (
        lambda: LAYER(X, cu_seqlens=torch.tensor([0, 2, 6])),
        re.escape("positions=Positions.packed(cu_seqlens=cu_seqlens)"),
        lambda: LAYER(X, positions=Positions.packed(cu_seqlens=torch.tensor([0, 2, 6]))),
    ),
    "position_ids": (lambda: ROTARY(Q, K, position_ids=3), "mean 'positions'", lambda: ROTARY(Q, K, positions=3)),
    "past_key_values": (lambda: MODEL(IDS, past_key_values=None), "mean 'cache'", None),
    "tokens": (
        lambda: MODEL.generate(IDS, tokens=2),
        "'max_new_tokens'",
        lambda: MODEL.generate(IDS, max_new_tokens=2),
    ),
    "tokens of a stream": (lambda: MODEL.stream(IDS, tokens=2), "mean 'max_new_tokens'", None),
    "tokens of both": (lambda: TRANSLATOR.generate(IDS, IDS, tokens=2), "mean 'max_new_tokens'", None),
    "tokens of a call": (lambda: MODEL(tokens=IDS), "mean 'ids'", None),
    "stop": (lambda: MODEL.generate(IDS, 2, stop=3), "'eos_token_id'", lambda: MODEL.generate(IDS, 2, eos_token_id=3)),
    "stop of a stream": (lambda: MODEL.stream(IDS, 2, stop=3), "mean 'eos_token_id'", None),
    "stop of both": (lambda: TRANSLATOR.generate(IDS, IDS, 2, stop=3), "mean 'eos_token_id'", None),
    "a number of tokens is missing": (lambda: MODEL.generate(IDS), "whole number of 1 or more, got None", None),
    "a layer without an encoding": (
        lambda: Attention(16, 4, encoding=None)(X),
        "build it without encoding=None",
        lambda: Attention(16, 4)(X),
    ),
    "an integer mask": (
        lambda: LAYER(X, mask=torch.ones(6, 6, dtype=torch.long)),
        re.escape("give mask.bool()"),
        lambda: LAYER(X, mask=torch.ones(6, 6, dtype=torch.long).bool()),
    ),
    "a padding mask as mask": (
        lambda: MODEL(IDS.expand(2, -1), mask=PADDING.expand(2, -1)),
        re.escape("positions=Positions.padded(mask)"),
        lambda: MODEL(IDS.expand(2, -1), positions=Positions.padded(PADDING.expand(2, -1))),
    ),
    "positions that are sliced": (
        lambda: Positions.count(6)[:, -1:],
        re.escape("at.rows(slice(-1, None))"),
        lambda: Positions.count(6).rows(slice(-1, None)),
    ),
    "ids of transformers' M-RoPE": (
        lambda: posenc.MultimodalRotary(16)(*[torch.zeros(2, 4, 6, 16)] * 2, torch.zeros(3, 2, 6).long()),
        re.escape("ids.permute(1, 2, 0)"),
        lambda: posenc.MultimodalRotary(16)(
            *[torch.zeros(2, 4, 6, 16)] * 2, torch.zeros(3, 2, 6).long().permute(1, 2, 0)
        ),
    ),
    "a rectangle of patches": (
        lambda: GRID(torch.zeros(1, 15, 16), positions=IMAGE),
        re.escape("resampled(3, 5)"),
        lambda: GRID.resampled(3, 5)(torch.zeros(1, 15, 16), positions=IMAGE),
    ),
    "a class token": (
        lambda: GRID(torch.zeros(1, 17, 16), positions=Positions.grid(4, 4)),
        re.escape("Positions.grid(..., prefix=1)"),
        lambda: LearnedGrid(16, grid=(4, 4), prefix=1)(
            torch.zeros(1, 17, 16), positions=Positions.grid(4, 4, prefix=1)
        ),
    ),
    "a class token of a grid without": (
        lambda: GRID(torch.zeros(1, 17, 16), positions=Positions.grid(4, 4, prefix=1)),
        "build it with prefix=1",
        None,
    ),
    "segments as padding": (
        lambda: MODEL(IDS, padding=SEGMENTS),
        re.escape("give Positions.packed(mask)"),
        lambda: MODEL(IDS, positions=Positions.packed(SEGMENTS)),
    ),
    "lengths of several rows": (lambda: Positions.packed([[2, 3], [4, 1]]), "segment ids as a tensor", None),
    "boundaries as lengths": (
        lambda: Positions.packed([0, 2, 5]),
        "give boundaries as cu_seqlens=",
        lambda: Positions.packed(cu_seqlens=[0, 2, 5]),
    ),
    "a segment in two places": (lambda: Positions.packed(torch.tensor([[1, 2, 1]])), "must be adjacent", None),
    "time stamps": (
        lambda: Sinusoidal(16)(X[:, :2], positions=torch.tensor([[1_700_000_000.0, 1_700_000_001.0]])),
        "subtract the first of them before they are float32, or give float64",
        lambda: Sinusoidal(16)(X[:, :2], positions=torch.tensor([[1_700_000_000.0, 1_700_000_001.0]]).double()),
    ),
    "ids beside embeddings": (
        lambda: Sinusoidal(16)(X, torch.arange(6)),
        re.escape("encoding(x, positions=...)"),
        lambda: Sinusoidal(16)(X, positions=torch.arange(6)),
    ),
    "a model that is causal": (lambda: MODEL(IDS, mask=masks.bidirectional()), "build an Encoder", None),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_by_habit_is_answered_in_a_sentence(name: str) -> None:
    call, words, right = CALLS[name]
    with pytest.raises((TypeError, ValueError, AttributeError)) as error:
        call()
    message = str(error.value)
    assert re.search(words, message) and "\n" not in message
    # Python's own errors for a wrong call do not name the right argument.
    assert not re.search(r"unexpected keyword|positional arguments? but|object is not subscriptable", message)
    if right is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            right()


def test_an_import_by_another_name_is_answered_too() -> None:
    with pytest.raises(ImportError, match="cannot import name 'PositionalEncoding' from 'posenc'; did you mean 'Sinus"):
        from posenc import PositionalEncoding  # noqa: F401
    assert not hasattr(posenc, "PositionalEncoding") and not hasattr(posenc, "nothing")


def test_every_word_of_the_tables_means_something_that_there_is() -> None:
    from posenc.specs import words

    functions = (Attention, Block, Decoder, Encoder, EncoderDecoder, TokenPositionEmbedding, Attention.forward)
    functions += (MODEL.forward, MODEL.stream, posenc.Encoding.forward, EncoderDecoder.forward)
    options = set(words.names_of(*functions, *(posenc.catalogue.find(name) for name in posenc.names())))
    options |= {"factor", "prefix", "train_length"}
    for word, names in words.OPTIONS_BY_WORD.items():
        assert {name.partition("=")[0] for name in names} <= options, word
    for word, (names,) in words.CLASSES_BY_WORD.items():
        target: Any = posenc
        for part in names.split("."):
            target = getattr(target, part)
        assert not hasattr(posenc, word)


@pytest.mark.parametrize("name", ["pe", "P", "pos_table", "weight", "encoding.weight"])
def test_a_table_loads_under_any_name(name: str) -> None:
    table = Sinusoidal(16).table(9)
    Sinusoidal(16).load_state_dict({name: table})
    for encoding, state in (
        (Learned(16, 9), table),
        (LearnedGrid(16, grid=(3, 3)), table),
        (Learned(16, 9), table[0]),
    ):
        encoding.load_state_dict({name: state})
        assert torch.equal(encoding.table, table[0])
    with pytest.raises(RuntimeError, match=r"size mismatch for table: .*\[9, 16\].*\[8, 16\]"):
        Learned(16, 8).load_state_dict({name: table})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        Learned(16, 9).load_state_dict({name: table, "other": table})


def test_segments_are_documents() -> None:
    at = Positions.packed(SEGMENTS)
    assert at.coords[..., 0].tolist() == [[0, 1, 0, 1, 2, 0]] and at.order.tolist() == [[0, 1, 2, 3, 4, -1]]
    x = torch.randn(1, 6, 16)
    layer = Attention(16, 4, encoding="rotary + alibi", causal=True)
    torch.testing.assert_close(layer(x, positions=at)[:, 2:5], layer(x[:, 2:5]))
    lengths = Positions.packed([2, 3])
    for positions in (Positions.packed(torch.tensor([2, 3])), Positions.packed(cu_seqlens=[0, 2, 5])):
        assert all(torch.equal(fact, positions.tensors()[name]) for name, fact in lengths.tensors().items())
