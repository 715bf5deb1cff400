"""A whole probe of a tiny model: bands and heads against transformers' own numbers, lengths, and what is said."""

import json
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import tiny_llama
import tiny_models

from posenc import cli
from posenc.checkpoints.formats import huggingface
from posenc.checkpoints.live.attach import attach
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.asked import ENOUGH, LongTask
from posenc.checkpoints.measures.measure import TooShort
from posenc.checkpoints.probing import bands, heads, probe, report
from posenc.checkpoints.probing.bands import Band
from posenc.checkpoints.probing.probe import Settings
from posenc.checkpoints.vocabulary.reading import CannotRead

YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 24}
LLAMA3 |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.fixture(scope="module")
def ids() -> Tensor:
    return torch.randint(0, 99, (160,), generator=torch.Generator().manual_seed(5))


def read(model):
    (part,) = huggingface.read(model.config).parts
    (rotary,) = bands.rotaries_of(part)
    return part, rotary


# Bands


@pytest.mark.parametrize("count", [1, 3, 8, 50])
def test_bands_hold_each_pair_once(count: int) -> None:
    _, rotary = read(tiny_llama.model())
    found = bands.bands_of([rotary], count)
    assert len(found) == min(count, 8) and found[0].first == 0 and found[-1].end == 8
    assert all(a.end == b.first and a.longest < b.shortest for a, b in pairwise(found))
    # Base 500 and 16 channels: the last pair turns once in 2 pi 500^(14/16) tokens.
    assert found[-1].longest == pytest.approx(2 * torch.pi * 500 ** (14 / 16))


def partial() -> Any:
    """A GPT-NeoX whose heads turn in half of their channels."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    return tiny_models.made("GPTNeoX", "ForCausalLM", vocab_size=101, rotary_pct=0.5, **sizes)


@pytest.mark.parametrize("rope", [YARN, LLAMA3, None])
def test_a_band_stands_still_as_it_does_in_the_models_own_table(rope, ids: Tensor) -> None:
    model = tiny_llama.model(rope_parameters=rope) if rope else partial()
    part, rotary = read(model)
    for band in (Band(2, 5, 0, 0), Band(0, rotary.width // 2, 0, 0)):
        with bands.without(model, part, band, len(ids)):
            found = perplexity.losses(model, ids)
        table = model.base_model.rotary_emb.inv_freq
        before = table.clone()
        table[band.first : band.end] = 0
        torch.testing.assert_close(found, perplexity.losses(model, ids), rtol=0, atol=2e-5)
        table.copy_(before)
        assert (found - perplexity.losses(model, ids)).abs().max() > 1e-3


def gemma() -> Any:
    """A Gemma 3 of three layers: two that see 32 tokens and turn by a base of 100, and one that sees all."""
    return tiny_models.made(
        "Gemma3",
        "ForCausalLM",
        "Text",
        **{"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2, "num_key_value_heads": 1},
        **{"num_hidden_layers": 3, "head_dim": 16, "vocab_size": 101, "max_position_embeddings": 96},
        **{"sliding_window": 32, "layer_types": ["sliding_attention"] * 2 + ["full_attention"]},
        rope_parameters={
            "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 500.0},
        },
    )


def test_a_model_of_two_bases_has_bands_of_each(ids: Tensor) -> None:
    model = gemma()
    (part,) = huggingface.read(model.config).parts
    found = bands.bands_of(bands.rotaries_of(part), 2)
    local, far = "rotary(base=100)", "rotary(base=500, schedule=linear(factor=8.0))"
    assert [(one.first, one.end, one.of) for one in found] == [(0, 4, local), (4, 8, local), (0, 4, far), (4, 8, far)]
    assert found[3].words.startswith(f"pairs 4 to 7 of {far}, one turn in 1,")
    with bands.without(model, part, found[3], len(ids)):
        changed = perplexity.losses(model, ids)
    table = model.model.rotary_emb.full_attention_inv_freq
    table[4:8] = 0
    torch.testing.assert_close(changed, perplexity.losses(model, ids), rtol=0, atol=2e-5)


def test_the_heads_of_a_model_of_two_bases_are_those_that_see_far(tmp_path: Path, monkeypatch) -> None:
    gemma().save_pretrained(tmp_path / "gemma")
    tiny_llama.tokenizer().save_pretrained(tmp_path / "gemma")
    monkeypatch.setattr(report, "write", lambda *given: None)
    record = probe.probe(Settings(str(tmp_path / "gemma"), ("none",), (60, 120), bands=1), tmp_path / "out")
    far = "rotary(base=500, schedule=linear(factor=8.0))"
    assert [band["pairs"] for band in record["bands"]] == ["pairs 0 to 7 of rotary(base=100)", f"pairs 0 to 7 of {far}"]
    assert {(head["layer"], len(head["spread"])) for head in record["heads"]} == {(2, 1)}
    headers, rows = dict(report.tables(record))[report.HEADS]
    assert headers == ["layer and head", "logits", f"pairs 0 to 7 of {far}", "weight on far keys"]
    assert {len(row) for row in rows} == {4}


def test_an_encoder_with_a_decoder_is_no_more_probed_than_extended(tmp_path: Path) -> None:
    made = tiny_models.made(
        "T5", "ForConditionalGeneration", **{"vocab_size": 101, "d_model": 16, "d_kv": 8, "d_ff": 16}
    )
    made.save_pretrained(tmp_path / "t5")
    tiny_llama.tokenizer().save_pretrained(tmp_path / "t5")
    with pytest.raises(
        CannotRead, match="extend and probe take a decoder that predicts text by itself, and 't5' is an"
    ):
        probe.probe(Settings(str(tmp_path / "t5"), ("none",)), tmp_path / "out")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(ValueError, match="exists and is no run of posenc extend or probe; give --out a folder"):
        probe.probe(Settings("it", ("none",)), tmp_path / "mine")


def test_without_all_bands_there_is_no_position(ids: Tensor) -> None:
    model = tiny_llama.model()
    with bands.without(model, read(model)[0], Band(0, 8, 0, 0), len(ids)):
        found = perplexity.losses(model, ids)
    with attach(model, "none"):
        torch.testing.assert_close(found, perplexity.losses(model, ids), rtol=0, atol=2e-5)


def test_what_has_no_bands_is_told() -> None:
    dynamic = {"rope_type": "dynamic", "rope_theta": 500.0, "factor": 2.0}
    with pytest.raises(ValueError, match=r"that no length changes, and one is rotary.*dynamic_ntk"):
        read(tiny_llama.model(rope_parameters=dynamic))
    from transformers import GPT2Config

    with pytest.raises(ValueError, match="take rotary encodings, and the layers have none"):
        bands.rotaries_of(*huggingface.read(GPT2Config(n_layer=1, n_embd=16, n_head=2)).parts)


# Heads


def test_heads_are_those_of_the_models_own_attention(ids: Tensor) -> None:
    """Weights of the model's eager attention: their logarithms are the logits up to a number for each query."""
    model, trained = tiny_llama.model(), 96
    _, rotary = read(model)
    found = heads.heads_of(model, ids, rotary, bands.bands_of([rotary], 2), trained, (0, 1), chunk=50)
    model.config._attn_implementation = "eager"
    with torch.no_grad():
        weights = model(input_ids=ids[None, :-1], output_attentions=True).attentions
    rows = range(len(ids) - 1 - heads.QUERIES, len(ids) - 1)
    assert [(one.layer, one.head) for one in found] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    for one in found:
        of = weights[one.layer][0, one.head].double()
        near_squares, far_squares, far_weights = [], [], []
        for row in rows:
            logits = of[row, : row + 1].log()
            far, near = logits[: row + 1 - trained], logits[row + 1 - trained :]
            near_squares += (near - near.mean()).square().tolist()
            far_squares += (far - near.mean()).square().tolist()
            far_weights.append(float(of[row, : row + 1 - trained].sum()))
        spread = (sum(far_squares) / len(far_squares)) / (sum(near_squares) / len(near_squares))
        assert one.whole == pytest.approx(spread, rel=1e-3)
        assert one.weight == pytest.approx(sum(far_weights) / len(far_weights), rel=1e-4)
        assert one.uniform == pytest.approx(sum((row + 1 - trained) / (row + 1) for row in rows) / len(rows))


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_what_a_band_makes_of_far_keys_is_seen_in_that_band(layout: str) -> None:
    """Queries and keys whose second pair alone differs beyond the trained length."""

    class Turned:
        width = 6

    Turned.layout = layout
    channels = [1, 4] if layout == "half" else [2, 3]
    draws = torch.Generator().manual_seed(0)
    key = torch.randn(1, 200, 8, generator=draws)
    query = torch.randn(2, 40, 8, generator=draws)
    # The last 32 queries are trained to see keys from the 69th on.
    key[:, :68, channels] *= 10
    found = heads.of_layer(3, query, key, 1.0, Turned, [Band(0, 1, 0, 0), Band(1, 2, 0, 0), Band(2, 3, 0, 0)], 100)
    for one in found:
        assert one.layer == 3 and 30 < one.spread[1] < 120
        assert all(0.5 < one.spread[n] < 2 for n in (0, 2)) and 1 < one.whole < one.spread[1]


def test_watching_leaves_nothing_behind(ids: Tensor) -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    model = tiny_llama.model()
    _, rotary = read(model)
    before, losses = model.config._attn_implementation, perplexity.losses(model, ids)
    with pytest.raises(KeyError, match="told"), heads.watched(model, lambda *given: {}["told"]):
        perplexity.losses(model, ids)
    assert model.config._attn_implementation == before
    assert all(heads.NAME not in one._global_mapping for one in (AttentionInterface, AttentionMaskInterface))
    assert torch.equal(perplexity.losses(model, ids), losses)
    assert heads.heads_of(model, ids, rotary, [], 96, (1,), chunk=40)[0].layer == 1
    with pytest.raises(ValueError, match="longer than the trained 200 tokens, got 160"):
        heads.heads_of(model, ids, rotary, [], 200, (0, 1))


# The whole


SMALL = ["--lengths", "60", "120", "--tasks", "none", "--bands", "2"]


@pytest.fixture(scope="module")
def small(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "probe"
    assert cli.main(["probe", str(model), *SMALL, "--out", str(out)]) == 0
    return out


def test_the_record_holds_what_was_measured(small: Path, model: Path) -> None:
    record = json.loads((small / "record.json").read_text())
    model, text = tiny_llama.model(), perplexity.tokens([], tiny_llama.tokenizer())
    last, found = 30, []
    for n in range(2):
        ids = text.ids[120 * (n + 1) - 120 : 120 * (n + 1)]
        found.append(perplexity.losses(model, ids)[-last:])
    value = torch.cat(found).double().mean().exp()
    at = {one["length"]: one for one in record["same_tokens"]["values"]}
    assert at[120]["value"] == pytest.approx(float(value), rel=1e-4) and record["same_tokens"]["last"] == last
    assert (record["trained"], record["lengths"]) == (96, [60, 120])
    # Bands are tried at the longest length that was trained, and at the longest.
    assert [one["length"] for one in record["bands"][0]["changes"]] == [60, 120]
    with bands.without(model, read(model)[0], Band(4, 8, 0, 0), 120):
        changed = [perplexity.losses(model, text.ids[120 * n : 120 * n + 120])[-last:] for n in range(2)]
    change = float(torch.cat(changed).double().mean() - value.log())
    assert record["bands"][1]["changes"][1]["change"] == pytest.approx(change, abs=1e-4)
    assert len(record["heads"]) == 4 and record["heads"][0]["layer"] == 0


def test_every_number_and_sentence_is_on_both_pages(small: Path) -> None:
    record = json.loads((small / "record.json").read_text())
    cells = [cell for _, (headers, rows) in report.tables(record) for row in [headers, *rows] for cell in row]
    said = [*cells, *report.sentences(record), *record["made"].values()]
    for name in ("report.html", "report.md"):
        page = (small / name).read_text().replace("&#34;", '"').replace("&#39;", "'").replace("\\", "").replace("`", "")
        assert [words for words in said if words.replace("_", "") not in page.replace("_", "").replace("*", "")] == []
    assert "http" not in (small / "report.html").read_text().split("</style>")[1]
    assert {path.name for path in (small / "figures").iterdir()} == {"by-length.png", "bands.png", "heads.png"}


def test_a_probe_goes_on_where_it_stopped(small: Path, model: Path, monkeypatch, capsys) -> None:
    record = json.loads((small / "record.json").read_text())

    def unasked(*given, **more):
        raise AssertionError("a finished pass was made again")

    monkeypatch.setattr(probe.SameTokens, "run", unasked)
    monkeypatch.setattr(heads, "heads_of", unasked)
    monkeypatch.setattr(report, "write", lambda *given: None)
    command = shlex.split(record["made"]["command"])
    assert command[:2] == ["posenc", "probe"]
    capsys.readouterr()
    assert cli.main([*command[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == record
    assert cli.main([*command[1:], "--trials", "3"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "other settings (trials); give --out another folder" in said
    assert "the same settings to go on with it (bands, lengths, tasks may be others)" in said


def test_a_task_is_asked_further_while_it_can_be_done(model: Path, tmp_path: Path, monkeypatch) -> None:
    asked: list[tuple[str, int]] = []
    done = {"one-key": 300, "mark": 0, "variables": 10_000}

    def run(self, model, length, how="whole", tell=None):
        if self.name == "variables" and length < 200:
            raise TooShort("too short")
        asked.append((self.name, length))
        right = [length <= done[self.name]] * self.trials
        return {"right": [[one] for one in right], "depths": [0.0] * self.trials, "tokens": [length], "read": length}

    monkeypatch.setattr(LongTask, "run", run)
    monkeypatch.setattr(report, "write", lambda *given: None)
    settings = Settings(str(model), ("one-key", "mark", "variables"), (100, 200, 300, 400), trials=2, bands=0)
    record = probe.probe(settings, tmp_path / "out")
    assert asked == [
        *(("one-key", length) for length in (100, 200, 300, 400)),
        ("mark", 100),
        *(("variables", length) for length in (200, 300, 400)),
    ]
    assert [task["effective"] for task in record["tasks"]] == [300, None, 400]
    said = " ".join(report.sentences(record))
    assert "one-key is done up to 300 tokens; at 400 only 0% of it." in said
    assert "variables is done up to 400 tokens, the longest tried." in said
    assert f"Less than {ENOUGH:.1%} is right of: mark (0% at 100 tokens)." in said


def test_where_text_helps_and_which_band_does_is_said_in_words() -> None:
    def record(useful: int, harms: int | None, *changes: tuple[float, float]) -> dict:
        values = [{"length": n, "value": float(n), "error": None} for n in (8, 16, 32)]
        of = {"useful": useful, "harms": harms, "values": values}
        listed = [
            {"words": f"band {n}", "changes": [{"length": 16, "change": change, "error": error}]}
            for n, (change, error) in enumerate(changes)
        ]
        return {"lengths": [8, 16, 32], "trained": 16, "same_tokens": of, "bands": listed}

    assert report.tokens_in_words(record(8, 32)) == (
        "More than 8 tokens of text were of no use (perplexity 8); from 32 tokens on it did harm (32). The model was "
        "trained to 16."
    )
    assert "of use up to 16 tokens: the perplexity of the same tokens went from 8 behind 8 to 16." in (
        report.tokens_in_words(record(16, None))
    )
    assert report.bands_in_words(record(8, None, (0.5, 0.1), (0.9, 0.5), (-0.3, 0.1))) == [
        "At 16 tokens band 0 are of most use: without their turning 0.5 nats are lost.",
        "At 16 tokens band 2 do harm: without their turning 0.3 nats are won.",
    ]
    assert report.bands_in_words(record(8, None, (0.1, 0.1))) == [
        "At 16 tokens no band of frequencies changes the loss by more than two standard errors."
    ]
    assert report.bands_in_words(record(8, None)) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 0}, "trials must be 1 or more, got 0"),
        ({"bands": -1}, "bands must be 0 or more, got -1"),
        ({"tasks": ("marks",)}, "no task named 'marks'.*did you mean 'mark'"),
        ({"lengths": (3,)}, "a length is 4 tokens or more, got 3"),
        ({"lengths": (10_000_000,)}, "the Python language reference.* tokens, and a window of 10,000,000"),
    ],
)
def test_impossible_probes_are_refused_before_a_folder_is_made(changes, message: str, model, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        probe.probe(Settings(**{"path": str(model), "tasks": ("none",)} | changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_learned_table_is_probed_up_to_its_end(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_embd": 16, "n_head": 2, "n_positions": 64, "vocab_size": 101}
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(tmp_path / "gpt2")
    tiny_llama.tokenizer().save_pretrained(tmp_path / "gpt2")
    model = str(tmp_path / "gpt2")
    with pytest.raises(ValueError, match="a learned table of 64 rows; give --lengths up to that, got 65"):
        probe.probe(Settings(model, ("none",), (32, 65)), tmp_path / "out")
    record = probe.probe(Settings(model, ("none",)), tmp_path / "out")
    assert record["lengths"] == [16, 32, 64] and record["bands"] == record["heads"] == []
    assert "the layers have none" in " ".join(report.sentences(record))


def test_a_model_that_says_no_trained_length_is_refused(model: Path, tmp_path: Path, monkeypatch) -> None:
    from dataclasses import replace

    of = probe.causal_part
    monkeypatch.setattr(probe, "causal_part", lambda *given: replace(of(*given), trained_length=None))
    with pytest.raises(CannotRead, match="how long a text the model was trained on"):
        probe.probe(Settings(str(model), ("none",)), tmp_path / "out")
