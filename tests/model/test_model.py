"""Blocks, stacks and models agree with explicit passes, and with themselves without a cache."""

import math
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import posenc
from posenc import Attention, Block, Decoder, Encoder, EncoderDecoder, Positions, TokenPositionEmbedding, masks
from posenc.encodings.added.sinusoidal import Sinusoidal

SMALL = {"vocab": 11, "dim": 24, "heads": 3, "layers": 2}
ENCODINGS = [
    "none",
    "rotary",
    "sinusoidal",
    "alibi + rotary",
    "t5_bias(buckets=8, max_distance=12, std=1)",
    "learned",
    "shaw(max_distance=3)",
]


def decoder(encoding="rotary", **options) -> Decoder:
    return Decoder(**(SMALL | options), encoding=encoding).double().eval()


def ids_of(batch: int, tokens: int) -> Tensor:
    return torch.randint(11, (batch, tokens))


# Blocks


def layer_norm(x: Tensor, norm: torch.nn.LayerNorm) -> Tensor:
    deviation = x - x.mean(-1, keepdim=True)
    return deviation / (deviation.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight + norm.bias


def attention_by_hand(layer, x: Tensor, y: Tensor, causal: bool) -> Tensor:
    """Compute multi-head attention without positions from a layer's weights."""

    def split(z: Tensor, linear, heads: int) -> Tensor:
        return (z @ linear.weight.T + linear.bias).view(*z.shape[:2], heads, -1).permute(0, 2, 1, 3)

    q, k, v = split(x, layer.q_proj, 3), split(y, layer.k_proj, layer.kv_heads), split(y, layer.v_proj, layer.kv_heads)
    k, v = (z.repeat_interleave(3 // layer.kv_heads, 1) for z in (k, v))
    logits = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        logits = logits.masked_fill(torch.ones_like(logits, dtype=torch.bool).triu(1), -math.inf)
    merged_heads = (logits.softmax(-1) @ v).permute(0, 2, 1, 3).reshape(*x.shape[:2], -1)
    return merged_heads @ layer.o_proj.weight.T + layer.o_proj.bias


def feed_forward_by_hand(block: Block, x: Tensor) -> Tensor:
    first, second = block.feed_forward.up_proj, block.feed_forward.down_proj
    hidden = x @ first.weight.T + first.bias
    hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2
    return hidden @ second.weight.T + second.bias


def block_by_hand(block: Block, x: Tensor, memory: Tensor | None = None, causal: bool = True) -> Tensor:
    steps = [(block.attention_norm, lambda z: attention_by_hand(block.attention, z, z, causal))]
    if memory is not None:
        steps.append((block.cross_norm, lambda z: attention_by_hand(block.cross_attention, z, memory, False)))
    steps.append((block.feed_forward_norm, lambda z: feed_forward_by_hand(block, z)))
    for norm, step in steps:
        x = x + step(layer_norm(x, norm)) if block.config.norm_first else layer_norm(x + step(x), norm)
    return x


def perturb(module: torch.nn.Module) -> torch.nn.Module:
    """Randomise all parameters, so that norms are not the identity."""
    for p in module.parameters():
        torch.nn.init.normal_(p, mean=0.2, std=0.5)
    return module.double()


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_a_block_is_attention_and_feed_forward_with_residuals_and_norms(
    norm_first: bool, cross: bool, kv_heads: int
) -> None:
    options = {"cross_encoding": "none"} if cross else {}
    block = perturb(
        Block(
            12,
            3,
            norm_first=norm_first,
            cross=cross,
            encoding="none",
            intermediate_size=7,
            kv_heads=kv_heads,
            **options,
        )
    )
    x, memory = (
        torch.randn(2, 5, 12, dtype=torch.float64),
        torch.randn(2, 4, 12, dtype=torch.float64) if cross else None,
    )
    torch.testing.assert_close(
        block(x, mask=masks.causal(), memory=memory), block_by_hand(block, x, memory), rtol=0, atol=1e-10
    )


def test_a_block_alone_adds_its_own_encoding_and_one_in_a_stack_does_not() -> None:
    block = perturb(Block(12, 3, encoding="sinusoidal"))
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    expected = block_by_hand(block, Sinusoidal(12)(x, offset=3), causal=False)
    torch.testing.assert_close(block(x, positions=torch.arange(3, 8)), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(
        block(x, encoding=Sinusoidal(12)), block_by_hand(block, x, causal=False), rtol=0, atol=1e-10
    )


def test_a_block_gives_the_weights_of_both_attentions() -> None:
    block = Block(12, 3, cross=True, encoding="rotary", cross_encoding="none")
    x, memory = torch.randn(2, 5, 12), torch.randn(2, 4, 12)
    out, weights = block(x, memory=memory, mask=masks.causal(), need_weights=True)
    assert {name: tuple(w.shape) for name, w in weights.items()} == {"self": (2, 3, 5, 5), "cross": (2, 3, 5, 4)}
    torch.testing.assert_close(weights["cross"].sum(-1), torch.ones(2, 3, 5))
    torch.testing.assert_close(out, block(x, memory=memory, mask=masks.causal()), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: Block(12, 3, encoding="none", cross=True)(torch.zeros(1, 2, 12)),
            "a block with cross-attention needs the memory to attend to",
        ),
        (
            lambda: Block(12, 3, encoding="none")(torch.zeros(1, 2, 12), memory=torch.zeros(1, 2, 12)),
            "no cross-attention; build it with cross=True",
        ),
    ],
)
def test_impossible_blocks_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# Embeddings


def test_the_embedding_is_dropout_of_scale_times_token_plus_position() -> None:
    embedding = TokenPositionEmbedding(11, 24, "sinusoidal", scale=True, dropout=0.5).double()
    ids = ids_of(2, 9)
    whole = embedding.token.weight[ids] * math.sqrt(24) + Sinusoidal(24).table(9, dtype=torch.float64)
    out = embedding(ids)
    is_kept = out != 0
    assert 0.3 < is_kept.double().mean().item() < 0.7
    # Dropout acts on the sum of token and position, so the remaining entries are doubled.
    torch.testing.assert_close(out[is_kept], 2 * whole[is_kept], rtol=0, atol=1e-12)
    torch.testing.assert_close(embedding.eval()(ids), whole, rtol=0, atol=1e-12)
    plain = TokenPositionEmbedding(11, 24, "none")
    assert torch.equal(plain(ids), plain.token.weight[ids])


def test_a_vocabulary_of_one_is_one() -> None:
    assert TokenPositionEmbedding(1, 4)(torch.zeros(2, 3, dtype=torch.long)).shape == (2, 3, 4)


def test_positions_reach_the_embedding() -> None:
    embedding = TokenPositionEmbedding(11, 24, "learned", max_len=40)
    ids, places = ids_of(2, 3), torch.tensor([[0, 9, 39], [5, 5, 1]])
    assert torch.equal(embedding(ids, positions=places), embedding.token.weight[ids] + embedding.encoding.table[places])


@pytest.mark.parametrize(("scale", "norm_of_token"), [(True, 1.0), (False, math.sqrt(512))])
def test_tokens_are_as_long_as_the_scale_asks_for(scale: bool, norm_of_token: float) -> None:
    embedding = TokenPositionEmbedding(300, 512, "sinusoidal", scale=scale)
    assert embedding.token.weight.norm(dim=-1).mean().item() == pytest.approx(norm_of_token, rel=0.01)
    vectors = embedding.token_vectors(torch.arange(300)[None])
    # Either way a token has norm sqrt(dim), compared with sqrt(dim/2) for a position.
    assert vectors.norm(dim=-1).mean().item() == pytest.approx(math.sqrt(512), rel=0.01)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TokenPositionEmbedding(0, 8), "vocab must be a whole number of 1 or more, got 0"),
        (
            lambda: TokenPositionEmbedding(5, 8, "sinusoidal + alibi"),
            "alibi does more than add to embeddings; give it to the attention instead",
        ),
        (
            lambda: TokenPositionEmbedding(5, 8)(torch.tensor([[0, 5]])),
            r"token ids must lie in 0..4, got 5; check the tokenizer or vocab",
        ),
        (lambda: TokenPositionEmbedding(5, 8)(torch.tensor([[0, -1]])), "token ids must lie in 0..4, got -1"),
        (lambda: TokenPositionEmbedding(5, 8)(torch.zeros(1, 2)), "token ids are whole numbers, got torch.float32"),
        (
            lambda: TokenPositionEmbedding(5, 8)(torch.zeros(2, dtype=torch.long)),
            r"ids have shape \[batch, tokens\].*got \[2\]",
        ),
        (
            lambda: TokenPositionEmbedding(5, 8)(torch.zeros(2, 0, dtype=torch.long)),
            r"at least one token, got \[2, 0\]",
        ),
    ],
)
def test_ids_and_encodings_that_do_not_fit_are_refused(make, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


# The decoder


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("tie_output", [False, True])
def test_a_decoder_is_embedding_blocks_norm_and_output(norm_first: bool, tie_output: bool) -> None:
    model = perturb(
        Decoder(**SMALL, encoding="sinusoidal", norm_first=norm_first, tie_output=tie_output, scale_tokens=True)
    )
    ids = ids_of(2, 9)
    x = model.embedding.token.weight[ids] * math.sqrt(24) + Sinusoidal(24).table(9, dtype=torch.float64)
    for block in model.stack.blocks:
        x = block_by_hand(block, x)
    x = layer_norm(x, model.stack.final_norm) if norm_first else x
    logits = x @ model.embedding.token.weight.T if tie_output else x @ model.output.weight.T + model.output.bias
    torch.testing.assert_close(model(ids), logits, rtol=1e-10, atol=1e-8)


def test_six_layers_are_the_default() -> None:
    assert len(Decoder(vocab=5, dim=8, heads=2).stack.blocks) == 6
    assert len(Encoder(vocab=5, dim=8, heads=2).stack.blocks) == 6
    model = EncoderDecoder(vocab=5, dim=8, heads=2)
    assert len(model.encoder.blocks) == len(model.decoder.blocks) == 6


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("slots", [None, 12])
def test_chunks_through_a_cache_give_the_logits_of_one_pass(encoding: str, slots: int | None) -> None:
    model, ids = decoder(encoding), ids_of(2, 9)
    cache = model.cache(slots=slots)
    actual = torch.cat([model(ids[:, a:b], cache=cache) for a, b in ((0, 4), (4, 5), (5, 9))], 1)
    torch.testing.assert_close(actual, model(ids), rtol=0, atol=1e-6)


def greedy(model: Decoder, ids: Tensor, tokens: int) -> Tensor:
    for _ in range(tokens):
        ids = torch.cat((ids, model(ids)[:, -1:].argmax(-1)), 1)
    return ids


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("kv_heads", [3, 1])
def test_generation_through_a_cache_is_greedy_decoding_without_one(encoding: str, kv_heads: int) -> None:
    model, ids = decoder(encoding, kv_heads=kv_heads), ids_of(3, 4)
    assert torch.equal(model.generate(ids, 8), greedy(model, ids, 8))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_left_padded_prompts_generate_what_each_would_alone(encoding: str) -> None:
    model, ids = decoder(encoding), ids_of(3, 6)
    lengths = (6, 2, 4)
    padding = torch.stack([torch.arange(6) >= 6 - n for n in lengths])
    together = model.generate(ids, 6, padding=padding)
    for row, n in enumerate(lengths):
        assert torch.equal(together[row : row + 1, 6 - n :], greedy(model, ids[row : row + 1, 6 - n :], 6))


def test_ids_of_positions_may_be_given_token_by_token_with_a_cache() -> None:
    model, ids, cache = decoder(), ids_of(2, 6), None
    cache = model.cache()
    first = model(ids[:, :4], cache=cache)
    later = [model(ids[:, t : t + 1], positions=torch.full((2, 1), t), cache=cache) for t in (4, 5)]
    torch.testing.assert_close(torch.cat([first, *later], 1), model(ids), rtol=0, atol=1e-12)


def test_padding_belongs_to_rows_and_changes_no_other_logits() -> None:
    model, ids = decoder("rotary + alibi"), ids_of(2, 6)
    padding = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 0]])
    actual = model(ids, padding=padding)
    torch.testing.assert_close(actual[:1], model(ids[:1]), rtol=0, atol=1e-6)
    torch.testing.assert_close(actual[1:, 2:5], model(ids[1:, 2:5]), rtol=0, atol=1e-6)


def test_logits_may_be_asked_for_some_tokens_only() -> None:
    model, ids = decoder(), ids_of(2, 6)
    torch.testing.assert_close(model(ids, only=slice(-1, None)), model(ids)[:, -1:], rtol=0, atol=1e-13)
    torch.testing.assert_close(model(ids, only=torch.tensor([4, 0])), model(ids)[:, [4, 0]], rtol=0, atol=1e-13)


def test_a_decoder_gives_the_weights_of_each_layer() -> None:
    logits, weights = decoder()(ids_of(2, 6), need_weights=True)
    assert logits.shape == (2, 6, 11) and [tuple(w.shape) for w in weights] == [(2, 3, 6, 6)] * 2
    assert not torch.stack(weights).triu(1).any()


def test_another_mask_may_be_given() -> None:
    model, ids = decoder(), ids_of(1, 6)
    assert not torch.allclose(model(ids, mask=masks.window(2)), model(ids))
    torch.testing.assert_close(model(ids, mask=masks.window(6)), model(ids), rtol=0, atol=1e-12)


def test_a_stop_id_ends_its_row_and_the_generation_when_all_have_ended() -> None:
    model, ids = decoder(), ids_of(4, 3)
    free = model.generate(ids, 12)
    stop = int(free[0, 5])
    texts = model.generate(ids, 12, eos_token_id=stop)
    ends = []
    for row in range(4):
        new_ids = free[row, 3:].tolist()
        end = new_ids.index(stop) if stop in new_ids else None
        ends.append(12 if end is None else end + 1)
        expected = free[row, 3:] if end is None else torch.cat((free[row, 3 : 4 + end], torch.full((11 - end,), stop)))
        assert torch.equal(texts[row, 3:], expected[: texts.shape[1] - 3])
    assert texts.shape[1] == 3 + max(ends)


def test_drawn_tokens_follow_the_seed_the_temperature_and_the_k_likeliest() -> None:
    model, ids = decoder(), ids_of(1, 3).expand(400, 3)
    ids_drawn = model.generate(ids, 1, temperature=1.0, seed=3)[:, -1]
    assert torch.equal(ids_drawn, model.generate(ids, 1, temperature=1.0, seed=3)[:, -1])
    assert not torch.equal(ids_drawn, model.generate(ids, 1, temperature=1.0, seed=4)[:, -1])
    logits = model(ids[:1])[0, -1]
    for temperature in (0.5, 2.0):
        ids_drawn = model.generate(ids, 1, temperature=temperature)[:, -1]
        share = torch.bincount(ids_drawn, minlength=11) / 400
        torch.testing.assert_close(share.double(), (logits / temperature).softmax(-1).detach(), rtol=0, atol=0.08)
    likeliest = set(logits.topk(3).indices.tolist())
    assert set(model.generate(ids, 1, temperature=5.0, top_k=3)[:, -1].tolist()) == likeliest
    assert torch.equal(model.generate(ids, 4, temperature=1.0, top_k=1), model.generate(ids, 4))
    assert model.generate(ids[:2], 1, temperature=1.0, top_k=99).shape == (2, 4)


def test_generation_leaves_the_global_random_numbers_alone() -> None:
    model, ids, state = decoder(), ids_of(2, 3), torch.get_rng_state()
    model.generate(ids, 3, temperature=1.0)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "make",
    [
        lambda: (lambda m, ids: m.generate(ids, 6), Decoder(**SMALL, dropout=0.5)),
        lambda: (lambda m, ids: m.generate(ids, ids[:, :1], 6), EncoderDecoder(**SMALL, dropout=0.5)),
    ],
    ids=["decoder", "encoder-decoder"],
)
def test_generation_is_without_dropout_and_leaves_every_part_as_it_was(make) -> None:
    generate, model = make()
    ids = ids_of(2, 4)
    expected = generate(model.eval(), ids)
    model.train()
    model.embedding.eval()
    modes = [module.training for module in model.modules()]
    assert torch.equal(generate(model, ids), expected)
    assert [module.training for module in model.modules()] == modes
    with pytest.raises(ValueError, match="token ids must lie in"):
        generate(model, ids + 11)
    assert [module.training for module in model.modules()] == modes


IDS = torch.zeros(2, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda m: m.generate(IDS, 0), "max_new_tokens must be a whole number of 1 or more, got 0"),
        (lambda m: m.generate(IDS, 1, temperature=-1.0), "temperature must be a finite number of 0 or more, got -1.0"),
        (lambda m: m.generate(IDS, 1, top_k=0), "top_k must be a whole number of 1 or more, got 0"),
        (
            lambda m: m.generate(IDS, 1, padding=torch.tensor([[1, 1, 0], [1, 1, 1]])),
            "generation goes on from the last column, and a row is padded there; pad prompts on the left",
        ),
        (lambda m: m(IDS + 11), "token ids must lie in 0..10, got 11"),
        (lambda m: m(IDS[:, :0]), r"ids have shape \[batch, tokens\] with at least one token, got \[2, 0\]"),
        (lambda m: m(IDS, positions=torch.arange(3), padding=torch.ones(2, 3)), "give positions or padding, not both"),
        (lambda m: m(IDS, padding=torch.ones(2, 4)), r"padding must have the shape of the ids, \[2, 3\], got \[2, 4\]"),
        (lambda m: m(IDS, positions=torch.arange(4)), "got positions of 4 tokens for 3 tokens"),
    ],
)
def test_what_a_decoder_cannot_do_it_says(ask, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ask(decoder())


def test_padding_after_the_first_chunk_is_refused() -> None:
    model = decoder()
    cache = model.cache()
    model(IDS, cache=cache)
    with pytest.raises(ValueError, match="padding belongs to the first chunk; later chunks go on from the cache"):
        model(IDS, cache=cache, padding=torch.ones(2, 3))


def test_a_static_cache_that_is_full_says_so_and_a_learned_table_too() -> None:
    model = decoder()
    with pytest.raises(
        ValueError, match="the token of order 2 has no slot in a cache of 2; make the cache with at least 3 slots"
    ):
        model(IDS, cache=model.cache(slots=2))
    with pytest.raises(ValueError, match="position 4 is past the learned table of 4 rows"):
        decoder("learned", max_len=4).generate(IDS, 5)


def test_a_stack_needs_layers_and_knows_its_options() -> None:
    with pytest.raises(ValueError, match="a stack needs at least one layer, got 0"):
        decoder(layers=0)
    with pytest.raises(TypeError, match="unknown_option"):
        decoder(unknown_option=1)


# The encoder


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_sees_in_both_directions(norm_first: bool) -> None:
    model = perturb(Encoder(**SMALL, norm_first=norm_first))
    ids = ids_of(2, 9)
    x = model.embedding.token.weight[ids] + Sinusoidal(24).table(9, dtype=torch.float64)
    for block in model.stack.blocks:
        x = block_by_hand(block, x, causal=False)
    x = layer_norm(x, model.stack.final_norm) if norm_first else x
    torch.testing.assert_close(model(ids), x, rtol=1e-10, atol=1e-8)
    hidden, weights = model(ids, need_weights=True)
    torch.testing.assert_close(hidden, x, rtol=1e-9, atol=1e-7)
    assert [tuple(w.shape) for w in weights] == [(2, 3, 9, 9)] * 2


def test_an_encoder_may_scale_its_tokens() -> None:
    model, ids = Encoder(**SMALL, scale_tokens=True), ids_of(2, 6)
    torch.testing.assert_close(model.embedding.token_vectors(ids), model.embedding.token.weight[ids] * math.sqrt(24))


def test_an_encoder_does_not_look_at_padding() -> None:
    model, ids = Encoder(**SMALL, encoding="t5_bias(std=1)").double(), ids_of(2, 6)
    actual = model(ids, padding=torch.tensor([[0, 0, 1, 1, 1, 0], [1] * 6]))
    torch.testing.assert_close(actual[:1, 2:5], model(ids[:1, 2:5]), rtol=0, atol=1e-12)


def test_an_encoder_builds_its_biases_for_both_directions() -> None:
    assert "causal=False" in str(Encoder(**SMALL, encoding="t5_bias").stack.encoding_of[0])
    assert "causal=False" not in str(decoder("t5_bias").stack.encoding_of[0])


# Both


@pytest.mark.parametrize("norm_first", [True, False])
def test_an_encoder_decoder_is_both_with_cross_attention(norm_first: bool) -> None:
    model = perturb(EncoderDecoder(**SMALL, norm_first=norm_first))
    source, target = ids_of(2, 7), ids_of(2, 5)
    table, x = model.embedding.token.weight, {}
    for name, ids, stack, memory in (
        ("encoder", source, model.encoder, None),
        ("decoder", target, model.decoder, "encoder"),
    ):
        y = table[ids] * math.sqrt(24) + Sinusoidal(24).table(ids.shape[1], dtype=torch.float64)
        for block in stack.blocks:
            y = block_by_hand(block, y, None if memory is None else x[memory], causal=memory is not None)
        x[name] = layer_norm(y, stack.final_norm) if norm_first else y
    torch.testing.assert_close(model(source, target), x["decoder"] @ table.T, rtol=1e-9, atol=1e-7)


def test_the_original_is_post_norm_scaled_tied_and_sinusoidal() -> None:
    model = EncoderDecoder(**SMALL)
    assert model.output is None and model.embedding.scale and not model.encoder.blocks[0].config.norm_first
    assert [str(e) for e in model.encoder.input_encodings] == ["sinusoidal"]
    assert str(model.decoder.cross_encoding_of[0]) == "none"


def attentive(encoding: str) -> EncoderDecoder:
    """Return a model that depends on more than the last token. A new tied model only repeats that token."""
    model = EncoderDecoder(**SMALL, encoding=encoding, norm_first=True, tie_output=False).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter *= 4 if "attention" in name else 1
    return model


@pytest.mark.parametrize("encoding", ["sinusoidal", "rotary", "t5_bias(std=1)"])
def test_generation_of_an_encoder_decoder_is_greedy_decoding_without_a_cache(encoding: str) -> None:
    model = attentive(encoding)
    source, start = ids_of(9, 6), ids_of(9, 1)
    expected = of_last = start
    for _ in range(7):
        expected = torch.cat((expected, model(source, expected)[:, -1:].argmax(-1)), 1)
        of_last = torch.cat((of_last, model(source, of_last[:, -1:])[:, -1:].argmax(-1)), 1)
    assert torch.equal(model.generate(source, start, 7), expected)
    assert not torch.equal(of_last, expected), "earlier tokens must change the result"


def test_a_padded_source_is_the_same_as_one_that_is_short() -> None:
    model = attentive("rotary")
    source, start = ids_of(2, 6), ids_of(2, 2)
    padding = torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])
    together = model.generate(source, start, 9, source_padding=padding)
    assert not torch.equal(together, model.generate(source, start, 9)), "padding must change the result"
    assert torch.equal(together[:1], model.generate(source[:1, :4], start[:1], 9))
    assert torch.equal(together[1:], model.generate(source[1:], start[1:], 9))


def test_a_memory_spares_encoding_the_source_again() -> None:
    model = EncoderDecoder(**SMALL).double().eval()
    source, target = ids_of(2, 6), ids_of(2, 4)
    memory = model.encode(source)
    torch.testing.assert_close(model(source, target, memory=memory), model(source, target), rtol=0, atol=1e-12)


@pytest.mark.parametrize("slots", [None, 5])
def test_chunks_of_an_encoder_decoder_through_a_cache_give_the_logits_of_one_pass(slots: int | None) -> None:
    model = EncoderDecoder(**SMALL, encoding="t5_bias(std=1)").double().eval()
    source, target = ids_of(2, 6), ids_of(2, 5)
    cache = model.cache(slots=slots)
    parts = [model(source, part, cache=cache) for part in target.split((3, 1, 1), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(source, target), rtol=0, atol=1e-12)
    if slots:
        with pytest.raises(ValueError, match="the token of order 5 has no slot in a cache of 5"):
            model(source, target[:, :1], cache=cache)


def test_an_encoder_decoder_gives_the_weights_of_both_attentions() -> None:
    logits, weights_of_layers = EncoderDecoder(**SMALL)(ids_of(2, 6), ids_of(2, 4), need_weights=True)
    assert logits.shape == (2, 4, 11)
    assert [{name: tuple(w.shape) for name, w in layer.items()} for layer in weights_of_layers] == [
        {"self": (2, 3, 4, 4), "cross": (2, 3, 4, 6)}
    ] * 2


def test_an_encoding_between_two_sequences_reads_both_sides_positions() -> None:
    model = EncoderDecoder(**SMALL, encoding="none", cross_encoding="alibi").double().eval()
    source, target = ids_of(1, 6), ids_of(1, 4)
    here = model(source, target)
    shifted_logits = model(source, target, positions=torch.arange(50, 54), source_positions=torch.arange(50, 56))
    torch.testing.assert_close(shifted_logits, here, rtol=0, atol=1e-6)
    assert not torch.allclose(model(source, target, positions=torch.arange(50, 54)), here)


def test_an_encoding_between_two_sequences_cannot_add_to_embeddings() -> None:
    with pytest.raises(
        ValueError, match="cross_encoding adds to embeddings, and between two sequences there are none; got sinusoidal"
    ):
        EncoderDecoder(**SMALL, cross_encoding="sinusoidal")


def test_models_can_be_made_on_a_device_in_a_dtype() -> None:
    for make in (Decoder, Encoder, EncoderDecoder):
        model = make(**SMALL, encoding="learned + shaw", device="meta", dtype=torch.bfloat16)
        assert all(p.is_meta and p.dtype == torch.bfloat16 for p in model.parameters())


def test_a_model_trains() -> None:
    model, ids = Decoder(**SMALL), torch.arange(9).expand(4, 9) + torch.arange(2).repeat(2)[:, None]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss() -> Tensor:
        return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    first_loss = loss().item()
    for _ in range(30):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    assert loss().item() < 0.1 * first_loss


def test_positions_of_every_kind_reach_every_layer() -> None:
    model, ids = decoder("rotary + alibi"), ids_of(1, 5)
    packed = model(torch.cat((ids, ids), 1), positions=Positions.packed([5, 5]))
    torch.testing.assert_close(packed[:, 5:], model(ids), rtol=0, atol=1e-6)
    torch.testing.assert_close(packed[:, :5], model(ids), rtol=0, atol=1e-6)


def test_nothing_of_a_spec_is_ignored() -> None:
    with pytest.raises(
        ValueError, match="encoder and decoder build an encoding each, so give a spec instead of the instance"
    ):
        EncoderDecoder(5, 8, heads=2, layers=1, encoding=Sinusoidal(8))


def test_windows_are_cycled_over_the_layers() -> None:
    torch.manual_seed(0)
    model = Decoder(7, dim=16, heads=2, layers=3, encoding=("rotary", "none"), window=(3, None)).double().eval()
    assert model.stack.window_of == (3, None, 3)
    assert [str(encoding) for encoding in model.stack.encoding_of] == ["rotary", "none", "rotary"]
    ids = torch.randint(7, (2, 9))
    _, weights = model(ids, need_weights=True)
    order = torch.arange(9)
    in_window = (order[:, None] - order).abs() < 3
    for layer, layer_weights in enumerate(weights):
        assert bool((layer_weights[..., ~in_window] == 0).all()) is (layer != 1)


def test_windows_of_layers_hold_with_a_cache_and_within_a_given_mask() -> None:
    model = Decoder(7, dim=16, heads=2, layers=2, encoding="alibi", window=(2, 5)).double().eval()
    ids = torch.randint(7, (2, 9))
    cache = model.cache()
    pieces = [model(ids[:, :4], cache=cache), model(ids[:, 4:5], cache=cache), model(ids[:, 5:], cache=cache)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(ids))
    narrow = Decoder(7, dim=16, heads=2, layers=2, encoding="alibi", window=2).double().eval()
    narrow.load_state_dict(model.state_dict())
    torch.testing.assert_close(model(ids, mask=masks.window(2)), narrow(ids))


@pytest.mark.parametrize(
    "window, words", [((), "window needs at least one size"), ((3, 0), "a window holds at least 1")]
)
def test_impossible_windows_are_refused(window, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Decoder(7, dim=16, heads=2, layers=2, window=window)


def test_hooks_of_blocks_and_attentions_see_every_layer_of_a_model() -> None:
    model, calls = EncoderDecoder(**SMALL), []
    for name, module in model.named_modules():
        if type(module) in (Attention, Block):
            module.register_forward_hook(lambda module, args, out, name=name: calls.append((name, out.shape)))
    model(ids_of(2, 6), ids_of(2, 4))
    of_layer = [("attention", 4), ("cross_attention", 4), ("", 4)]
    expected = [(f"encoder.blocks.{layer}{part}", 6) for layer in (0, 1) for part in (".attention", "")]
    expected += [(f"decoder.blocks.{layer}.{part}".rstrip("."), n) for layer in (0, 1) for part, n in of_layer]
    assert calls == [(name, (2, tokens, 24)) for name, tokens in expected]


def test_some_tokens_of_an_encoder_decoder_are_those_of_all() -> None:
    model, source, target = EncoderDecoder(**SMALL, encoding="rotary").double(), ids_of(2, 6), ids_of(2, 4)
    actual = model(source, target, only=slice(1, 3))
    torch.testing.assert_close(actual, model(source, target)[:, 1:3], rtol=0, atol=1e-12)


# Python calls of a pass


def calls_of(model: Decoder, ids: Tensor, last_call: str = "") -> Counter[str]:
    """Count a pass's calls of each posenc function, up to PyTorch's, with tables cached."""
    home, counts, is_done = str(Path(posenc.__file__).parent), Counter(), False

    def count(frame: FrameType, event: str, called_object: object) -> None:
        nonlocal is_done
        is_done = is_done or (event == "c_call" and getattr(called_object, "__name__", "") == last_call)
        if event == "call" and not is_done and frame.f_code.co_filename.startswith(home):
            counts[frame.f_code.co_name] += 1

    model(ids)
    profiler = sys.getprofile()
    sys.setprofile(count)
    try:
        model(ids)
    finally:
        sys.setprofile(profiler)
    assert is_done is bool(last_call)
    return counts


@pytest.mark.parametrize(("encoding", "limit"), [("none", 72), ("rotary", 102)])
def test_few_calls_lie_between_a_model_and_its_first_attention(encoding: str, limit: int) -> None:
    model = Decoder(17, 32, 4, 1, encoding=encoding)
    counts = calls_of(model, ids_of(2, 9), last_call="scaled_dot_product_attention")
    assert counts.total() <= limit, counts.most_common()


def test_a_pass_looks_once_at_what_it_is_given_and_its_layers_take_it_as_it_is() -> None:
    counts = calls_of(Decoder(17, 32, 4, 3), ids_of(2, 9))
    once = ("locate", "positions_for", "check_token_ids", "mask_for", "check_weights")
    assert {name: counts[name] for name in once} == dict.fromkeys(once, 1)
    assert counts["call_for"] == 0
