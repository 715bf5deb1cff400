"""Known defects by config, measured on the installed transformers, and their remedies."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

transformers = pytest.importorskip("transformers")

from code_in_texts import HOME  # noqa: E402
from tiers import daily_third, rest_slow  # noqa: E402

from posenc import cli  # noqa: E402
from posenc.checkpoints.doctor import defects  # noqa: E402
from posenc.checkpoints.doctor import patient as doctors  # noqa: E402
from posenc.checkpoints.doctor.defects import DEFECTS, Finding  # noqa: E402
from posenc.checkpoints.doctor.examine import examine, report_lines  # noqa: E402
from posenc.checkpoints.doctor.patient import Patient, load_patient  # noqa: E402
from posenc.encodings.rotations.rotary import Rotary  # noqa: E402
from posenc.foreign import CannotRead  # noqa: E402
from posenc.schedules.yarn import YaRN  # noqa: E402

PHI3 = {
    "model_type": "phi3",
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0] * 48,
        "long_factor": [1 + k / 8 for k in range(48)],
        "factor": 4.0,
        "original_max_position_embeddings": 4096,
    },
    "original_max_position_embeddings": 4096,
    "max_position_embeddings": 16_384,
    "pad_token_id": 0,
}
YARN = {"rope_type": "yarn", "factor": 8.0, "rope_theta": 10_000.0, "original_max_position_embeddings": 4096}
GEMMA = {"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "default"}}}
ROTARY = {"rounded by a cast", "not in the weights"}
# `attach` does not mend these: a lost `truncate`, ALiBi from a function, and one half of an encoder-decoder.
HITS_AFTER_ATTACH = {"nested": ROTARY, "falcon": {"biases fall together"}, "bart": {"shifted by padding"}}
HITS_AFTER_ATTACH |= {"prophetnet": HITS_AFTER_ATTACH["bart"]}
HITS = {
    "llama": ({"model_type": "llama", "dtype": "bfloat16", "max_position_embeddings": 8192}, ROTARY),
    "llama, float32": ({"model_type": "llama"}, {*ROTARY, "angles in float32"}),
    "llama, short": (
        {"model_type": "llama", "dtype": "bfloat16", "max_position_embeddings": 2},
        {"not in the weights"},
    ),
    "dynamic": (
        {"model_type": "llama", "rope_parameters": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}},
        {*ROTARY, "frequencies by the longest row", "one spelling"},
    ),
    "a base in one spelling": (
        {"model_type": "llama", "dtype": "bfloat16", "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        {*ROTARY, "one spelling"},
    ),
    "a base in both": (
        {"model_type": "llama", "dtype": "bfloat16", "rope_theta": 5e5}
        | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ROTARY,
    ),
    "dbrx": (
        {"model_type": "dbrx", "dtype": "bfloat16", "d_model": 6144, "n_heads": 48, "max_seq_len": 2048}
        | {"attn_config": {"rope_theta": 5e5, "kv_n_heads": 8, "clip_qkv": 8}}
        | {"ffn_config": {"ffn_hidden_size": 10752, "moe_num_experts": 16, "moe_top_k": 4}},
        {*ROTARY, "keys that are lost"},
    ),
    "longrope": (PHI3, {*ROTARY, "factors in the middle of a text", "one spelling"}),
    "longrope of equal factors": (
        PHI3 | {"rope_parameters": PHI3["rope_parameters"] | {"long_factor": [1.0] * 48}},
        {*ROTARY, "one spelling"},
    ),
    "nested": (
        GEMMA | {"rope_parameters": {**GEMMA["rope_parameters"], "full_attention": YARN | {"truncate": False}}},
        {*ROTARY, "truncate is lost"},
    ),
    "nested, truncated": (
        GEMMA | {"rope_parameters": {**GEMMA["rope_parameters"], "full_attention": YARN}},
        ROTARY,
    ),
    "gpt2": ({"model_type": "gpt2"}, {"shifted by padding", "past a learned table"}),
    "opt": ({"model_type": "opt"}, {"past a learned table"}),
    "deberta": (
        {"model_type": "deberta-v2", "relative_attention": True, "position_biased_input": False},
        {"no fast path"},
    ),
    "bloom": ({"model_type": "bloom"}, {"biases fall together"}),
    "falcon": ({"model_type": "falcon", "alibi": True}, {"biases fall together"}),
    "falcon, rotary": ({"model_type": "falcon", "alibi": False}, {*ROTARY, "angles in float32"}),
    "mpt": ({"model_type": "mpt"}, {"ends at the trained length"}),
    # Twelve heads in encoder and decoder, or different numbers.
    "bart": (
        {"model_type": "bart", "d_model": 768, "encoder_attention_heads": 12, "decoder_attention_heads": 12},
        {"shifted by padding", "past a learned table"},
    ),
    "prophetnet": (
        {"model_type": "prophetnet", "hidden_size": 768, "num_encoder_attention_heads": 12}
        | {"num_decoder_attention_heads": 16, "max_position_embeddings": 64},
        {"shifted by padding"},
    ),
    "bert": ({"model_type": "bert"}, {"shifted by padding", "past a learned table"}),
    "mpt, learned": ({"model_type": "mpt", "attn_config": {"alibi": False}}, None),
    "t5": ({"model_type": "t5"}, set()),
    "mamba": ({"model_type": "mamba"}, set()),
    "an image model's text": ({"model_type": "qwen2_vl"}, {"not in the weights", "rounded by a cast"}),
}


ADVICE_ALONE = ("keys that are lost", "truncate is lost", "no fast path")


def write_config(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def patient_for(folder: Path, case: str) -> Patient:
    return load_patient(write_config(folder, HITS[case][0]))


def measure_defect(name: str, model: Patient) -> Finding | None:
    return next(defect for defect in DEFECTS if defect.title == name).measure(model)


SLOW_CASES = ("t5", "nested, truncated", "an image model's text", "prophetnet")
QUICK_CASES = [case for case, (_, hits) in HITS.items() if hits is not None and case not in SLOW_CASES]


@pytest.mark.parametrize("case", daily_third(QUICK_CASES) + rest_slow(SLOW_CASES, 0))
def test_each_defect_hits_the_configs_that_have_it_and_no_others(case: str, tmp_path: Path):
    config, hits = HITS[case]
    diagnoses = list(examine(write_config(tmp_path, config)))
    assert [item.finding.words for item in diagnoses if item.finding and item.verdict == "not tried"] == []
    assert {item.defect.title for item in diagnoses if item.verdict == "hit"} == hits
    assert len(list(report_lines(diagnoses))) <= 20
    remedies = {item.defect.title: item.remedies for item in diagnoses if item.retest is not None}
    assert {name for name, words in remedies.items() if "mended by" not in words} == HITS_AFTER_ATTACH.get(case, set())
    assert set(remedies) == {name for name in hits if name not in ADVICE_ALONE}


def test_every_defect_hits_some_config_and_spares_another():
    for defect in DEFECTS:
        hit = [defect.title in hits for _, hits in HITS.values() if hits is not None]
        assert any(hit) and not all(hit), defect.title


def test_the_numbers_are_those_of_the_guide(tmp_path: Path):
    cast = measure_defect("rounded by a cast", patient_for(tmp_path, "llama"))
    assert cast is not None and cast.number == pytest.approx(2.0, abs=0.1)
    biases = measure_defect("biases fall together", patient_for(tmp_path, "bloom"))
    assert biases is not None and biases.number == 5 and "the last 64 of 4,096 keys have 5 values" in biases.words
    angles = measure_defect("angles in float32", patient_for(tmp_path, "llama, float32"))
    assert angles is not None and 1e-5 < angles.number < 1.4e-4 * 2
    weights = measure_defect("not in the weights", patient_for(tmp_path, "llama"))
    assert weights.words == "2 of 2 tensors of frequencies stay unfilled, and 0 are called missing"
    paths = measure_defect("past a learned table", patient_for(tmp_path, "gpt2"))
    assert (
        paths is not None and paths.number == 1024 and "position 1,024 of 1,024 fails with: IndexError" in paths.words
    )
    truncate = measure_defect("truncate is lost", patient_for(tmp_path, "nested"))
    assert truncate is not None and 0.005 < truncate.number < 1
    fast = measure_defect("no fast path", patient_for(tmp_path, "deberta"))
    assert fast is not None and fast.number == 24 * 512**2 * 4 / 2**20


def report_for(folder: Path, case: str) -> str:
    return "\n".join(report_lines(list(examine(write_config(folder, HITS[case][0])))))


def test_what_is_said_to_mend_a_defect_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    assert "horizon=4096)\n           tried: cosines of the first 2,048 positions change by 0 " in report_for(
        tmp_path, "dynamic"
    )
    assert "attach(model)\n           tried: the last 64 of 4,096 keys have 64 values" in report_for(tmp_path, "bloom")
    assert "no limit\n           tried: it goes on" in report_for(tmp_path, "mpt")
    assert " advice: truncate outside the nested parameters" in report_for(tmp_path, "nested")
    error = (
        "tried: position 512 of 512 fails with: ValueError: position 512 is past the learned table of 512 rows; posenc"
    )
    assert error in report_for(tmp_path, "bert")
    monkeypatch.setattr(doctors, "attach", lambda model, horizon: None)
    words = report_for(tmp_path, "bert")
    assert " mended by" in words and all("not mended by" in line for line in words.splitlines() if "mended" in line)


class RepairedRotary(nn.Module):
    """A rotary module whose frequencies are not buffers, so casts and files do not change them."""

    def __init__(self, exact: Tensor) -> None:
        super().__init__()
        self.exact = [exact.double()]

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None] * torch.cat((self.exact[0], self.exact[0]))
        return angles.cos(), angles.sin()


def test_a_repaired_library_is_measured_as_repaired(tmp_path: Path):
    model = patient_for(tmp_path, "llama, float32")
    for name in ("rounded by a cast", "angles in float32"):
        assert (finding := measure_defect(name, model)) is not None and finding.hits
    exact = 10_000.0 ** -(torch.arange(0, 128, 2, dtype=torch.float64) / 128)
    repaired_model = Patient(model.config)
    repaired_model.__dict__["rotary"] = [RepairedRotary(exact)]
    for title in ("rounded by a cast", "angles in float32"):
        assert (finding := measure_defect(title, repaired_model)) is not None and not finding.hits, finding


def test_repaired_biases_tables_and_frequencies_are_clear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def exact(mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
        return (mask.shape[1] ** -0.5 * torch.arange(mask.shape[1]).double()).expand(heads, 1, -1).clone()

    def assert_clear(case: str, name: str) -> None:
        finding = measure_defect(name, patient_for(tmp_path, case))
        assert finding is not None and not finding.hits, finding

    bloom = importlib.import_module("transformers.models.bloom.modeling_bloom")
    deberta = importlib.import_module("transformers.models.deberta_v2.modeling_deberta_v2")
    monkeypatch.setattr(bloom, "build_alibi_tensor", exact)
    assert_clear("bloom", "biases fall together")
    monkeypatch.setattr(deberta.DebertaV2PreTrainedModel, "_supports_sdpa", True)
    assert_clear("deberta", "no fast path")
    monkeypatch.setattr(defects, "model_states", lambda *_, **__: torch.zeros(1, 1, 1))
    assert_clear("mpt", "ends at the trained length")
    nested_yarn, right = patient_for(tmp_path, "nested"), nn.Module()
    schedule = YaRN(8.0, 4096, truncate=False)
    right.register_buffer("full_attention_inv_freq", Rotary(256, base=10_000.0, schedule=schedule).frequencies.float())
    nested_yarn.__dict__["rotary"] = [right]
    finding = measure_defect("truncate is lost", nested_yarn)
    assert finding is not None and not finding.hits and finding.number > 0


def test_a_model_that_cannot_be_tried_is_no_healthy_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("out of order")

    monkeypatch.setattr(defects, "model_states", fail)
    diagnoses = {diagnosis.defect.title: diagnosis for diagnosis in examine(write_config(tmp_path, HITS["gpt2"][0]))}
    padding = diagnoses["shifted by padding"]
    assert padding.verdict == "not tried"
    assert "not tried  shifted by padding: RuntimeError: out of order" in report_lines(list(diagnoses.values()))
    write_config(tmp_path, HITS["t5"][0])
    assert cli.main(["doctor", str(tmp_path)]) == 1


def test_the_command_ends_with_1_where_a_defect_hits(tmp_path: Path, capsys):
    write_config(tmp_path, HITS["bloom"][0])
    assert cli.main(["doctor", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert re.search(r"^hit +biases fall together: the last 64 .*\n +mended by: posenc", out, re.MULTILINE)
    assert f"13 known defects of transformers {transformers.__version__}: 1 hit, 1 clear, 11 no concern" in out
    assert cli.main(["doctor", str(tmp_path / "config.json"), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    (hit,) = [item for item in report["defects"] if item["verdict"] == "hit"]
    assert hit["name"] == "biases fall together" and hit["number"] == 5 and "attach" in hit["mended by"]
    assert report["transformers"] == transformers.__version__
    write_config(tmp_path, HITS["t5"][0])
    assert cli.main(["doctor", str(tmp_path)]) == 0


def test_where_nothing_is_tried_the_command_ends_with_1(tmp_path: Path, capsys):
    write_config(tmp_path, {"model_type": "vit"})
    assert cli.main(["doctor", str(tmp_path)]) == 1
    assert "13 no concern; nothing was tried" in capsys.readouterr().out


def test_what_is_no_model_of_transformers_is_refused(tmp_path: Path):
    for content, message in (
        ({"dim": 64, "n_layers": 2, "n_heads": 2}, "give the folder of one, or its config.json, with model_type"),
        ({"model_type": "lamma"}, "knows no model_type 'lamma'; a newer one may"),
        ({"model_type": "llama", "hidden_size": -3}, "hidden_size"),
    ):
        with pytest.raises(CannotRead, match=message):
            load_patient(write_config(tmp_path, content))


def test_the_guide_and_the_doctor_say_one_thing():
    text = (HOME / "docs" / "guides" / "known-defects.md").read_text(encoding="utf-8")
    cells = [cell.strip() for line in text.splitlines() if line.startswith("| ") for cell in line.split("|")]
    for defect in DEFECTS:
        matches = [cell for cell in cells if cell.startswith(f"{defect.sentence} *{defect.title}*")]
        assert len(matches) == 1, defect.title
    titles = re.findall(r"(?<!\*)\*([a-z0-9 ]+)\*(?!\*)", "\n".join(cells))
    assert sorted(titles) == sorted(defect.title for defect in DEFECTS)
