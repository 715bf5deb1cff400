"""Find learned tables, lengthen and measure them, and load the written ones with transformers alone."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

transformers = pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from posenc import cli  # noqa: E402
from posenc.checkpoints.extension import by_table  # noqa: E402
from posenc.checkpoints.extension.by_table import is_by_table, model_tables, resize_table, stretch_model  # noqa: E402
from posenc.checkpoints.extension.choice import choose  # noqa: E402
from posenc.checkpoints.extension.extend import extend  # noqa: E402
from posenc.checkpoints.extension.settings import Settings  # noqa: E402
from posenc.checkpoints.formats import huggingface  # noqa: E402
from posenc.checkpoints.formats.load import LoadedModel, load, quietly  # noqa: E402
from posenc.checkpoints.measures import perplexity  # noqa: E402
from posenc.checkpoints.measures.masked_models import MaskedTokens  # noqa: E402
from posenc.checkpoints.measures.measure import Inputs, Measure  # noqa: E402
from posenc.checkpoints.measures.perplexity import Perplexity  # noqa: E402
from posenc.checkpoints.vocabulary.reading import CannotRead  # noqa: E402
from posenc.encodings.added.learned import Learned  # noqa: E402
from posenc.tokens.positions import Positions  # noqa: E402

VOCABULARY = "the a cat dog bit saw man men old new red sun sea sky".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
TEXT = {"vocab_size": 24, "hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 16}
TEXT |= {"max_position_embeddings": 40}


def tokenizer() -> Any:
    """Return a tokenizer of whole words between [CLS] and [SEP]."""
    vocabulary = {word: number for number, word in enumerate([*SPECIAL, *VOCABULARY])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=40, **names)


def model_of(kind: str, **options: Any) -> Any:
    model_class = getattr(transformers, kind)
    return model_class(model_class.config_class(**options)).eval()


def save_model(kind: str, folder: Path) -> Path:
    with quietly():
        model_of(kind, **TEXT).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A masked language model."""
    return save_model("BertForMaskedLM", tmp_path_factory.mktemp("models") / "masked")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model without a head, which fits no measure."""
    return save_model("BertModel", tmp_path_factory.mktemp("models") / "bert")


@pytest.fixture
def text(tmp_path: Path) -> str:
    random = torch.Generator().manual_seed(3)
    picks = torch.randint(len(VOCABULARY), (60, 10), generator=random).tolist()
    (tmp_path / "text.txt").write_text("\n".join(" ".join(VOCABULARY[n] for n in line) for line in picks))
    return str(tmp_path / "text.txt")


# Finding


@pytest.mark.parametrize(
    ("kind", "options", "name", "cells", "first"),
    [
        ("BertModel", TEXT, "embeddings.position_embeddings.weight", (40,), 0),
        ("AlbertForMaskedLM", TEXT, "albert.embeddings.position_embeddings.weight", (40,), 0),
        ("RobertaModel", TEXT | {"pad_token_id": 1}, "embeddings.position_embeddings.weight", (38,), 2),
        ("GPT2LMHeadModel", {"vocab_size": 24, "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 40},
         "transformer.wpe.weight", (40,), 0),
        ("OPTForCausalLM", {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
                            "ffn_dim": 16, "max_position_embeddings": 40, "word_embed_proj_dim": 16},
         "model.decoder.embed_positions.weight", (40,), 2),
        ("ViTModel", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                      "image_size": 24, "patch_size": 4}, "embeddings.position_embeddings", (6, 6), 1),
        ("DeiTModel", {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16,
                       "image_size": 24, "patch_size": 4}, "embeddings.position_embeddings", (6, 6), 2),
    ],
)  # fmt: skip
def test_the_table_is_found_by_what_is_looked_up(kind: str, options: Any, name: str, cells: Any, first: int) -> None:
    (table,) = model_tables(model_of(kind, **options))
    assert (table.name, table.cells, table.first) == (name, cells, first)


def test_rotary_models_have_none() -> None:
    small = {"vocab_size": 24, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = model_of("LlamaForCausalLM", **small, intermediate_size=16)
    assert model_tables(model) == [] and not is_by_table(huggingface.read(model.config))
    assert is_by_table(huggingface.read(model_of("BertModel", **TEXT).config))


# Making longer


def test_each_method_is_what_it_says() -> None:
    rows = torch.arange(4.0)[:, None] ** 2
    tables = {name: resize_table(rows, 0, 7, name).flatten().tolist() for name in by_table.TABLE_METHODS}
    assert tables["clamp"] == [0, 1, 4, 9, 9, 9, 9]
    assert tables["repeat"] == [0, 1, 4, 9, 0, 1, 4]
    assert tables["linear"] == pytest.approx([0, 0.5, 1, 2.5, 4, 6.5, 9])
    assert tables["nearest"] == [0, 1, 1, 4, 4, 9, 9]
    # Keys' kernel with a = -3/4 half way between rows: (-3, 19, 19, -3)/32 of its neighbours, edges repeated.
    assert tables["cubic"] == pytest.approx([0, (19 - 12) / 32, 1, (19 * 5 - 27) / 32, 4, (-3 + 19 * 13 - 27) / 32, 9])


def test_linear_is_what_learned_reads_when_it_interpolates() -> None:
    encoding = Learned(8, max_len=12, overrun="interpolate")
    with torch.no_grad():
        vectors = encoding.vectors(Positions.count(20).with_horizon(20))[0]
        assert torch.allclose(resize_table(encoding.table, 0, 20, "linear"), vectors, atol=1e-6)


@pytest.mark.parametrize("kind", ["RobertaModel", "BertModel"])
def test_clamped_models_say_the_same_of_what_they_could_read(kind: str) -> None:
    model = model_of(kind, **TEXT | {"pad_token_id": 1})
    checkpoint = LoadedModel(model, None, model.config, Path())
    longer = stretch_model(checkpoint, model_tables(model), 60, "clamp")
    ids = torch.randint(5, 24, (1, 36))
    with torch.no_grad():
        assert torch.allclose(longer(ids).last_hidden_state, model(ids).last_hidden_state, atol=1e-6)
        assert longer(torch.randint(5, 24, (1, 60))).last_hidden_state.shape == (1, 60, 16)


# Measuring


def measured_values(measure: Measure, model: Any, length: int, how: str = "whole") -> dict[str, float]:
    """Return the values of a measure for a model at a length, from one pass."""
    raw = {length: measure.run(model, length, how)}
    return {name: value.value for name, value in measure.values(raw, length).items()}


class Oracle(torch.nn.Module):
    """Predicts the tokens whose id is below a limit, and guesses the others."""

    device = torch.device("cpu")

    def __init__(self, answers: torch.Tensor, limit: int) -> None:
        super().__init__()
        self.answers, self.limit = answers, limit

    def forward(self, input_ids: torch.Tensor) -> Any:
        T = input_ids.shape[1]
        logits = torch.zeros(1, T, 24)
        right = self.answers[:T] < self.limit
        logits[0, torch.arange(T)[right], self.answers[:T][right]] = 100.0
        return type("Out", (), {"logits": logits})


def test_masked_tokens_are_counted_and_weighed(text: str) -> None:
    checkpoint = LoadedModel(model_of("BertModel", **TEXT), tokenizer(), None, Path())  # type: ignore[arg-type]
    measure = MaskedTokens(Inputs(checkpoint, 40, 80, text=(text,), samples=1))
    (document,) = measure.documents(50)
    assert len(document) == 48
    answers = torch.tensor([2, *document, 3])
    inner = torch.arange(1, 49)
    targets = answers[inner[(inner % 7 == 0) | (inner % 7 == 3)]]
    numbers = measured_values(measure, Oracle(answers, limit=12), 50)
    assert numbers["accuracy"] == pytest.approx(float((targets < 12).float().mean()))
    wrong = float((targets >= 12).float().mean())
    assert numbers["perplexity"] == pytest.approx(24**wrong, rel=1e-4)


def test_perplexity_in_windows_is_that_of_windows(text: str) -> None:
    model = model_of("GPT2LMHeadModel", vocab_size=24, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    checkpoint = LoadedModel(model, tokenizer(), model.config, Path())
    measure = Perplexity(Inputs(checkpoint, 16, 30, text=(text,), samples=1))
    ids = measure.window(0, 30)
    with torch.no_grad():
        expected = []
        for token in range(1, 30):
            # The first window holds 16 tokens; each that follows ends 8 later, the last at the end.
            end = 16 if token < 16 else min(30, 24 + 8 * ((token - 16) // 8))
            begin = max(0, end - 16)
            logits = model(ids[None, begin:token]).logits[0, -1]
            expected.append(torch.nn.functional.cross_entropy(logits, ids[token]))
    assert perplexity.windowed_losses(model, ids, 16).tolist() == pytest.approx(
        torch.stack(expected).tolist(), rel=1e-4
    )
    mean = float(torch.stack(expected).mean().exp())
    assert measured_values(measure, model, 30, "windows")["mean"] == pytest.approx(mean, rel=1e-4)


# Whole runs


def test_a_run_measures_chooses_and_writes_what_transformers_loads(masked: Path, text: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    messages: list[str] = []
    settings = Settings(str(masked), 2.0, ("clamp", "linear"), text=(text,), lengths=(20, 70), samples=4)
    record = extend(settings, out, say=messages.append)
    at = {(m["name"], row["length"]) for m in record["methods"] for row in m["values"]}
    assert at == {("none", 20), ("none", 40)} | {("windows", n) for n in (60, 70, 80)} | {
        (m, n) for m in ("clamp", "linear") for n in (20, 40, 60, 70, 80)
    }
    lines = [json.loads(line)["facts"] for line in (out / "measurements.jsonl").read_text().splitlines()]
    # A clamped table changes nothing within its old length.
    short = [(row["table"], row["length"]) for row in lines if row.get("how") == "whole" and row["length"] <= 40]
    assert short == [("as it is", 20), ("as it is", 40), ("linear", 20), ("linear", 40)]
    again = transformers.AutoModelForMaskedLM.from_pretrained(out / "checkpoint", local_files_only=True)
    assert again.config.max_position_embeddings == 80
    method = record["written"]["method"]
    original = load(masked)
    with torch.no_grad():
        rows = original.model.bert.embeddings.position_embeddings.weight
        assert torch.equal(again.bert.embeddings.position_embeddings.weight, resize_table(rows, 0, 80, method))
        assert again(torch.randint(5, 24, (1, 80))).logits.shape == (1, 80, 24)
    assert transformers.AutoTokenizer.from_pretrained(out / "checkpoint").model_max_length == 80
    page = (out / "report.md").read_text()
    assert "| linear |" in page and f"What {method} costs short inputs" in page and (out / "report.html").exists()
    assert (out / "figures" / "by-length.png").stat().st_size
    options = f"--factor 2 --method clamp,linear --text {text} --lengths 20 70 --samples 4"
    assert record["made"]["command"] == f"posenc extend {masked} {options} --out {out}"
    # The same command runs no pass again.
    messages.clear()
    assert extend(settings, out, say=messages.append) == record
    assert messages == [f"loading {masked}"]
    other_settings = Settings(str(masked), 3.0, ("clamp",), text=(text,), samples=4)
    with pytest.raises(ValueError, match=r"holds a run with other settings \(factor\)"):
        extend(other_settings, out)


def test_a_checkpoint_with_other_weights_than_those_measured_is_taken_away(
    masked: Path, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = LoadedModel.save_huggingface

    def with_other_weights(self: LoadedModel, folder: Path) -> None:
        save(self, folder)
        file = folder / "model.safetensors"
        save_file({name: 2 * x for name, x in load_file(file).items()}, file, metadata={"format": "pt"})

    monkeypatch.setattr(LoadedModel, "save_huggingface", with_other_weights)
    settings = Settings(str(masked), 2.0, ("clamp",), text=(text,), lengths=(20,), samples=4)
    with pytest.raises(RuntimeError, match=r"has another \S+ than what was measured; it is not kept"):
        extend(settings, tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()


def test_what_no_measure_fits_is_refused_and_left_to_a_conversion(encoder: Path, tmp_path: Path) -> None:
    words = (
        "posenc has no measure for a BertModel, so that nothing says which method is best; posenc convert makes its "
        "table longer, by --max-length, or --grid for images"
    )
    with pytest.raises(ValueError, match=f"^{words}$"):
        extend(Settings(str(encoder), 2.0, ("linear",)), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_baseline_that_is_better_is_named() -> None:
    def entry(name: str, baseline: bool = False, **at: float) -> dict[str, Any]:
        values = [
            {"measure": "masked", "number": "perplexity", "length": int(n[1:]), "value": v, "error": None, "each": ()}
            for n, v in at.items()
        ]
        return {"name": name, "words": "in pieces", "baseline": baseline, "values": values}

    numbers = [{"name": "perplexity", "words": "perplexity", "more_is_better": False}]
    measures = [{"name": "masked", "numbers": numbers, "price": "perplexity"}]
    record = {"trained": 8, "target": 16, "measures": measures}
    record["methods"] = [entry("none", _8=2.0), entry("windows", True, _16=2.5)]
    record["methods"] += [entry("linear", _8=9.0, _16=5.0), entry("clamp", _8=2.0, _16=7.0)]
    best, words = choose(("linear", "clamp"), record)
    # Linear is better at the target, and much worse at the trained length.
    assert best["name"] == "clamp" and "where the model as it is ends at 8" in words
    assert "Windows (in pieces) gives 2.50: better." in words
    del record["methods"][-1]
    best, words = choose(("linear",), record)
    assert best["name"] == "linear" and "No method keeps the trained length within 5 %" in words
    # The original model alone.
    del record["methods"][-1]
    assert choose(("none",), record)[0]["name"] == "none"


# Mistakes


def test_what_cannot_be_measured_is_said_before_anything_is_written(masked: Path, text: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for settings, message in (
        (
            Settings(str(masked), 2.0, ("yarn",), text=(text,)),
            r"'yarn' is no method for a learned table; there are: cl",
        ),
        (Settings(str(masked), 2.0, text=(text,), chunk=5), r"--chunk would change nothing here .masked reads --sam"),
        (Settings(str(masked), 20.0, text=(text,), samples=1), r"has 600 tokens, and a document takes 798"),
    ):
        with pytest.raises(ValueError, match=message):
            extend(settings, out)
        assert not out.exists()
    checkpoint = load(masked)
    with pytest.raises(CannotRead, match=r"has no tokenizer, and without one no text can be read"):
        MaskedTokens(Inputs(LoadedModel(checkpoint.model, None, checkpoint.config, masked), 40, 80))


def test_the_command_extends_a_table_and_refuses_what_would_change_nothing(
    masked: Path, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["extend", str(masked), "--factor", "2", "--method", "clamp", "--text", text, "--samples", "2"]
    assert cli.main([*command, "--out", str(tmp_path / "run")]) == 0
    output = capsys.readouterr().out
    assert "clamp wins: at 80 tokens" in output and f"Checkpoint: {tmp_path / 'run' / 'checkpoint'}" in output
