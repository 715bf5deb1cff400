"""Extend a tiny model: the measurements, the winner, the written checkpoint, and interrupted runs."""

import gc
import hashlib
import json
import math
import os
import re
import shlex
import shutil
import signal
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama
from forks import ForkedCli

from posenc import cli
from posenc.checkpoints.extension import by_encoding, choice, clock, methods, report
from posenc.checkpoints.extension import extend as module
from posenc.checkpoints.extension.extend import extend
from posenc.checkpoints.extension.runs import PassResults, hash_checkpoint
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.files import folder_writer
from posenc.checkpoints.formats.load import load
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.hidden_keys import OneKey
from posenc.checkpoints.vocabulary.reading import CannotRead

TARGET = 2 * tiny_llama.TRAINED_LENGTH
EXACT = {"factor": 2.0, "dtype": "float32", "chunk": 50, "start": 10, "samples": 1, "measures": ("perplexity",)}


@pytest.fixture(autouse=True)
def without_figures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip the report, whose figures are slow, in all tests but one."""
    if "from_the_command_line" not in request.node.name:
        monkeypatch.setattr(report, "write", lambda record, folder: folder / "report.html")


@pytest.fixture(scope="module")
def finished_run(model: Path, text: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """A finished run of several methods."""
    out = tmp_path_factory.mktemp("runs") / "done"
    return extend(Settings(str(model), methods=("linear", "dynamic", "rerope"), text=(text,), **EXACT), out), out


def settings(model: Path, text: str, *methods: str, **changes: Any) -> Settings:
    return Settings(str(model), methods=methods or ("yarn",), text=(text,), **{**EXACT, **changes})


def hashes(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.iterdir())}


def perplexity_in_transformers(folder: Path, text: str, length: int, start: int = 10) -> float:
    """Return the perplexity of a checkpoint in transformers alone, in one pass, in double precision."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    reader = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, local_files_only=True)
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = torch.tensor(tokenizer(Path(text).read_text())["input_ids"][start : start + length])
    with torch.no_grad():
        logits = reader(input_ids=ids[None]).logits[0, :-1]
    return float(torch.nn.functional.cross_entropy(logits, ids[1:]).exp())


def entry(record: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in record["methods"] if item["name"] == name)


def measures_of(entry: dict[str, Any]) -> set[str]:
    return {row["measure"] for row in entry["values"]}


def means(entry: dict[str, Any]) -> dict[int, float]:
    """Return length -> perplexity of all tokens."""
    return {row["length"]: row["value"] for row in entry["values"] if row["number"] == "mean"}


# What is measured


def test_the_model_as_it_is_comes_first_and_is_what_transformers_says(finished_run, model: Path, text: str) -> None:
    record, _ = finished_run
    assert [item["name"] for item in record["methods"]] == ["none", "linear", "dynamic", "rerope"]
    assert record["lengths"] == [96, 144, 192]
    assert list(means(entry(record, "none"))) == [96, 144, 192]
    for length, mean in means(entry(record, "none")).items():
        assert mean == pytest.approx(perplexity_in_transformers(model, text, length), rel=1e-4)


def test_dynamic_scaling_changes_nothing_up_to_the_trained_length_and_something_beyond(finished_run) -> None:
    record, _ = finished_run
    original, dynamic = (means(entry(record, name)) for name in ("none", "dynamic"))
    assert dynamic[96] == pytest.approx(original[96], rel=1e-5)
    assert abs(math.log(dynamic[192] / original[192])) > 1e-3
    assert entry(record, "dynamic")["passes"] == 3 and entry(record, "linear")["passes"] == 1


def test_every_finished_pass_has_a_line_with_its_losses_and_what_they_depend_on(finished_run) -> None:
    record, out = finished_run
    lines = [json.loads(line) for line in (out / "measurements.jsonl").read_text().splitlines()]
    assert [row["length"] for row in record["plan"]["rows"]] == [96, 144, 192]
    assert [(line["name"], line["facts"]["length"], line["facts"]["horizon"]) for line in lines] == [
        ("none", 192, None),
        ("linear", 192, None),
        ("dynamic", 96, 96),
        ("dynamic", 144, 144),
        ("dynamic", 192, 192),
        ("rerope", 192, None),
    ]
    loss = lines[0]["losses"][0]
    assert len(loss) == 191
    assert math.exp(sum(loss) / 191) == pytest.approx(means(entry(record, "none"))[192])
    assert all(line["seconds"] > 0 for line in lines)


def test_several_windows_lie_behind_one_another(model: Path, text: str, tmp_path: Path) -> None:
    record = extend(settings(model, text, "none", samples=2), tmp_path / "run")
    parts = [perplexity_in_transformers(model, text, TARGET, start) for start in (10, 10 + TARGET)]
    mean = math.exp(sum(map(math.log, parts)) / 2)
    assert means(record["methods"][0])[192] == pytest.approx(mean, rel=1e-4)
    samples = record["methods"][0]["values"][-1]["each"]
    assert samples == pytest.approx([math.log(part) for part in parts], rel=1e-4)
    sha256 = hashlib.sha256(tiny_llama.TEXT.encode()).hexdigest()
    facts = {"text": sha256, "start": 10, "windows": 2, "stride": 192, "chunk": 50}
    assert record["measures"][0]["facts"] == facts
    assert record["measures"][0]["on"] == (
        f"novel.txt, {len(tiny_llama.TEXT):,} tokens, SHA-256 {sha256}; 2 windows of 192 tokens, from token 10; "
        f"chunks of 50"
    )


def test_lengths_in_between_and_those_asked_for() -> None:
    assert methods.measurement_lengths(8192, 32768, (1000,)) == (1000, 8192, 12288, 16384, 24576, 32768)
    assert methods.measurement_lengths(100, 120) == (100, 120)


def test_a_baseline_is_the_model_as_it_is_in_windows(model: Path, text: str, tmp_path: Path) -> None:
    record = extend(settings(model, text, "windows", "dynamic"), tmp_path / "run")
    assert [item["name"] for item in record["methods"]] == ["none", "windows", "dynamic"]
    windows = means(entry(record, "windows"))
    checkpoint = load(model)
    ids = torch.tensor(checkpoint.tokenizer(Path(text).read_text())["input_ids"][10 : 10 + 192])
    for length in (144, 192):
        # The first window holds 96 tokens; each that follows ends 48 later.
        losses = perplexity.losses(checkpoint.model, ids[:96])
        for end in range(144, length + 1, 48):
            losses = torch.cat((losses, perplexity.losses(checkpoint.model, ids[end - 96 : end])[-48:]))
        assert windows[length] == pytest.approx(float(losses.mean().exp()), rel=1e-4)
    assert set(windows) == {144, 192}


def test_a_scaled_model_is_given_another_schedule_on_the_command_line(text: str, tmp_path: Path, capsys) -> None:
    yarn = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 2.0, "original_max_position_embeddings": 48}
    tiny_llama.model(rope_parameters=yarn).save_pretrained(tmp_path / "model")
    tiny_llama.tokenizer().save_pretrained(tmp_path / "model")
    command = ["extend", str(tmp_path / "model"), "--text", text, *"--start 10 --measures perplexity --method".split()]
    assert cli.main([*command, "llama3", "--out", str(tmp_path / "refused")]) == 2
    assert "--replace puts it in place of that" in capsys.readouterr().err and not (tmp_path / "refused").exists()
    for arguments, words in (([""], "name at least one method"), (["none", "--measures="], "no measure named ''")):
        assert cli.main([*command, *arguments, "--out", str(tmp_path / "refused")]) == 2
        assert words in capsys.readouterr().err and not (tmp_path / "refused").exists()
    out = tmp_path / "run"
    assert cli.main([*command, "llama3,yarn(beta_fast=8, beta_slow=2)", "--replace", "--json", "--out", str(out)]) == 0
    record = json.loads(capsys.readouterr().out)
    assert [item["name"] for item in record["methods"]] == ["none", "llama3", "yarn(beta_fast=8, beta_slow=2)"]
    assert "llama3(factor=4.0, trained_length=48)" in record["methods"][1]["spec"]
    assert record["stretch"] == (
        "The model serves 96 tokens now: it had 48 before its yarn by 2. Stretched by 2 it is to serve 192."
    )
    again = shlex.split(record["made"]["command"])
    assert "--replace" in again and "llama3,yarn(beta_fast=8, beta_slow=2)" in again


# Who wins


LAST_TOKENS, ALL_TOKENS = "perplexity of the last 512 tokens", "perplexity of all tokens"


def row(number: str, length: int, value: float, *samples: float) -> dict[str, Any]:
    """Return a row of one window, or of several with their losses."""
    error = None if len(samples) < 2 else 0.1 * value
    return {"measure": "m", "number": number, "length": length, "value": value, "error": error, "each": list(samples)}


def scores(name: str, mean: float, last: float, *samples: float, **fields: Any) -> dict[str, Any]:
    values = [row("mean", 100, mean), row("last", 100, mean), row("mean", 200, last), row("last", 200, last, *samples)]
    return {"name": name, "values": values, "config": {}, "baseline": False, "words": "", **fields}


def winner(*methods: dict[str, Any], requests: tuple[str, ...] = ("all",), maximise: bool = False) -> tuple[str, str]:
    numbers = [
        {"name": "last", "words": LAST_TOKENS, "more_is_better": maximise},
        {"name": "mean", "words": ALL_TOKENS, "more_is_better": maximise},
    ]
    measures = [{"name": "m", "numbers": numbers, "price": "mean"}]
    record = {"methods": [*methods], "trained": 100, "target": 200, "measures": measures}
    best, words = choice.choose(requests, record)
    return best["name"], f"{words} {choice.describe_price(best, record)}"


ORIGINAL = scores("none", 10.0, 1000.0)


def test_the_lowest_last_tokens_win_among_those_that_keep_the_trained_length() -> None:
    name, words = winner(ORIGINAL, scores("a", 10.4, 20.0), scores("b", 10.6, 15.0), scores("c", 9.9, 30.0))
    assert name == "a"
    assert words == (
        f"a wins: at 200 tokens the {LAST_TOKENS} is 20.00, where the model as it is has 1,000. What a costs short "
        f"inputs: at the trained 100 tokens the {ALL_TOKENS} is 10.40, 4.0% above the 10.00 of before."
    )


def test_more_may_be_better() -> None:
    original = scores("none", 0.9, 0.1)
    name, words = winner(original, scores("a", 0.87, 0.5), scores("b", 0.8, 0.7), maximise=True)
    assert name == "a" and "3.3% below the 0.900 of before" in words
    assert winner(original, scores("a", 0.8, 0.5), maximise=True)[0] == "none"


def test_near_ties_are_named() -> None:
    _, words = winner(ORIGINAL, scores("a", 10.0, 20.0), scores("b", 10.0, 20.19), scores("c", 10.0, 20.21))
    assert "; b is no different" in words and "c" not in words.split(";")[1].split(".")[0]


def test_what_is_within_the_error_of_its_difference_is_no_winner() -> None:
    """A paired difference has a small error even where windows differ much."""
    original = scores("none", 10.0, 10.0, 1.0, 2.0, 3.0)
    name, words = winner(original, scores("a", 10.0, 9.0, 0.7, 2.1, 2.9))
    assert name == "none" and "a, the best of them, has 9.00 ± 0.900, which is no difference" in words
    assert winner(original, scores("a", 10.0, 9.0, 0.9, 1.9, 2.89))[0] == "a"
    # The same losses without a pairing.
    assert winner(original, scores("a", 10.0, 9.0, 0.9, 1.9))[0] == "none"
    # Within 1 %.
    assert winner(scores("none", 10.0, 10.0), scores("a", 10.0, 9.91))[0] == "none"
    assert winner(scores("none", 10.0, 10.0), scores("a", 10.0, 9.8))[0] == "a"
    assert winner(original, scores("a", 10.0, 9.0, 0.7, 2.1, 2.9), requests=("a",))[0] == "a"


def test_a_winner_that_pays_with_short_texts_says_so() -> None:
    name, words = winner(scores("none", 1.0, 1000.0), scores("a", 2.0, 20.0))
    assert name == "none" and words.startswith("No method is better than the model as it is")
    assert winner(scores("none", math.inf, 1000.0), scores("a", 2.0, 20.0))[0] == "a"


def test_a_trial_more_or_less_at_the_trained_length_is_no_price() -> None:
    """One of three keys less is within two standard errors, none of them is not."""

    def keys(name: str, last: float, *trials: float) -> dict[str, Any]:
        values = [row("mean", 100, sum(trials) / len(trials), *trials), row("last", 200, last)]
        return {"name": name, "values": values, "config": {}, "baseline": False, "words": ""}

    original, all_right = keys("none", 0.1, 1, 1, 1), keys("ntk", 0.3, 1, 1, 1)
    assert winner(original, keys("yarn", 0.6, 1, 0, 1), all_right, maximise=True)[0] == "yarn"
    assert winner(original, keys("yarn", 0.6, 0, 0, 0), all_right, maximise=True)[0] == "ntk"


def test_the_one_method_asked_for_is_written_even_if_it_loses() -> None:
    worse = scores("yarn", 10.0, 2000.0)
    name, words = winner(ORIGINAL, worse, requests=("yarn",))
    assert name == "yarn" and "yarn is written because it was asked for." in words
    assert winner(ORIGINAL, worse, requests=("yarn", "windows"))[0] == "none"
    windows = scores("windows", 10.0, 1500.0, baseline=True)
    name, words = winner(ORIGINAL, windows, worse, requests=("yarn", "windows"))
    assert name == "yarn" and "Windows () gives 1,500: worse." in words
    assert winner(ORIGINAL, worse, requests=("yarn", "ntk"))[0] == "none"


# What is written


def test_the_checkpoint_says_what_was_measured_and_transformers_loads_it(
    model: Path, text: str, tmp_path: Path
) -> None:
    old_hashes = hashes(model)
    record = extend(settings(model, text, "yarn"), tmp_path / "run")
    assert hashes(model) == old_hashes
    checkpoint = Path(record["written"]["path"])
    assert checkpoint == tmp_path / "run" / "checkpoint"
    for length, mean in means(entry(record, "yarn")).items():
        assert mean == pytest.approx(perplexity_in_transformers(checkpoint, text, length), rel=1e-4)
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["max_position_embeddings"] == TARGET
    assert config["rope_parameters"]["rope_type"] == "yarn" and config["rope_parameters"]["factor"] == 2.0
    assert config["rope_parameters"]["original_max_position_embeddings"] == tiny_llama.TRAINED_LENGTH
    assert hashes(checkpoint)["tokenizer.json"] == old_hashes["tokenizer.json"]
    old, new = load(model).model.state_dict(), load(checkpoint).model.state_dict()
    assert all(old[name].equal(new[name]) for name in old)


def test_the_winner_of_several_is_written(model: Path, text: str, tmp_path: Path, monkeypatch) -> None:
    # Random weights have no winner of their own.
    monkeypatch.setattr(choice, "choose", lambda requests, record: (entry(record, "llama3"), "llama3 wins"))
    record = extend(settings(model, text, "linear", "llama3"), tmp_path / "run")
    assert record["winner"] == record["written"]["method"] == "llama3"
    expected = perplexity_in_transformers(tmp_path / "run" / "checkpoint", text, TARGET)
    assert means(entry(record, "llama3"))[TARGET] == pytest.approx(expected, rel=1e-4)


def test_nothing_is_written_where_nothing_is_better(finished_run) -> None:
    record, out = finished_run
    assert record["winner"] == "none" and not (out / "checkpoint").exists()
    assert record["written"]["words"].startswith("Nothing was written: the model stays as it is")
    assert record["in_words"].startswith("No method is better than the model as it is")


def test_a_method_without_a_config_is_measured_and_not_written(model: Path, text: str, tmp_path: Path) -> None:
    record = extend(settings(model, text, "rerope"), tmp_path / "run")
    assert record["written"]["path"] is None and not (tmp_path / "run" / "checkpoint").exists()
    assert "Nothing was written for rerope: transformers has no config key" in record["written"]["words"]


@pytest.mark.slow
def test_a_finished_run_is_asked_for_other_methods_and_makes_their_passes_alone(
    model: Path, text: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def measured_names(*methods: str, **changes: Any) -> list[str]:
        """Run these methods, and return the methods of all kept passes."""
        record = extend(settings(model, text, *methods, **changes), out)
        assert [item["name"] for item in record["methods"]] == ["none", *methods]
        lines = map(json.loads, (out / "measurements.jsonl").read_text().splitlines())
        return [line["name"] for line in lines if "name" in line]

    assert measured_names("rerope", "dual-chunk") == ["none", "rerope", "dual-chunk"]
    assert not (out / "checkpoint").exists()
    assert measured_names("linear") == ["none", "rerope", "dual-chunk", "linear"]
    linear = hashes(out / "checkpoint")
    assert measured_names("linear", lengths=(50,)) == ["none", "rerope", "dual-chunk", "linear"]
    assert hashes(out / "checkpoint") == linear
    assert measured_names("yarn")[4:] == ["yarn"]
    assert hashes(out / "checkpoint")["config.json"] != linear["config.json"]
    assert measured_names("linear")[5:] == [] and hashes(out / "checkpoint") == linear
    measured_names("rerope")
    assert not (out / "checkpoint").exists()


def test_a_checkpoint_that_does_not_do_what_was_measured_is_taken_away(
    model: Path, text: str, tmp_path: Path, monkeypatch
) -> None:
    write = folder_writer.write_folder

    def with_other_weights(where: Path, config: dict[str, Any], tensors: Any, **options: Any) -> Path:
        return write(where, config, ((name, tensor * 1.5) for name, tensor in tensors), **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(by_encoding, "write_folder", with_other_weights)
        with pytest.raises(RuntimeError, match=r"written checkpoint has a mean loss of .* may differ by 0.001 nats"):
            extend(settings(model, text, "linear"), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint").exists()

    def with_other_rotary(where: Path, config: dict[str, Any], tensors: Any, **options: Any) -> Path:
        return write(where, config | {"rope_scaling": {"rope_type": "linear", "factor": 2.01}}, tensors, **options)

    # An older checkpoint stays, with its record.
    extend(settings(model, text, "linear"), tmp_path / "run")
    older, record = hashes(tmp_path / "run" / "checkpoint"), (tmp_path / "run" / "record.json").read_bytes()
    monkeypatch.setattr(by_encoding, "write_folder", with_other_rotary)
    with pytest.raises(
        RuntimeError, match=r"says something else than planned: .*layer 0 .*factor=2.0\)\) and .*factor=2.01\)\)"
    ):
        extend(settings(model, text, "linear"), tmp_path / "run")
    assert hashes(tmp_path / "run" / "checkpoint") == older
    assert (tmp_path / "run" / "record.json").read_bytes() == record
    assert not list((tmp_path / "run").glob("*-checkpoint"))


def test_the_model_is_let_go_of_before_what_was_written_is_loaded(
    model: Path, text: str, tmp_path: Path, monkeypatch
) -> None:
    """Two copies of a large model do not fit."""
    from posenc.checkpoints.formats import load as loader

    models: list[weakref.ref[Any]] = []
    read, compare = loader.load, by_encoding.loss_difference

    def noting_load(*args: Any, **options: Any) -> Any:
        checkpoint = read(*args, **options)
        models.append(weakref.ref(checkpoint.model))
        return checkpoint

    def freed_compare(*args: Any) -> float:
        gc.collect()
        assert [reference() for reference in models] == [None]
        return compare(*args)

    monkeypatch.setattr(loader, "load", noting_load)
    monkeypatch.setattr(by_encoding, "loss_difference", freed_compare)
    assert extend(settings(model, text, "linear"), tmp_path / "run")["written"]["path"]


@pytest.mark.slow
def test_a_config_that_says_it_by_older_keys_says_by_all_keys_what_was_measured(
    model: Path, text: str, tmp_path: Path
) -> None:
    """transformers 5 follows an old `rope_scaling` before `rope_parameters`, and 4 knows nothing else."""
    folder = tmp_path / "old"
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    half = tiny_llama.TRAINED_LENGTH // 2
    config |= {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 2.0}, "max_position_embeddings": half}
    (folder / "config.json").write_text(json.dumps(config))
    record = extend(settings(folder, text, "linear", factor=2.0), tmp_path / "run")
    new_config = json.loads((tmp_path / "run" / "checkpoint" / "config.json").read_text())
    assert new_config["rope_parameters"] == {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}
    assert new_config["rope_scaling"] == {"type": "linear", "rope_type": "linear", "factor": 4.0}
    assert new_config["rope_theta"] == 500.0
    assert new_config["max_position_embeddings"] == tiny_llama.TRAINED_LENGTH
    changes = {"rope_parameters", "rope_scaling", "max_position_embeddings"}
    assert {key for key in new_config if new_config[key] != config.get(key)} == changes
    assert set(entry(record, "linear")["config"]) == changes
    expected = perplexity_in_transformers(tmp_path / "run" / "checkpoint", text, tiny_llama.TRAINED_LENGTH)
    assert means(entry(record, "linear"))[tiny_llama.TRAINED_LENGTH] == pytest.approx(expected, rel=1e-4)


def test_nothing_is_measured_where_transformers_would_serve_something_else(
    model: Path, text: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr(perplexity, "losses", lambda *_, **__: pytest.fail("a pass was made"))
    monkeypatch.setattr(methods, "with_positions", lambda config, part: config)
    with pytest.raises(
        ValueError, match=r"linear cannot be written .* layer 0 rotary\(base=500, schedule=linear.* and rotary\(base"
    ):
        extend(settings(model, text, "linear"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_changed_of_a_config_is_told_where_it_lies() -> None:
    old = {"a": 1, "text_config": {"b": 2, "rope_parameters": {"x": 1, "y": 2}}}
    new = {"a": 1, "c": None, "text_config": {"b": 2, "rope_parameters": {"x": 3}}}
    assert module.changed_keys(old, new) == {"c": None, "text_config": {"rope_parameters": {"x": 3}}}


# Interrupted runs


def test_a_cut_run_goes_on_with_what_is_left(model: Path, text: str, tmp_path: Path, monkeypatch) -> None:
    passes: list[int] = []
    losses = perplexity.losses

    def count_losses(model: Any, ids: torch.Tensor, **options: Any) -> torch.Tensor:
        passes.append(ids.shape[-1])
        if len(passes) == 3:
            raise KeyboardInterrupt
        return losses(model, ids, **options)

    monkeypatch.setattr(perplexity, "losses", count_losses)
    run_settings, out = settings(model, text, "yarn", samples=2), tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        extend(run_settings, out)
    assert passes == [TARGET] * 3 and not (out / "checkpoint").exists()
    # A killed process leaves a partial line.
    with open(out / "measurements.jsonl", "a") as file:
        file.write('\n{"key": "12')
    record = extend(run_settings, out)
    # The two windows of the second method run again, then the check of the checkpoint.
    assert passes[3:] == [TARGET, TARGET, tiny_llama.TRAINED_LENGTH]
    again = extend(run_settings, out)
    assert passes[6:] == [tiny_llama.TRAINED_LENGTH]
    assert [item["name"] for item in record["methods"]] == ["none", "yarn"]
    assert again["methods"] == record["methods"] and again["written"] == record["written"]


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_from_the_command_line_an_interrupt_is_one_sentence_and_the_same_command_goes_on(
    model: Path, text: str, tmp_path: Path, monkeypatch, capsys
) -> None:
    out = tmp_path / "run"
    arguments = ["extend", str(model), "--factor", "2", "--method", "ntk", "--text", text, "--out", str(out)]
    arguments += ["--dtype", "float32", "--start", "10"]
    for number, how in ((signal.SIGINT, "interrupted"), (signal.SIGTERM, "ended by SIGTERM")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(perplexity, "losses", lambda *_, number=number, **__: signal.raise_signal(number))
            assert cli.main(arguments) == 128 + number
        lines = capsys.readouterr().err.splitlines()
        assert lines[-1] == f"posenc: {how}; what was finished is kept, give the same command again"
        # The lines before it name the model and the planned memory.
        assert len(lines) == 3 and "By plan 192 tokens" in lines[1]
    # A kill leaves a partial checkpoint.
    (out / ".checkpoint.1-0123abcd.part").mkdir()
    assert cli.main(arguments) == 0
    answer = capsys.readouterr().out
    assert (
        "mean at 96" in answer
        and "What ntk costs short inputs" in answer
        and f"Checkpoint: {out / 'checkpoint'}" in answer
    )
    assert (out / "report.html").exists() and (out / "report.md").exists()
    assert not list(out.glob(".*.part"))


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the command is forked")
def test_a_process_that_is_interrupted_at_any_moment_ends_with_130_and_goes_on(
    model: Path, text: str, tmp_path: Path, monkeypatch
) -> None:
    def draw_for_long(*args: Any, write=report.write) -> None:
        start = time.monotonic()
        while time.monotonic() < start + 60:
            write(*args)

    # Drawing goes on until the interrupt.
    monkeypatch.setattr(report, "write", draw_for_long)
    out = tmp_path / "run"
    options = "--method linear,yarn,ntk --samples 9 --measures perplexity"
    arguments = ["extend", str(model), "--text", text, *options.split()]
    measurements = out / "measurements.jsonl"

    def lines() -> int:
        return len(measurements.read_bytes().splitlines()) if measurements.exists() else 0

    moments = {
        "it loads": lambda: True,
        "the first pass is made": out.exists,
        "one is kept": lambda: lines() >= 1,
        "more are": lambda: lines() >= 3,
        "the report is drawn": (out / "record.json").exists,
    }
    for when, condition in moments.items():
        count = lines()
        command = ForkedCli(*arguments, "--out", str(out))
        assert os.read(command.streams[1], 1)
        command.wait_for(condition)
        command.kill(signal.SIGINT)
        code, _, errors = command.outcome()
        assert code == 130 and "posenc: interrupted; what was finished is kept" in errors, (when, code, errors)
        assert "Traceback" not in errors and lines() >= count, (when, errors)
    monkeypatch.undo()
    assert cli.main([*arguments, "--out", str(out)]) == 0


def test_a_result_is_kept_by_everything_that_it_depends_on(tmp_path: Path) -> None:
    results = PassResults(tmp_path / "a" / "kept.jsonl")
    assert results.get_or_run({"x": 1}, lambda: {"value": 1})["value"] == 1
    assert results.get_or_run({"x": 2}, lambda: {"value": 2})["value"] == 2
    again = PassResults(tmp_path / "a" / "kept.jsonl")
    assert {"x": 1} in again and {"x": 3} not in again
    assert again.get_or_run({"x": 1}, lambda: {"value": 9})["value"] == 1


def test_time_left_is_said_every_few_seconds(monkeypatch) -> None:
    now = [0.0]
    monkeypatch.setattr(clock.time, "monotonic", lambda: now[0])
    messages: list[str] = []
    progress = clock.Clock(messages.append)
    progress.expect(400.0)
    with progress.track("yarn, 8,192 tokens", 100.0) as tell:
        for seconds, share in ((5.0, 0.25), (20.0, 0.5), (25.0, 0.75)):
            now[0] = seconds
            tell(share)
    now[0] = 40.0
    with progress.track("ntk", 300.0) as tell:
        tell(1 / 3)
    now[0] = 80.0
    with progress.track("an unexpected task", 100.0) as tell:
        now[0] = 100.0
        tell(0.25)
    assert messages == [
        "yarn, 8,192 tokens: 50%; about 2 min left in all",
        "ntk: 33%; about 40 s left in all",
        "an unexpected task: 25%; about 18 s left in all",
    ]


# Hidden keys


def test_keys_are_asked_for_beyond_the_trained_length_only_if_it_can_be_done_there(
    model: Path, text: str, tmp_path: Path, monkeypatch
) -> None:
    lengths: list[int] = []

    def fake_run(right: bool):
        def run(measure: OneKey, model: Any, length: int, *_: Any) -> dict[str, Any]:
            lengths.append(length)
            return {"right": [right] * 3, "depths": [0.0, 0.5, 1.0], "read": 3 * length}

        return run

    changes = {"measures": (), "samples": 3}
    monkeypatch.setattr(OneKey, "run", fake_run(False))
    record = extend(settings(model, text, "linear", **changes), tmp_path / "cannot")
    assert lengths == [tiny_llama.TRAINED_LENGTH] and "one-key" not in measures_of(entry(record, "linear"))
    (further,) = record["further"]
    assert not further["able"] and "of what is asked that is said of 0 ± 0.200, less than 0.856" in further["words"]
    lengths.clear()
    monkeypatch.setattr(OneKey, "run", fake_run(True))
    record = extend(settings(model, text, "linear", **changes), tmp_path / "can")
    assert lengths == [tiny_llama.TRAINED_LENGTH, TARGET, TARGET]
    (right,) = [value for value in entry(record, "linear")["values"] if value["measure"] == "one-key"]
    assert (right["length"], right["value"]) == (TARGET, 1.0) and record["further"][0]["able"]


def test_what_the_model_cannot_do_cannot_decide(model: Path, text: str, tmp_path: Path) -> None:
    run_settings = Settings(str(model), 2.0, ("linear",), measures=("one-key",))
    with pytest.raises(ValueError, match="So one-key cannot decide; name another of --measures first"):
        extend(run_settings, tmp_path / "run")


def test_a_length_without_room_for_a_key_says_so(model: Path, text: str, tmp_path: Path) -> None:
    record = extend(settings(model, text, "linear", measures=()), tmp_path / "run")
    words = r"The measure one-key was not tried: the text of this question takes \d+ tokens at least, got 96"
    assert re.search(words, record["further"][0]["words"])


# Errors, before anything is written


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"factor": 40.0}, r"novel.txt has 1,8\d\d tokens, and a window of 3,840 from token 10 takes 3,850"),
        ({"methods": ("yarm",)}, "no method named 'yarm'"),
        ({"lengths": (500,)}, "lengths go from 2 to the target of 192, got 500"),
        ({"measures": ("perplexitty",)}, "no measure named 'perplexitty'.*did you mean 'perplexity'"),
        ({"measures": ("masked",)}, "masked does not fit a LlamaForCausalLM; it is measured by perplexity, one-key"),
        (
            {"measures": ("one-key",)},
            "--start would change nothing here .one-key reads --cache, --chunk, --samples, --text",
        ),
        (
            {"methods": ("windows",), "measures": ("one-key",), "start": None},
            "windows is a way to use the model as it is that none of one-key has",
        ),
        ({"dtype": "int8"}, "dtype must be float32, bfloat16"),
        ({"factors": "f.json"}, "f.json: there is no such file"),
        ({"text": ("nothing.txt",)}, "nothing.txt: there is no such file"),
    ],
)
def test_a_mistake_is_refused_before_anything_is_made(
    changes: dict[str, Any], message: str, model: Path, text: str, tmp_path: Path
) -> None:
    fields = {"path": str(model), "methods": ("yarn",), "text": (text,), **EXACT, **changes}
    with pytest.raises(ValueError, match=message):
        extend(Settings(**fields), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples must be 1 or more, got 0"),
        ({"chunk": 0}, "chunk must be 1 or more, got 0"),
        ({"start": -1}, "start counts tokens of the text from 0, got -1"),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(**{"path": "it", "factor": 2.0, **changes})


def test_a_folder_that_holds_something_else_is_left_alone(model: Path, text: str, tmp_path: Path, finished_run) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    with pytest.raises(ValueError, match="exists and is no run of posenc extend"):
        extend(settings(model, text), tmp_path / "mine")
    assert hashes(tmp_path / "mine").keys() == {"thesis.txt"}
    with pytest.raises(ValueError, match=r"other settings \(chunk\); .* \(lengths, measures, methods may be others\)"):
        extend(settings(model, text, "yarn", chunk=51), finished_run[1])
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        extend(settings(model, text), tmp_path / "file")


def test_a_model_without_a_tokenizer_cannot_read(text: str, tmp_path: Path) -> None:
    tiny_llama.model().save_pretrained(tmp_path / "bare")
    with pytest.raises(CannotRead, match="has no tokenizer"):
        extend(settings(tmp_path / "bare", text), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_pipes_devices_and_links_beside_a_model_are_not_measured(tmp_path: Path) -> None:
    """Opening them would block, or never end."""
    (tmp_path / "config.json").write_text("{}")
    digest = hash_checkpoint(tmp_path)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zeros.txt").symlink_to("/dev/zero")
    (tmp_path / "folder.json").mkdir()
    assert hash_checkpoint(tmp_path) == digest
    (tmp_path / "users.txt").symlink_to("/etc/passwd")
    with pytest.raises(CannotRead, match="it is a link to '/etc/passwd', outside its folder"):
        hash_checkpoint(tmp_path)


def test_the_command_can_be_given_again() -> None:
    run_settings = Settings("smollm2", 2.0, ("yarn", "ntk"), (), ("a b.txt",), samples=3, factors="f.json")
    assert run_settings.command(Path("out")) == (
        "posenc extend smollm2 --factor 2 --method yarn,ntk --text 'a b.txt' --samples 3 --longrope-factors f.json "
        "--out out"
    )
