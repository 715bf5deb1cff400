"""Exported files agree with their models at other lengths and with a cache."""

import json
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import write_exports
from torch import Tensor

import posenc.export
from posenc import Decoder, Encoder, EncoderDecoder, Encoding, Positions, catalogue, masks
from posenc.export import CannotExport, equality, export
from posenc.export.graphs import graph_of
from posenc.lab.experiments.models import Tagger
from posenc.model.config import Config

runtime = pytest.importorskip("onnxruntime", reason="posenc[onnx] is not installed")

LENGTHS = (1, 7, 64, 200)
SIZES = {"vocab": 11, "dim": 24, "heads": 4, "layers": 2, "max_len": 256}


def decoder(spec: str, **sizes: Any) -> Decoder:
    torch.manual_seed(0)
    return Decoder(**{**SIZES, **sizes}, encoding=spec).eval()


class ByHand:
    """Runs an ONNX file without posenc."""

    def __init__(self, path: Path) -> None:
        self.session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        self.outputs = [value.name for value in self.session.get_outputs()]

    def empty(self, batch: int) -> dict[str, Tensor]:
        past = {"past_positions": torch.zeros(batch, 0, dtype=torch.long)}
        for name, value in self.inputs.items():
            if name.startswith("past."):
                past[name] = torch.zeros([batch, value.shape[1], 0, *value.shape[3:]])
        return past

    def __call__(self, **inputs: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        outputs = self.session.run(self.outputs, {name: x.numpy() for name, x in inputs.items()})
        by_name = {name: torch.from_numpy(x) for name, x in zip(self.outputs, outputs, strict=True)}
        return by_name.pop("logits"), {name.replace("present", "past"): x for name, x in by_name.items()}

    def step(self, ids: Tensor, positions: Tensor, past: dict[str, Tensor], **extra_inputs: Tensor) -> Any:
        return self(ids=ids.contiguous(), positions=positions.contiguous(), **past, **extra_inputs)


def greedily(graph: ByHand, ids: Tensor, at: Tensor, tokens: int) -> Tensor:
    """Extend ids [B, T] at positions [B, T] greedily by `tokens` tokens."""
    past, new = graph.empty(len(ids)), ids
    for _ in range(tokens):
        logits, past = graph.step(new, at, past)
        new, at = logits[:, -1:].argmax(-1), at[:, -1:] + 1
        ids = torch.cat((ids, new), 1)
    return ids


def metadata_of(path: Path) -> dict[str, str]:
    """Return the metadata of a .pt2 file."""
    torch.export.load(path, extra_files=(files := {"about.json": ""}))
    return json.loads(files["about.json"])


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def holds(path: Path, model: Decoder, *, with_horizon: bool = False) -> None:
    """Compare file and model at lengths not used for the export: in one pass, two chunks, stepwise and greedily."""
    graph = ByHand(path)
    for tokens in LENGTHS:
        ids, at = torch.randint(11, (3, tokens)), torch.arange(tokens).repeat(3, 1)
        horizon = {"horizon": torch.full((3,), tokens)} if with_horizon else {}
        expected = model(ids, positions=Positions.count(tokens).with_horizon(tokens if with_horizon else None))
        close(graph.step(ids, at, graph.empty(3), **horizon)[0], expected)
        past, pieces = graph.empty(3), []
        cuts = [0, *range(tokens // 2, tokens - 3), tokens] if tokens == 7 else [0, tokens // 2, tokens]
        for here in (slice(a, b) for a, b in pairwise(cuts) if a < b):
            logits, past = graph.step(ids[:, here], at[:, here], past, **horizon)
            pieces.append(logits)
        close(torch.cat(pieces, 1), expected)
    if with_horizon:
        return
    ids = torch.randint(11, (2, 5))
    assert greedily(graph, ids, torch.arange(5).repeat(2, 1), 12).equal(model.generate(ids, 12))


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec, sizes",
    [
        ("rotary", {"kv_heads": 2, "window": (5, None), "sinks": True}),
        ("learned + forgetting + on(fire, heads=(0, 2))", {"layers": 1}),
    ],
)
def test_an_onnx_decoder_says_what_its_model_says(spec: str, sizes: dict, tmp_path: Path) -> None:
    model, path = decoder(spec, **sizes), tmp_path / "model.onnx"
    result = export(model, path, about={"task": "copy"})
    assert result.difference < 1e-5 and result.lengths == LENGTHS
    holds(path, model)
    facts = ByHand(path).session.get_modelmeta().custom_metadata_map
    assert facts["encoding"] == str(model.stack.encoding_of[0]) and facts["task"] == "copy" and facts["vocab"] == "11"
    assert json.loads(facts["sizes"])["dim"] == 24 and facts["torch"] == torch.__version__
    assert json.loads(facts["inputs"]) == list(ByHand(path).inputs)
    assert ByHand(path).inputs["past.0.key"].shape[::2] == ["batch", "past"]
    # The prompts have different lengths, and padding on the left.
    ids, padding = torch.randint(11, (2, 6)), torch.tensor([[0, 0, 1, 1, 1, 1], [1] * 6])
    at = torch.where(padding == 1, padding.cumsum(1) - 1, -1)
    assert greedily(ByHand(path), ids, at, 9).equal(model.generate(ids, 9, padding=padding))


@pytest.mark.slow
def test_a_horizon_is_an_input_where_the_encoding_depends_on_one(tmp_path: Path) -> None:
    model = decoder("rotary(schedule=dynamic_ntk(trained_length=16))", layers=1)
    holds(export(model, tmp_path / "model.onnx").path, model, with_horizon=True)


@pytest.mark.slow
def test_a_pt2_file_runs_without_posenc_and_holds_no_operator_of_posenc(tmp_path: Path) -> None:
    model = decoder("rotary + alibi")
    path = export(model, tmp_path / "model.pt2").path
    program = torch.export.load(path)
    operators = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert operators and not [name for name in operators if "posenc" in name]
    graph, heads = program.module(), torch.zeros(1, 4, 0, 6)
    for tokens in LENGTHS:
        ids, at = torch.randint(11, (1, tokens)), torch.arange(tokens)[None]
        close(graph(ids, at, at[:, :0], heads, heads, heads, heads)[0], model(ids))
    metadata = metadata_of(path)
    assert (metadata["encoding"], metadata["axes"], metadata["kind"]) == ("rotary + alibi", "1", "decoder")
    assert json.loads(metadata["inputs"])[:3] == ["ids", "positions", "past_positions"]


@pytest.mark.slow
def test_encoders_and_encoder_decoders_are_exported_whole(tmp_path: Path) -> None:
    sizes = Config(dim=24, heads=4, layers=1, max_len=256)
    for encoder in (Encoder(11, sizes, encoding="t5_bias"), Tagger(11, sizes, encoding="axial_rotary")):
        result = export(encoder, tmp_path / "encoder.pt2")
        assert result.lengths == LENGTHS and json.loads(result.about["inputs"]) == ["ids", "positions"]
    ids, grid = torch.randint(11, (2, 12)), Positions.grid(3, 4).coords.repeat(2, 1, 1)
    close(torch.export.load(result.path).module()(ids, grid), encoder.eval()(ids, positions=Positions.of(grid)))
    model = EncoderDecoder(11, sizes, encoding="sinusoidal").eval()
    result = export(model, tmp_path / "both.pt2")
    assert json.loads(result.about["inputs"]) == ["source", "source_positions", "ids", "positions"]
    graph, at = torch.export.load(result.path).module(), torch.arange(12).repeat(2, 1)
    source = torch.randint(11, (2, 5))
    close(graph(source, at[:, :5], ids, at), model(source, ids))
    close(graph(source, torch.tensor([[0, 1, 2, -1, -1]] * 2), ids, at), model(source[:, :3], ids))


@pytest.mark.slow
def test_a_decoder_on_a_grid_is_told_where_its_tokens_are(tmp_path: Path) -> None:
    model = decoder("grid_bias(window=(3, 3))", layers=1)
    path = export(model, tmp_path / "model.pt2").path
    assert metadata_of(path)["axes"] == "2"
    graph, ids, at = torch.export.load(path).module(), torch.randint(11, (1, 9)), Positions.grid(3, 3)
    heads = torch.zeros(1, 4, 0, 6)
    first, *past = graph(ids[:, :4], at.coords[:, :4], at.coords[:, :0], heads, heads)
    second, *_ = graph(ids[:, 4:], at.coords[:, 4:], *past)
    close(torch.cat((first, second), 1), model(ids, positions=at, mask=masks.causal()))


class Reads(Encoding):
    """An encoding whose control flow depends on tensor values."""

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x * (2.0 if float(at.coords.sum()) > 3 else 1.0)


class Counts(Encoding):
    """An encoding that uses the length as a constant, which torch permits."""

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x + torch.arange(x.shape[-1]) * (0.01 if torch.compiler.is_compiling() else 0.01 * at.tokens)


def test_what_cannot_be_exported_is_refused_by_name_and_what_was_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    path.write_text("before")
    for encoding, why in (
        (Reads(), r"Reads cannot be exported to \.pt2: its computation goes by the numbers of one call"),
        (Counts(), r"Counts cannot be exported to \.pt2: its numbers there differ from the model's by .* 0\.0001 is"),
    ):
        with pytest.raises(CannotExport, match=why):
            export(Decoder(**SIZES, encoding=encoding), path)
    assert path.read_text() == "before" and [*tmp_path.iterdir()] == [path]


class Lacks(Encoding):
    """An encoding with an operator that ONNX lacks."""

    def embed(self, x: Tensor, at: Positions) -> Tensor:
        return x * torch.special.bessel_j1(at.coords.float())


@pytest.mark.slow
def test_a_file_serves_one_row_and_several(tmp_path: Path) -> None:
    model, file = decoder("dape(alibi)", layers=1), tmp_path / "model.pt2"
    export(model, file)
    run, graph = equality.load_run(file, graph_of(model)), graph_of(model)
    for rows in (1, 2, 5):
        ids = torch.randint(11, (rows, 6))
        for logits in equality.file_logits(run, graph, ids, torch.arange(6).expand(rows, -1)):
            torch.testing.assert_close(logits, model(ids), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_a_file_that_fails_for_some_sizes_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_run = posenc.export.opened

    def of_several(file: Path, graph: Any) -> Any:
        run = load_run(file, graph)

        def fails_for_some(inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            assert len(inputs["ids"]) > 1, "Guard failed: ids.size()[0] != 1"
            return run(inputs)

        return fails_for_some

    monkeypatch.setattr(posenc.export, "load_run", of_several)
    words = "rotary cannot be exported to .pt2: its graph serves calls of some sizes and fails at others"
    with pytest.raises(CannotExport, match=words):
        export(decoder("rotary"), tmp_path / "model.pt2")
    assert not [*tmp_path.iterdir()]


class Output(torch.nn.Module):
    """A model that looks up logits in a table and returns `form` of them."""

    def __init__(self, form: Any) -> None:
        super().__init__()
        self.table, self.form = torch.nn.Embedding(11, 11), form

    def forward(self, ids: Tensor, positions: Positions) -> Any:
        return self.form(self.table(ids))


@pytest.mark.parametrize("form", [lambda x: (x, x), lambda x: {"logits": x}, lambda x: None])
def test_a_model_that_gives_no_tensor_is_refused_with_the_remedy(form: Any, tmp_path: Path) -> None:
    words = (
        r"gives one tensor, its logits, and a Output gives a (tuple|dict|NoneType); wrap it in a module that returns"
    )
    with pytest.raises(ValueError, match=words):
        export(Output(form), tmp_path / "model.pt2")


def test_nothing_is_printed_above_a_refusal(tmp_path: Path, capfd: pytest.CaptureFixture) -> None:
    with pytest.raises(CannotExport, match=r"^Output cannot be exported to \.pt2: its computation goes by the numbers"):
        export(Output(lambda x: x + 1 if x.sum() > 0 else x), tmp_path / "model.pt2")
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_half_precision_is_held_to_its_own_steps(tmp_path: Path) -> None:
    for dtype in (torch.bfloat16, torch.float16):
        assert export(decoder("rotary", layers=1).to(dtype), tmp_path / "model.pt2").difference < 8e-3
    for dtype in (torch.bfloat16, torch.float64):
        model = decoder("rotary", layers=1).to(dtype)
        with pytest.raises(CannotExport, match=r"onnxruntime has no \w+ in its dtype; export model\.float\(\), or to"):
            export(model, tmp_path / "model.onnx", cached=False)
    assert export(model.float(), tmp_path / "model.onnx", cached=False).difference < 1e-5
    with pytest.raises(ValueError, match=r"exported from the CPU, and this one is on meta; give model\.cpu\(\)"):
        export(model.to("meta"), tmp_path / "model.pt2")


@pytest.mark.slow
def test_an_operator_that_onnx_lacks_is_named(tmp_path: Path) -> None:
    why = r"Lacks cannot be exported to \.onnx: ONNX has nothing for PyTorch's operator bessel_j1"
    with pytest.raises(CannotExport, match=why):
        export(Decoder(**SIZES, encoding=Lacks()), tmp_path / "model.onnx")
    assert not [*tmp_path.iterdir()]


def test_wrong_calls_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"a file ending in \.onnx or \.pt2, got 'model\.onx'; did you mean '\.onnx'\?"
    ):
        export(decoder("none"), tmp_path / "model.onx")
    with pytest.raises(ValueError, match=r"a cache belongs to a decoder, and a Encoder has none; leave it out"):
        export(Encoder(**SIZES), tmp_path / "model.pt2", cached=True)
    with pytest.raises(ValueError, match=r"a Linear is not called as model\(ids, positions=\.\.\.\); .* optimum-onnx"):
        export(torch.nn.Linear(2, 2), tmp_path / "model.pt2")


@pytest.mark.slow
def test_a_model_is_as_it_was_afterwards(tmp_path: Path) -> None:
    model = decoder("rotary", layers=1, dropout=0.5).train()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert export(model, tmp_path / "model.pt2", cached=False).difference < 1e-5
    assert all(module.training for module in model.modules())


def test_the_table_of_the_guide_names_every_encoding() -> None:
    assert tuple(write_exports.rows()) == catalogue.names()


@pytest.mark.slow
@pytest.mark.parametrize("form", write_exports.FORMS)
@pytest.mark.parametrize("name", catalogue.names())
def test_the_table_of_the_guide_is_what_is_found(name: str, form: str, tmp_path: Path) -> None:
    expected = write_exports.rows()[name][write_exports.FORMS.index(form)]
    actual = write_exports.export_result(name, form, tmp_path)
    # The last digit of a difference depends on the machine.
    assert actual.partition(", ")[2] == expected.partition(", ")[2] and (", up to" in expected or actual == expected)
