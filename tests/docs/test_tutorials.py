"""What four public tutorials on positional encoding say, show and ask for, row by row: 55 rows, and what holds here.

Numbers come from a tutorial's way of computing, written anew at the top, or formulas; what is wrong is shown wrong.
"""

import math
import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch
from code_in_texts import BLOCK, HOME
from torch import Tensor, nn

import posenc
from posenc import Attention, Block, Decoder, Learned, Sinusoidal, TokenPositionEmbedding, cli
from posenc.lab.description.shift import shift_matrix
from posenc.lab.evaluation import ablate, evaluate, order
from posenc.lab.experiments import models, recipes
from posenc.lab.runs import checkpoint, train
from posenc.lessons import HandIn, lesson_of
from posenc.specs.presets import preset

PAGE, MYTHS, README = "docs/coming-from/tutorials.md", "docs/myths.md", "README.md"
X, IDS = torch.arange(480.0).view(5, 6, 16).sin(), torch.tensor([[1, 4, 3, 2, 0]])
equal, far = torch.testing.assert_close, lambda a, b: not torch.allclose(a, b, atol=1e-3)


def sines(length: int, dim: int) -> Tensor:
    angle = torch.arange(length)[:, None] * torch.exp(torch.arange(0, dim, 2) * (-math.log(1e4) / dim))
    return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    weights = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(mask == 0, -math.inf).softmax(-1)
    return weights @ v, weights


def multi_head(layer: Attention, *qkv: Tensor) -> tuple[Tensor, Tensor]:
    block = [linear(x) for linear, x in zip((layer.q_proj, layer.k_proj, layer.v_proj), qkv, strict=True)]
    out, weights = attend(*(x.unflatten(-1, (layer.heads, -1)).transpose(1, 2) for x in block), mask=torch.ones(1))
    return layer.o_proj(out.transpose(1, 2).flatten(2)), weights


def says(page: str | int, heading: str, *words: str) -> str:
    """The section with this heading, of a page or of a lesson; it has these words."""
    text = (HOME / page).read_text(encoding="utf-8") if isinstance(page, str) else lesson_of(str(page)).text
    section = next(part for part in re.split(r"\n##+ ", text) if part.startswith(heading))
    assert [word for word in words if word not in " ".join(section.split())] == []
    return section


def error(call: Any) -> str:
    with pytest.raises((TypeError, ValueError, AttributeError, RuntimeError)) as info:
        call()
    return str(info.value)


def faults(lesson: int, source: str | dict[str, Any], **options: str) -> str:
    """What a lesson finds wrong with code or numbers that are handed in; nothing where all is right."""
    message = f"mine_{len(list(Path().iterdir()))}.p"
    if isinstance(source, dict):
        torch.save(source, message := f"{message}t")
    else:
        Path(f"{message}y").write_text(f"import torch\nfrom torch import nn\n{source}\n")
        message += "y:" + re.findall(r"^(?:class|def) (\w+)", source)[0]
    return " ".join(verdict.message for verdict in lesson_of(str(lesson)).check(HandIn(message, **options)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, str]:
    """A run on text of a few steps, and its folder."""
    recipe = recipes.recipe("text", "sinusoidal", steps=3, train_length=16, test_lengths=(24, 32), dim=16, layers=1)
    checkpoint.save(train.train(train.start(recipe)), folder := tmp_path_factory.mktemp("run"))
    return checkpoint.load(folder, to_train=False), str(folder)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# A table, whose rows stand under each other: 1 to 11, 12 to 25, 26 to 50 and 51 to 54 are of one tutorial each.
# fmt: off
def test_row_01_input_is_batch_tokens_channels() -> None:
    encoding = Learned(16, max_len=8)
    equal(encoding(X)[2, 4], X[2, 4] + encoding.table[4])
    equal(encoding(X.transpose(0, 1), seq_dim=0).transpose(0, 1), encoding(X))
def test_row_02_a_learned_table_of_a_length_and_a_width() -> None:
    encoding = Learned(16, 8)
    equal(encoding(X), X + nn.functional.embedding(torch.arange(6), encoding.table)[None])
def test_row_03_an_embedding_is_one_hot_times_a_matrix() -> None:
    encoding, one_hot = Learned(16, 8), nn.functional.one_hot(torch.arange(6), 8).float()
    equal(one_hot @ encoding.table, encoding(torch.zeros(1, 6, 16))[0])
    assert says(PAGE, "A learned table", "**Why `nn.Embedding` and not", "one-hot") and says(2, "A look-up is")
def test_row_04_positions_stand_on_the_device_of_the_input() -> None:
    pair = Sinusoidal(16), Learned(16, 8, device="meta")
    assert {encoding(X.to("meta")).device.type for encoding in pair} == {"meta"}
    assert "device" in error(lambda: X.to("meta") + X) and says(PAGE, "A learned table", "device=x.device")
def test_row_05_sines_of_any_length_and_odd_widths() -> None:
    equal(Sinusoidal(7).table(6000)[0, 5999, 6].item(), math.sin(5999 * 1e4 ** (-6 / 7)), rtol=0, atol=1e-6)
    equal(Sinusoidal(16)(X), X + sines(6, 16), rtol=0, atol=1e-6)
def test_row_06_a_buffer_of_sines_loads_and_none_is_kept() -> None:
    (encoding := Sinusoidal(16)).load_state_dict({"pe": (buffer := sines(100, 16))})
    assert not encoding.state_dict()
    assert "rows of sinusoidal" in error(lambda: encoding.load_state_dict({"pe": -buffer}))
    equal(encoding.bfloat16().float().table(100)[0], buffer, rtol=0, atol=1e-5)
    assert far(buffer.bfloat16().float(), buffer) and says(PAGE, "Sines and cosines", "**Why a buffer?**")
def test_row_07_exp_of_log_avoids_no_overflow_and_is_less_exact() -> None:
    exponent, exact = torch.arange(0, 128, 2) / 128, Sinusoidal(128).frequencies
    power, detour = ((x / exact - 1).abs().max() for x in (1e4**-exponent, torch.exp(exponent * -math.log(1e4))))
    assert round(1e4 ** (126 / 128)) == 8_660 and detour > 3 * power and power < 2e-7
    assert says(PAGE, "Sines and cosines", "8,660") and says(MYTHS, '"Frequencies are taken by exp and log', "8,660")
def test_row_08_hands_of_a_clock_the_first_one_is_the_fastest() -> None:
    sine, cosine = Sinusoidal(16).table(22, dtype=torch.float64)[0, 21].view(8, 2).T
    equal(torch.atan2(sine, cosine) % math.tau, 21 * 1e4 ** -(torch.arange(8).double() / 8) % math.tau)
    assert says(3, "Position 21, as a clock")
def test_row_09_an_offset_is_a_linear_map() -> None:
    equal(sines(95, 16) @ shift_matrix(Sinusoidal(16), 5).T.float(), sines(100, 16)[5:], rtol=0, atol=1e-4)
def test_row_10_relative_positions_are_not_that_easy_to_learn() -> None:
    table = sines(64, 32)
    length, equal = ((table @ w @ table.T).diagonal(3).std() for w in (torch.randn(32, 32), torch.eye(32)))
    assert length > 1 > 1e-5 > equal and says(MYTHS, '"PE(p + k) is a linear map', "only if W commutes")
def test_row_11_the_base_sets_the_longest_wavelength_on_a_log_scale() -> None:
    equal(Sinusoidal(64, base=100.0).wavelengths, math.tau * 100 ** (torch.arange(32).double() / 32))
def test_row_12_attention_alone_is_blind_to_order() -> None:
    bare, reordered, at = Attention(16, heads=4), [2, 0, 1], sines(3, 16)
    equal(bare(X[:, :3])[:, 0], bare(X[:, reordered])[:, 1])
    assert far(bare(X[:, :3] + at)[:, 0], bare(X[:, reordered] + at)[:, 1])
def test_row_13_a_learned_table_ends() -> None:
    assert "max_len=9 or more" in error(lambda: Learned(16, max_len=8)(torch.zeros(1, 9, 16)))
def test_row_14_sines_do_not_extrapolate() -> None:
    assert float(says(README, "What comes out").split("| `sinusoidal`")[1].split("\n")[0].split("|")[-2]) > 3  # R(8)
    assert says(MYTHS, '"Sinusoidal generalises', "19.91 at 532", "406 at 15,512")
def test_row_15_even_channels_are_sines_and_odd_ones_cosines() -> None:
    equal(Sinusoidal(64).table(50)[0], table := sines(50, 64), rtol=0, atol=1e-5)
    assert far(Sinusoidal(64, layout="concatenated").table(50)[0], table)
def test_row_16_each_position_has_its_fingerprint() -> None:
    apart, choices = torch.arange(10.0, 10_000)[:, None], (Sinusoidal(64).frequencies, torch.arange(1, 33) / 32)
    assert [apart[(apart * f).cos().mean(-1) > 0.99].flatten()[:1].tolist() for f in choices] == [[], [201]]
def test_row_17_the_slowest_pair_turns_in_54_410_positions() -> None:
    assert [round(Sinusoidal(128, endpoint=e).wavelengths[-1].item()) for e in (False, True)] == [54_410, 62_832]
    assert says(PAGE, "Sines and cosines", "54,410 positions for a turn, not 62,800")
def test_row_18_most_pairs_turn_within_10_000_tokens() -> None:
    turns = 10_000 / Sinusoidal(512).wavelengths
    assert (int((turns >= 1).sum()), int((turns < 0.25).sum())) == (205, 12)
    assert says(MYTHS, '"Below 10,000 tokens', "205 of 256", "only 12") and says(PAGE, "Sines", "(205, 12)")
def test_row_19_a_head_that_looks_two_to_the_right() -> None:
    code = next(code for _, code in BLOCK.findall(says(PAGE, "Sines", "two tokens")) if "def weight" in code)
    exec(code, weights := {"torch": torch, "Sinusoidal": Sinusoidal})
    small, large, rotary = (weights["weights"][key] for key in [("sinusoidal", 0.1), ("sinusoidal", 1), ("rotary", 1)])
    assert max(large) < 0.15 < 0.95 < min(small[0], *rotary) and min(small[1:]) < small[0] - 0.03
def test_row_20_a_table_of_5000_positions() -> None:
    equal(Sinusoidal(128).table(5000)[0], sines(5000, 128), rtol=0, atol=2e-3)
def test_row_21_token_plus_position() -> None:
    embedding = TokenPositionEmbedding(9, 16, "sinusoidal", scale=True, dropout=0.1)
    assert far(embedding(IDS), embedding.eval()(IDS)) and says(PAGE, "Token and position", "never sets `self.d_model`")
    equal(embedding(IDS), embedding.token.weight[IDS] * 4 + sines(5, 16), rtol=0, atol=1e-5)
def test_row_22_the_root_of_the_width_is_for_small_starts() -> None:
    ratio = torch.randn(1000, 512).norm(dim=1).mean() * 512**0.5 / Sinusoidal(512).table(1).norm()
    assert round(ratio.item()) == 32 and says(MYTHS, '"Multiply embeddings by the root', "32 times as long")
def test_row_23_which_model_has_which() -> None:
    spec = {"bert gpt2": "learned", "t5": "t5_bias", "llama2 mistral gemma3": "rotary", "bloom mpt": "alibi"}
    assert all(kind in str(preset(name).encoding) for names, kind in spec.items() for name in names.split())
    assert "Music Transformer" in posenc.Shaw.used_by
def test_row_24_t5_is_not_shaw_and_rope_does_not_extrapolate() -> None:
    assert posenc.T5Bias(8, buckets=32).table.numel() == 256 and len(posenc.Shaw(8, max_distance=16).key_table) == 33
    assert says(MYTHS, '"T5 uses the relative') and says(MYTHS, '"RoPE extrapolates"', "1.2 to 1.4 times")
def test_row_25_norm_feed_forward_encoder_decoder_and_the_recipe() -> None:
    assert posenc.EncoderDecoder(9, 16, 4, 1, encoding="sinusoidal")(IDS, IDS[:, :3]).shape == (1, 3, 9)
    assert recipes.original_rate(99, 64, 400) == pytest.approx(64**-0.5 * 100 * 400**-1.5)
def test_row_26_attention_is_equivariant_and_not_invariant() -> None:
    bare = Attention(16, heads=4)
    equal(bare(X.flip(1)), bare(X).flip(1))
    assert far(bare(X.flip(1)), bare(X)) and says(MYTHS, '"Attention is permutation invariant"', "**equivariant**")
def test_row_27_of_two_types_one_learns() -> None:
    assert [[p.shape for p in kind.parameters()] for kind in (Sinusoidal(16), Learned(16, 8))] == [[], [(8, 16)]]
def test_row_28_a_heatmap_of_128_channels_and_100_positions() -> None:
    assert cli.main("show sinusoidal --dim 128 --tokens 100 --out pictures".split()) == 0
    assert any("heatmap" in picture.name for picture in Path("pictures").rglob("*.png"))
def test_row_29_a_transposed_table_numbers_the_batch() -> None:
    table = nn.Embedding(8, 16)(torch.arange(6)[None]).transpose(0, 1)
    row, square = (torch.zeros(batch, 6, 16) + table for batch in (1, 6))
    assert row.shape == (6, 6, 16) and torch.equal(square[2, 0], square[2, 5]) and far(square[0, 0], square[2, 0])
    assert "must match" in error(lambda: X.repeat(4, 1, 1) + table) and says(PAGE, "A learned", "along the *batch*")
def test_row_30_a_block_with_norms_behind_either_encoding() -> None:
    for spec in ("sinusoidal", "learned"):
        y, weights = Block(16, heads=4, encoding=spec, norm_first=False)(X[:1, :5], need_weights=True)
        assert weights.shape == (1, 4, 5, 5) and not far(y.mean(-1), torch.zeros(1, 5))
def test_row_31_the_default_block_runs() -> None:
    assert Block(16, heads=4)(X).shape == X.shape
def test_row_32_a_stack_of_six_adds_positions_once(monkeypatch: pytest.MonkeyPatch) -> None:
    embed, calls = Sinusoidal.embed, []
    monkeypatch.setattr(Sinusoidal, "embed", lambda *inputs: calls.append(1) or embed(*inputs))
    posenc.Encoder(9, 16, heads=4, layers=6, encoding="sinusoidal")(IDS)
    assert calls == [1] and says(PAGE, "Attention and the block", "six layers, six times")
def test_row_33_two_embeddings_differ_without_a_model() -> None:
    one_table, another, plain = nn.Embedding(10, 16), nn.Embedding(10, 16), Block(16, heads=4)
    assert far(one_table(IDS), another(IDS)) and says(PAGE, "Does the model see order?", "without any model")
    assert not far(plain(one_table(IDS)).flip(1), plain(one_table(IDS.flip(1)))) and says(MYTHS, '"The outputs differ')
def test_row_34_a_new_embedding_each_step_makes_the_target_noise() -> None:
    by_chance = nn.functional.mse_loss(*(nn.Embedding(10, 512)(IDS) for _ in range(2))).item()
    assert 1.7 < by_chance < 2.3 and says(PAGE, "A fixed table", "new `nn.Embedding` in every step", "fresh > 3 * same")
def test_row_35_sines_are_defined_at_any_length_and_no_more() -> None:
    million = Sinusoidal(8)(torch.zeros(1, 1, 8), positions=1_000_000)[0, 0, 0].item()
    assert million == pytest.approx(math.sin(1e6), abs=1e-6) and says(MYTHS, '"Sinusoidal generalises to any length"')
def test_row_36_the_exponent_is_not_doubled_and_the_first_pair_is_fast() -> None:
    waves = Sinusoidal(128).wavelengths
    assert (round(waves[0].item(), 2), round(waves[-1].item())) == (6.28, 54_410) and 1e4 ** (252 / 128) > 7e7
    assert says(PAGE, "Sines", "the exponent is doubled, and 2 pi is missing", "the other way round")
def test_row_37_the_parts_of_a_block() -> None:
    words = "look-up", "radians", "wavelength", "token embedding", "softmax", "residual"
    assert all(word in lesson_of(str(place)).text for place, word in enumerate(words, start=2))
    assert sum(p.numel() for p in Attention(16, heads=4, bias=False).parameters()) == 4 * 16 * 16
def test_row_38_scaled_dot_product_attention_with_a_mask() -> None:
    q, past = X[:, None], torch.ones(6, 6).tril()
    equal(posenc.scaled_dot_product_attention(q, -q, q, mask=past.bool()), attend(q, -q, q, past))
    assert "give mask.bool()" in error(lambda: posenc.scaled_dot_product_attention(q, q, q, mask=past.long()))
def test_row_39_multi_head_attention_of_queries_keys_and_values() -> None:
    layer = Attention(16, heads=4)
    equal(layer(X, -X, X * 2, need_weights=True), multi_head(layer, X, -X, X * 2))
def test_row_40_the_full_block_number_by_number() -> None:
    block, x = Block(16, heads=4, encoding="sinusoidal", norm_first=False), X + sines(6, 16)
    y = block.attention_norm(x + multi_head(block.attention, x, x, x)[0])
    equal(block(X), block.feed_forward_norm(y + block.feed_forward(y)))
def test_row_41_reverse_with_learned_positions() -> None:
    torch.save({}, "w.pt")
    code = "class M(nn.Module):\n def forward(self, x): return nn.functional.one_hot(x{}, 26)"
    right, wrong = (faults(8, code.format(order), weights="w.pt") for order in (".flip(1)", ""))
    assert not right and "it copies" in wrong
def test_row_42_maps_with_and_without_positions(run: tuple[Any, str]) -> None:
    map_pair = run[0].model, models.without_position(run[0].model, run[0].experiment, run[0].task)
    maps = [model(IDS, need_weights=True)[1][0][0, 0].detach() for model in map_pair]
    right, wrong = ({"ids": IDS[0]} | {"with": a, "without": b} for a, b in (maps, maps[::-1]))
    assert not faults(6, right, run=run[1]) and "the map without positions" in faults(6, wrong, run=run[1])
def test_row_43_a_curve_beyond_the_trained_length(run: tuple[Any, str]) -> None:
    length, score = zip(*((row["length"], row["bits_per_byte"]) for row in evaluate.by_length(run[0])), strict=True)
    assert not faults(10, {"length": length, "score": score}, run=run[1])
    assert "it stops at length" in faults(10, {"length": length[:1], "score": score[:1]}, run=run[1])
def test_row_44_positions_taken_away(run: tuple[Any, str]) -> None:
    assert not faults(9, scores := ablate.ablate(run[0]), run=run[1])
    assert "in percent" in faults(9, scores | {"intact": 100 * scores["intact"]}, run=run[1])
def test_row_45_rope_of_your_own() -> None:
    code = "def rope(x):\n p, q = x.chunk(2, 1)\n k = torch.arange(p.shape[1]) / x.shape[1]\n "
    code += "a = torch.arange(len(x))[:, None] * 1e4 ** (-2 * k)\n "
    code += "return torch.cat((p * a.cos() - q * a.sin(), q * a.cos() + p * a.sin()), 1)"
    assert not faults(11, code) and "not -k/channels" in faults(11, code.replace("-2 * k", "-k"))
def test_row_46_the_exercises_are_checked_as_exercises() -> None:
    for place in (6, 7, 8, 9, 10, 11):
        assert lesson_of(str(place)).module.HAND_IN and says(PAGE, "The exercises", f"posenc lesson {place} --check ")
def test_row_47_to_concatenate_and_project_is_to_add() -> None:
    projection = runpy.run_path(f"{HOME}/examples/add_or_concatenate.py")["ProjectedConcatenation"](16)
    token, position = projection.projection.weight.detach().split(16, 1)
    equal(projection(X), X @ token.T + sines(6, 16) @ position.T, rtol=0, atol=1e-5)
    assert says(PAGE, "Add, or concatenate?", f"{2 * 64 * 64:,} parameters") and says(MYTHS, '"Add, don\'t')
def test_row_48_essential_for_encoders_and_not_for_deeper_decoders() -> None:
    blind, tells = (order.order_test("none", layers=2, is_causal=causal)["equivariance"] for causal in (False, True))
    assert blind < 1e-12 < 1e-3 < tells and says(MYTHS, '"Without positions a transformer is a bag', "two layers on")
def test_row_49_ids_embedding_position_attention() -> None:
    embedding, layer = TokenPositionEmbedding(9, 16, "sinusoidal"), Attention(16, heads=4)
    x = embedding.token.weight[IDS] + sines(5, 16)
    equal(layer(embedding(IDS)), multi_head(layer, x, x, x)[0], rtol=0, atol=1e-5)
def test_row_50_six_layers_and_a_small_gpt() -> None:
    six, small = Decoder(9, 16, 4, layers=6, encoding="learned"), Decoder(256, 192, 6, layers=4, encoding="rotary")
    millions = f"{sum(p.numel() for p in small.parameters()) / 1e6:.1f} million parameters"
    assert len(six.stack.encoding_of) == 6 and says("docs/guides/mini-gpt.md", "---", millions)
def test_row_51_i_love_pizza_is_not_pizza_love_i() -> None:
    blind, sees = (TokenPositionEmbedding(5, 8, spec) for spec in ("none", "sinusoidal"))
    assert not far(blind(IDS.flip(1)), blind(IDS).flip(1)) and far(sees(IDS.flip(1)), sees(IDS).flip(1))
def test_row_52_a_vocabulary_a_context_and_a_width() -> None:
    embedding = TokenPositionEmbedding(10, 3, "learned", max_len=5)
    equal(embedding(IDS), embedding.token.weight[IDS] + embedding.encoding.table[torch.arange(5)])
def test_row_53_the_worked_example_to_the_last_digit() -> None:
    digits = "013314132421253 100010001101011 414263422233024"
    embedding = TokenPositionEmbedding(5, 3, "learned", max_len=5)
    token, position, sums = (torch.tensor([*map(int, row)]).view(5, 3) / 10 for row in digits.split())
    embedding.load_state_dict({"token.weight": token, "encoding.table": position})
    equal(embedding(IDS)[0], sums)
def test_row_54_positions_broadcast_over_the_batch() -> None:
    equal((encoding := Learned(16, 8))(X, positions=torch.arange(6)[None]), X + encoding.table[:6].repeat(5, 1, 1))
def test_row_55_the_words_that_readers_bring_are_answered_with_ours() -> None:
    words = {"dim": lambda: Sinusoidal(d_model=16), "heads": lambda: Attention(16, num_heads=4)}
    words |= {"max_len": lambda: Learned(16, max_seq_len=8), "Sinusoidal": lambda: posenc.PositionalEncoding}
    words |= {"Attention": lambda: posenc.MultiHeadAttention, "Block": lambda: posenc.TransformerBlock}
    assert [names for names, call in words.items() if f"did you mean '{names}'?" not in error(call)] == []
    assert "(docs/coming-from/tutorials.md)" in "".join((HOME / "README.md").read_text().splitlines(True)[:30])
# fmt: on


def test_there_are_55_rows_and_none_twice() -> None:
    assert [int(name[9:11]) for name in globals() if name.startswith("test_row_")] == list(range(1, 56))
