"""`posenc inspect`: files of every kind and their faults, the text, the pictures, the command."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from posenc import cli
from posenc.checkpoints.files.tensors import open_tensors
from posenc.checkpoints.inspection import portrait
from posenc.checkpoints.inspection.inspect import inspect, with_checked_weights
from posenc.checkpoints.vocabulary.reading import CannotRead, Layer, Part, Reading
from posenc.encoding.base import Shape

PARAMS = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "rope_theta": 500000.0}


def folder(path: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor] | None = None) -> Path:
    path.mkdir(exist_ok=True)
    (path / "params.json").write_text(json.dumps(config))
    if tensors is not None:
        save_file(tensors, path / "model.safetensors")
    return path


def weights(**changes: torch.Tensor) -> dict[str, torch.Tensor]:
    tensors = {f"layers.{i}.attention.wq.weight": torch.zeros(64, 64) for i in (0, 1)}
    tensors |= {f"layers.{i}.attention.wk.weight": torch.zeros(32, 64) for i in (0, 1)}
    return tensors | changes


def test_the_format_is_told_by_what_is_inside_and_never_by_the_name(tmp_path: Path) -> None:
    (tmp_path / "anything.json").write_text(json.dumps(PARAMS))
    assert inspect(tmp_path / "anything.json").format == "meta"
    (tmp_path / "params.json").write_text(json.dumps({"hidden_size": 8, "rope_theta": 1e4}))
    assert inspect(tmp_path / "params.json").format == "transformers"


def test_yaml_is_answered_with_what_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("num-layers: 1\n")
    with pytest.raises(CannotRead, match=r"a\.yaml: it looks like YAML, .* does not read; expected a config\.json of"):
        inspect(tmp_path / "a.yaml")


def test_weights_that_fit_say_nothing(tmp_path: Path) -> None:
    reading = inspect(folder(tmp_path / "a", PARAMS, weights()))
    assert (reading.contradictions, reading.not_covered, reading.unknown) == ((), (), {})


def test_layers_with_heads_of_their_own_are_held_to_their_own(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "head_dim": 16, "vocab_size": 64}
    experts = {"num_experts": 2, "moe_intermediate_size": 8, "num_experts_per_tok": 1}
    experts |= {"shared_expert_intermediate_size": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "num_attention_heads_per_layer": [4, 6]}
    config = transformers.LagunaConfig(**sizes, **heads, **experts)
    model = transformers.LagunaForCausalLM(config)
    model.save_pretrained(tmp_path / "fits")
    assert not inspect(tmp_path / "fits").contradictions
    with torch.no_grad():
        model.model.layers[1].self_attn.q_proj.weight = torch.nn.Parameter(torch.zeros(64, 64))
    model.save_pretrained(tmp_path / "differs")
    assert inspect(tmp_path / "differs").contradictions == (
        "model.layers.1.self_attn.q_proj.weight has 64 rows, and the config says 96 rows",
    )


def test_weights_that_contradict_the_config_are_named(tmp_path: Path) -> None:
    wide = weights(**{"layers.1.attention.wk.weight": torch.zeros(64, 64)})
    assert inspect(folder(tmp_path / "a", PARAMS, wide)).contradictions == (
        "layers.1.attention.wk.weight has 64 rows, and the config says 2 heads of 16 channels, 32 rows",
    )
    assert inspect(folder(tmp_path / "b", PARAMS | {"n_layers": 3}, weights())).contradictions == (
        "the weights have no layer 2, and the config says 3 layers",
    )
    table = weights(**{"pos_embed": torch.zeros(1, 128, 64)})
    assert inspect(folder(tmp_path / "c", PARAMS, table)).contradictions == (
        "pos_embed is a table of positions [1, 128, 64], and the config speaks of none",
    )


def test_a_tower_beside_the_text_is_not_held_against_the_text(tmp_path: Path) -> None:
    tower = {"vision.layers.7.attention.wq.weight": torch.zeros(8, 8), "vision.pos_embed": torch.zeros(1, 9, 8)}
    config = PARAMS | {"vision_args": {"dim": 8}}
    assert inspect(folder(tmp_path / "a", config, weights(**tower))).contradictions == ()
    inner_blocks = weights(**{"layers.0.blocks.5.x": torch.zeros(1)})
    assert inspect(folder(tmp_path / "b", PARAMS | {"n_layers": 3}, inner_blocks)).contradictions == ()


def learned_readings(rows: int, stored_rows: int) -> tuple[Reading, Reading]:
    """Return a reading of a learned table of `rows` rows, before and after the check with `stored_rows` rows."""
    part = Part("", Shape(8, 2, 4, rows), (Layer("none", 4),), 2, rows, f"learned(max_len={rows})")
    reading = Reading("transformers", "gpt2", (part,))
    save_file({"wpe.weight": torch.randn(stored_rows, 8), "h.0.x": torch.zeros(1)}, "model.safetensors")
    return reading, with_checked_weights(reading, open_tensors("model.safetensors"))


def test_a_learned_table_is_held_against_the_trained_length(here: Path) -> None:
    _, fits = learned_readings(16, 16)
    assert fits.contradictions == () and fits.parts[0].tables == {"wpe.weight": (16, 8)}
    _, differs = learned_readings(16, 32)
    assert differs.contradictions == ("wpe.weight is [32, 8], and the config says [16, 8]; followed: the config",)


def test_a_table_is_known_by_where_the_model_looks_whatever_it_is_called_and_in_each_stack(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    gpt = {"model_type": "openai-gpt", "vocab_size": 8, "n_embd": 8, "n_head": 2, "n_layer": 1, "n_positions": 16}
    tensors = {"positions_embed.weight": torch.zeros(12, 8), "h.0.x": torch.zeros(1)}
    sentence = "positions_embed.weight is [12, 8], and the config says [16, 8]; followed: the config"
    assert inspect(folder(tmp_path / "gpt", gpt, tensors)).contradictions == (sentence,)
    sizes = {f"{end}_{size}": 1 for end in ("encoder", "decoder") for size in ("layers", "attention_heads", "ffn_dim")}
    bart = {"model_type": "bart", "vocab_size": 8, "d_model": 8, "max_position_embeddings": 16, **sizes}
    tensors = {f"{end}.embed_positions.weight": torch.zeros(n, 8) for end, n in (("encoder", 18), ("decoder", 17))}
    sentence = "decoder.embed_positions.weight is [17, 8], and the config says [18, 8]; followed: the config"
    assert inspect(folder(tmp_path / "bart", bart, tensors)).contradictions == (sentence,)


def test_a_table_of_distances_is_held_against_its_buckets(here: Path) -> None:
    part = Part("", Shape(8, 2, 4, 1), (Layer("t5_bias(buckets=8, max_distance=16)", 4),), 2)
    reading = Reading("transformers", "t5", (part,))
    name = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
    save_file({name: torch.randn(8, 2)}, "a.safetensors")
    assert with_checked_weights(reading, open_tensors("a.safetensors")).contradictions == ()
    save_file({name: torch.randn(16, 2)}, "b.safetensors")
    (sentence,) = with_checked_weights(reading, open_tensors("b.safetensors")).contradictions
    assert sentence == f"{name} is [16, 2], and the config says [8, 2] (buckets, heads)"


def test_pickles_are_refused_and_left_alone_beside_a_config(tmp_path: Path) -> None:
    torch.save({}, tmp_path / "model.pt")
    with pytest.raises(CannotRead, match=r"model\.pt is a pickle, and to unpickle is to run"):
        inspect(tmp_path / "model.pt")
    with pytest.raises(CannotRead, match="is a pickle"):
        inspect(tmp_path)
    reading = inspect(folder(tmp_path, PARAMS))
    assert len(reading.parts) == 1
    assert reading.not_covered[0].startswith("the weights, which were not opened: ")
    (tmp_path / "model.pt").rename(tmp_path / "hidden.json")
    with pytest.raises(CannotRead, match="is a pickle"):
        inspect(tmp_path / "hidden.json")


def test_broken_files_are_refused_by_name(tmp_path: Path) -> None:
    single = folder(tmp_path / "a", PARAMS, weights())
    whole = (single / "model.safetensors").read_bytes()
    for size in (4, 100, len(whole) - 10):
        (single / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(CannotRead, match=r"model\.safetensors"):
            inspect(single)
    shards = folder(tmp_path / "b", PARAMS)
    index = {"metadata": {}, "weight_map": {"x": "model-00001-of-00002.safetensors"}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CannotRead, match=r"names the shard 'model-00001-of-00002\.safetensors', which is missing"):
        inspect(shards)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", '{"dim": 4,', r"config\.json: it is no whole JSON \(.*line 1"),
        ("config.json", "[1, 2]", "expected a dictionary, got"),
        ("config.json", "\xff\xfe", "is no whole JSON"),
        ("config.json", '{"colour": 1}', "no format known has these keys: colour"),
        ("adapter_config.json", "{}", "is an adapter, which has the positions of the model that it adapts"),
        ("README.md", "hello", "holds no tensors: no .safetensors and no .gguf file is in it"),
    ],
)
def test_folders_without_a_readable_config(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(CannotRead, match=message):
        inspect(tmp_path)


def test_weights_alone_say_not_what_they_are(tmp_path: Path) -> None:
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with pytest.raises(CannotRead, match=r"neither config\.json nor params\.json"):
            inspect(path)
    folder(tmp_path, PARAMS)
    assert inspect(tmp_path / "model.safetensors").format == "meta"
    (tmp_path / "noise.bin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CannotRead, match="is a pickle"):
        inspect(tmp_path / "noise.bin")
    (tmp_path / "noise").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CannotRead, match="noise: it is no text: byte 0 is no UTF-8"):
        inspect(tmp_path / "noise")
    with pytest.raises(CannotRead, match="there is no file or folder 'nowhere'"):
        inspect("nowhere")


def part(*layers: Layer, **changes: Any) -> Part:
    return Part("", Shape(64, 4, 16, 4096), layers, 2, 4096, **changes)


ROTARY, PLAIN = Layer("rotary(base=500000, layout=interleaved)", 16), Layer("none", 16)
LOCAL = Layer("rotary", 16, window=512)


def words(*layers: Layer, **changes: Any) -> str:
    return portrait.describe_reading(Reading("meta", "toy", (part(*layers, **changes),)))


def test_the_words_name_every_number() -> None:
    text = words(
        *[Layer("rotary(base=500, partial=0.5, schedule=yarn(factor=8, trained_length=512))", 16, None, 0.5)] * 2
    )
    for fact in (
        "toy (Meta's params.json)",
        "2 layers, 64 channels, 4 heads of 16, 2 for keys and values; trained on 4,096 tokens; sees the past",
        "layers 0 to 1: rotary(base=500, partial=0.5,",
        "[logits times 0.5]",
        "layout half: channel k and the one half the rotary width further on make a pair",
        "base 500; 8 of 16 channels of a head turn",
        "schedule yarn: factor 8, trained length 512, beta fast 32, beta slow 1, truncate true, ramp pairs",
        "temperature 1.20794: logits are multiplied by 1.45913",
    ):
        assert fact in text


def test_layers_whose_heads_are_of_another_width_say_so() -> None:
    text = words(Layer("rotary", 16), Layer("rotary(base=500)", 32), Layer("rotary(base=70)", 8))
    assert "rotary(base=500)   [heads of 32]" in text and "rotary(base=70)   [on 8 of 16 channels of a head]" in text


def test_layers_that_are_alike_stand_together_and_cycles_are_told_once() -> None:
    smollm3 = words(*[ROTARY, ROTARY, ROTARY, PLAIN] * 4)
    assert "layers in a cycle of 4 (3 + 1):\n  layers 0 to 2: rotary" in smollm3 and "layer 3: none" in smollm3
    assert "layer 7" not in smollm3
    gemma = words(*[LOCAL] * 5, ROTARY, LOCAL)
    assert "layers 0 to 4: rotary   [window of 512 tokens]" in gemma and "layer 5: rotary(base" in gemma
    assert "layer 6: rotary   [window" in gemma


def test_the_words_of_other_encodings() -> None:
    assert "slopes from 0.25 to 0.003906 a token" in words(Layer("alibi", 16))
    assert "32 buckets; from 128 tokens on all share the last" in words(Layer("t5_bias", 16))
    assert "from 64 tokens on, queries grow by 0.1 times a logarithm" in words(
        Layer("step_temperature(interval=64)", 16)
    )
    assert "it depends on how long each sequence is" in words(
        Layer("rotary(schedule=dynamic_ntk(factor=2, trained_length=64))", 16)
    )
    lists = tuple(float(k + 1) for k in range(8))
    longrope = f"longrope(factor=4, short_factor={lists}, long_factor={lists}, trained_length=1024)"
    text = words(Layer(f"rotary(schedule={longrope})", 16))
    assert "short factor [1, 2, ..., 8] (8 entries)" in text and "for short sequences" in text
    proportional = words(Layer("proportional_rotary(partial=0.25)", 16))
    assert "8 pairs, wavelengths from 6.283 to 20 tokens, 6 stand still" in proportional


def test_embeddings_tables_and_what_no_spec_says() -> None:
    text = words(PLAIN, embed="learned(max_len=8)", tables={"wpe.weight": (8, 64)}, remarks=("it does more",))
    assert "added to the embeddings: learned(max_len=8)" in text
    assert "table wpe.weight: 8 x 64" in text and "besides: it does more" in text
    empty = Reading("gguf", "x", (), {}, {"rope.x": [1, 2]}, ("a and b",), ("all of it",))
    assert portrait.describe_reading(empty).splitlines()[1:] == [
        *("", "Contradictory:", "  a and b", "", "No stack with positions could be read."),
        *("", "Not understood:", "  rope.x: [1, 2]", "", "Not covered:", "  all of it"),
    ]


def test_pictures_of_spectra_slopes_and_real_tables() -> None:
    reading = Reading("meta", "toy", (part(ROTARY, LOCAL, ROTARY), part(Layer("alibi", 16))))
    assert list(portrait.reading_pictures(reading)) == ["spectrum", "spectrum_2", "bias"]
    tensors = {"wpe.weight": torch.randn(600, 64), "x": torch.zeros(2, 2)}
    t5 = Reading("meta", "t5", (part(Layer("t5_bias(buckets=8, max_distance=16)", 16)),))
    name = "block.0.relative_attention_bias.weight"
    figures = portrait.reading_pictures(t5, tensors | {name: torch.arange(32.0).view(8, 4)})
    assert list(figures) == ["similarity_wpe", "bias_block_0_relative_attention_bias"]
    assert "cosine of its rows, one in 2" in figures["similarity_wpe"].axes[0].get_title("left").replace("\n", " ")
    # The curves come from the table in the weights: the bias at distance 0 is the first row.
    lines = figures["bias_block_0_relative_attention_bias"].axes[0].get_lines()
    assert sorted(line.get_ydata()[0] for line in lines[:4]) == [0, 1, 2, 3]


def command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["inspect", *arguments])
    return code, *capsys.readouterr()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_command_says_what_it_understood_and_what_not(here: Path, capsys) -> None:
    folder(here / "m", PARAMS | {"rope_wonder": 3}, weights())
    code, out, _ = command(capsys, "m", "--out", "pictures")
    assert code == 0
    assert "layers 0 to 1: rotary(base=500000, layout='interleaved')" in out
    assert "Not understood:\n  rope_wonder: 3" in out
    assert "rope_theta" in out and "rotary base 500000" in out
    assert [path.name for path in (here / "pictures").iterdir()] == ["spectrum.png"]


def test_the_command_gives_json(here: Path, capsys) -> None:
    code, out, _ = command(capsys, str(folder(here / "m", PARAMS)), "--json")
    record = json.loads(out)
    assert code == 0 and record["format"] == "meta"
    assert record["parts"][0]["layers"] == [
        {
            "layers": [0, 1],
            "spec": "rotary(base=500000, layout='interleaved')",
            "head_dim": 16,
            "window": None,
            "scale": None,
            "chunk": None,
            "attends": True,
            "rows": [],
        }
    ]


def test_what_cannot_be_read_ends_as_all_bad_usage_does_and_with_one_line(here: Path, capsys) -> None:
    (here / "config.json").write_text("{")
    code, out, err = command(capsys, "config.json")
    assert (code, out) == (2, "") and err.startswith("posenc: config.json: it is no whole JSON")
    (here / "config.json").write_text('{"model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": "x"}}')
    code, out, err = command(capsys, "config.json")
    assert (code, out) == (2, "") and err.startswith("posenc: config.json: ") and err.count("\n") == 1
    code, out, err = command(capsys, "nowhere")
    assert (code, out) == (2, "") and err.startswith("posenc: there is no file or folder 'nowhere'")
    (here / "a.json").write_text(json.dumps({"general.architecture": "nonesuch"}))
    code, out, _ = command(capsys, "a.json")
    assert code == 1 and "Not covered:\n  the architecture nonesuch" in out


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "config.json", "params.json", "weights.ckpt"])
def test_a_pickle_under_any_name_is_refused_and_not_opened_as_one(name: str, tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple:
            return os.mkdir, (str(tmp_path / "ran"),)

    (tmp_path / "model").mkdir()
    for write in (torch.save, lambda trap, file: file.write_bytes(pickle.dumps(trap))):
        write(Trap(), tmp_path / "model" / name)
        for path in (tmp_path / "model", tmp_path / "model" / name):
            with pytest.raises(CannotRead):
                inspect(path)
    assert not (tmp_path / "ran").exists()
