"""Records: one JSON line, under a key that changes with every setting."""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

import posenc
from posenc.foreign import CannotRead
from posenc.lab import store
from posenc.lab.experiments.recipes import recipe
from posenc.lab.runs import record
from posenc.lab.runs.train import Run, start, train
from posenc.lab.texts import data

SHAPES = {
    "": (
        "schema key experiment encoding label parameters versions text trained_tokens steps train_cpu_s cpu_s wall_s "
        "steps_to_learned "
        "cpu_s_to_learned learned curve in_distribution lengths depths ablation order attention pictures"
    ),
    "parameters": "model encoding",
    "versions": "posenc torch python platform processor threads",
    "ablation": "intact removed shuffled shifted swapped",
    "attention": "tokens with without",
    "pictures": "added wavelengths bias rotation",
}
"""The keys that a record always has, and those of what it holds."""

OF_LISTS = {
    "curve": "step loss score cpu_s",
    "lengths": "length factor exact_match token_accuracy sequences bits_per_byte "
    "sliding_bits_per_byte perplexity_ratio",
    "order": "attention layers position equivariance difference",
}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("".join(f"{i} bottles on the wall\n" for i in range(3000)))
    return str(path)


def train_run(task: str, spec: str | tuple[str, ...], **changes) -> Run:
    small = {"train_length": 4, "dim": 16, "heads": 2, "layers": 2, "steps": 6, "evaluate_every": 2, "batch": 4}
    return train(start(recipe(task, spec, 3, **(small | changes))))


def make_record(task: str, spec: str | tuple[str, ...], **changes) -> dict[str, Any]:
    return record.run_record(train_run(task, spec, **changes), time.monotonic())


@pytest.fixture(scope="module")
def of_copy() -> dict[str, Any]:
    return make_record("copy", "rotary + t5_bias")


@pytest.fixture(scope="module")
def of_text(book: str) -> dict[str, Any]:
    return make_record("text", ("sinusoidal", "none"), text=book, train_length=8)


@pytest.fixture(params=["of_copy", "of_text"])
def entry(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(request.param)


def test_every_key_is_there_and_no_other(entry: dict) -> None:
    for path, keys in SHAPES.items():
        assert set(entry[path] if path else entry) == set(keys.split())
    for path, keys in OF_LISTS.items():
        assert entry[path] and all(set(item) == set(keys.split()) for item in entry[path])


def test_a_record_is_plain_json_and_comes_back_the_same(entry: dict, tmp_path: Path) -> None:
    json.dumps(entry, allow_nan=False)
    path = record.write(entry, tmp_path)
    assert path.name == f"{entry['key']}.json" and path.read_text().count("\n") == 1
    # JSON has lists where there were tuples.
    assert record.read(path) == json.loads(json.dumps(entry))


def test_a_record_says_what_was_built_and_how_large_it_is(of_copy: dict, of_text: dict) -> None:
    assert of_copy["encoding"].startswith("rotary(base=1000.0") and " + t5_bias(" in of_copy["encoding"]
    assert of_copy["parameters"]["encoding"] == 32 * 2 and of_copy["parameters"]["model"] > 64
    assert of_text["encoding"] == "sinusoidal / none" and of_text["parameters"]["encoding"] == 0
    assert of_copy["experiment"]["spec"] == "rotary + t5_bias" and of_copy["steps"] == 6


def test_a_record_says_how_long_its_run_took(entry: dict) -> None:
    assert 0 < entry["train_cpu_s"] < entry["cpu_s"] and 0 < entry["wall_s"] < 600


def test_a_record_of_a_text_names_it_by_its_hash(of_copy: dict, of_text: dict, book: str) -> None:
    text = data.load_text(book)
    assert of_copy["text"] is None
    assert of_text["text"] == text.record_entry()
    assert of_text["text"]["name"] == book and len(of_text["text"]["sha256"]) == 64


def test_each_task_has_its_own_score_and_the_other_is_null(of_copy: dict, of_text: dict) -> None:
    assert set(of_copy["in_distribution"]) == {"exact_match", "token_accuracy"}
    assert set(of_text["in_distribution"]) == {"bits_per_byte", "context_gain"}
    assert of_text["in_distribution"]["bits_per_byte"] == of_text["lengths"][0]["bits_per_byte"]
    for row in of_copy["lengths"]:
        assert row["bits_per_byte"] is None and row["exact_match"] is not None
    for row in of_text["lengths"]:
        assert row["exact_match"] is None and row["bits_per_byte"] > 0
    assert (of_text["steps_to_learned"], of_text["cpu_s_to_learned"]) == (None, None)


def test_the_first_length_is_the_trained_one(entry: dict) -> None:
    assert entry["lengths"][0]["length"] == entry["experiment"]["train_length"] and entry["lengths"][0]["factor"] == 1.0
    assert [row["length"] for row in entry["lengths"][1:]] == list(entry["experiment"]["test_lengths"])


def test_attention_is_weights_of_every_layer_and_head_that_sum_to_one(entry: dict) -> None:
    tokens = len(entry["attention"]["tokens"])
    assert 2 <= tokens <= 32 and entry["attention"]["tokens"][0] == "^"
    for kind in ("with", "without"):
        layers = entry["attention"][kind]
        assert len(layers) == 2 and all(len(heads) == 2 for heads in layers)
        for rows in (rows for heads in layers for rows in heads):
            assert len(rows) == tokens and all(len(row) == tokens for row in rows)
            assert all(math.fsum(row) == pytest.approx(1, abs=0.005) for row in rows)
            assert all(weight == 0 for i, row in enumerate(rows) for weight in row[i + 1 :])
            assert all(weight == round(weight, 4) for row in rows for weight in row)
    assert entry["attention"]["with"] != entry["attention"]["without"]


def test_pictures_hold_what_the_encoding_has_and_null_for_the_rest(of_copy: dict, of_text: dict) -> None:
    tokens = 10
    assert of_copy["pictures"]["added"] is None
    assert len(of_copy["pictures"]["wavelengths"]) == 4
    assert of_copy["pictures"]["bias"]["distance"] == list(range(2 * tokens))
    assert [len(head) for head in of_copy["pictures"]["bias"]["heads"]] == [2 * tokens] * 2
    assert len(of_copy["pictures"]["rotation"]) == 2 * tokens and of_copy["pictures"]["rotation"][0] == 1.0
    assert [len(row) for row in of_text["pictures"]["added"]] == [16] * 8
    assert of_text["pictures"]["added"][0][:4] == [0.0, 1.0, 0.0, 1.0]
    assert of_text["pictures"]["bias"] is of_text["pictures"]["rotation"] is None


def test_learned_is_the_gate_of_99_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    run = train_run("copy", "none")
    for score, learned in ((0.99, True), (0.98, False)):
        trained_length = {"exact_match": score, "token_accuracy": 1.0, "bits_per_byte": None}
        longer_row = {"exact_match": 1.0, "token_accuracy": 1.0, "bits_per_byte": None}
        monkeypatch.setattr(record, "by_length", lambda run, rows=(trained_length, longer_row): list(rows))
        assert record.run_record(run, time.monotonic())["learned"] is learned
        monkeypatch.undo()


def test_a_text_is_learned_when_its_context_makes_the_model_better_than_the_last_byte_can(
    book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_run("text", "none", text=book, dim=8, heads=1)
    best = run.task.text.bigram_bits
    for bits, gain, learned in ((best - 0.2, 0.2, True), (best - 0.05, 0.2, False), (best - 0.2, 0.05, False)):
        monkeypatch.setattr(record, "by_length", lambda run, bits=bits: [{"bits_per_byte": bits}])
        monkeypatch.setattr(record, "context_gain", lambda *_, gain=gain: gain)
        result = record.run_record(run, time.monotonic())
        assert result["learned"] is learned
        assert result["in_distribution"] == {"bits_per_byte": bits, "context_gain": gain}


BASE = recipe("copy", "rotary", 1)
OTHER_VALUES = {
    "spec": "alibi", "task": "reverse", "seed": 2, "train_length": 9, "test_lengths": (12, 15, 21),
    "layers": 3, "dim": 32, "heads": 8, "steps": 7, "batch": 3, "rate": 1e-3, "matrix_rate": 0.02, "warmup": 49,
    "final_rate": 0.1, "curriculum": 0.5,
    "cool_down": 7, "weight_decay": 0.0, "evaluate_every": 49, "map": "interpolated(factor=2)",
    "own_files": (("mine.py", "0" * 64),), "norm": "rms", "norm_first": False, "qk_norm": True, "bias": (),
    "branch_norm": True, "parallel_residual": True, "residual_scale": 0.5, "embedding_norm": True, "softcap": 30.0,
    "output_softcap": 30.0, "init": "gpt2",
    "feed_forward": "relu", "intermediate_size": 8, "kv_heads": 2, "head_dim": 8, "window": 4,
    "dropout": 0.1, "model": "mine.py:Mine", "tokens": 9, "seconds": 2.5, "schedule": "original",
    "test_map": "interpolated(factor=2)", "stretch": "yarn(factor=2)", "device": "cuda", "dtype": "bfloat16",
    "compile": True, "clip": 0.5,
}  # fmt: skip


# What a text holds stands in the key, and has a test of its own.
@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(BASE) if field.name != "text"])
def test_the_key_changes_with_every_setting(name: str) -> None:
    variant = dataclasses.replace(BASE, **{name: OTHER_VALUES[name]})
    assert record.key_of(variant) != record.key_of(BASE)
    assert record.key_of(dataclasses.replace(BASE)) == record.key_of(BASE)


def test_a_key_is_readable_and_a_safe_file_name() -> None:
    assert record.key_of(BASE).startswith("copy-rotary-seed1-")
    assert record.key_of(recipe("copy", ("rotary(base=3)", "none"))).startswith("copy-rotary-base-3-none-seed100-")
    longest = record.key_of(recipe("copy", " + ".join(["rotary(base=500)"] * 20)))
    assert len(longest) < 80 and not set(longest) - set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    )


def test_the_key_changes_with_the_file_of_an_own_encoding(tmp_path: Path) -> None:
    own_file = tmp_path / "mine.py"
    source = "from posenc import Encoding\n\nclass Mine(Encoding):\n    pass\n"
    keys = []
    for content in (source, source, source + "# changed\n"):
        own_file.write_text(content)
        keys.append(record.key_of(recipe("copy", f"rotary + {own_file}:Mine")))
    assert keys[0] == keys[1] != keys[2]


def test_the_key_changes_with_the_text_behind_a_path(tmp_path: Path) -> None:
    keys = []
    for word in ("one ", "two "):
        (tmp_path / "book.txt").write_text(word * 10_000)
        keys.append(record.key_of(recipe("text", "none", text=str(tmp_path / "book.txt"))))
    assert keys[0] != keys[1]


@pytest.fixture
def path(of_copy: dict[str, Any], tmp_path: Path) -> Path:
    """The path of a record."""
    return record.write(of_copy, tmp_path / "records")


@pytest.mark.parametrize(
    "content", ["", "{", '{"schema": 2', "[]", "3", "{}", '{"schema": 2}', "\x00\x00", "[" * 10**5]
)
def test_a_damaged_record_is_named(path: Path, content: str) -> None:
    path.write_text(content)
    with pytest.raises(CannotRead, match=rf"{path.name}: (schema: )?(it is n|it has lost|expected|the field)"):
        record.read(path)


def test_a_record_that_is_no_text_is_named_too(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CannotRead, match=r"\.json: it is no text: byte 0 is no UTF-8"):
        record.read(path)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        ({"schema": True}, "schema: expected int, got True"),
        ({"schema": 2.0}, r"schema: expected int, got 2\.0"),
        ({"versions": 1e308}, r"versions: expected a dictionary, got 1e\+308"),
        ({"curve": [{"step": 1}]}, r"curve\[0\]: the field loss is missing"),
        ({"learned": 1}, "learned: expected bool, got 1"),
        ({"extra": 1}, "there is no such field as 'extra'"),
        ({"lengths": [{"length": 1, "factor": 1.0}] * 102}, "lengths: .*at most 101"),
        ({"order": [{"attention": "causal", "layers": 1, "position": True}] * 10**5}, "order: .*at most"),
        ({"experiment": {"spec": "none", "task": "copy", "dim": "x"}}, r"experiment\.dim: expected int, got 'x'"),
    ],
)
def test_every_field_of_a_record_is_checked_even_if_the_checksum_is_right(
    of_copy: dict, tmp_path: Path, harm: dict, words: str
) -> None:
    path = record.write(of_copy | harm, tmp_path)
    with pytest.raises(CannotRead, match=words):
        record.read(path)


def test_a_record_of_a_key_alone_is_no_finished_run(tmp_path: Path) -> None:
    path = record.write({"schema": 2, "key": "a"}, tmp_path)
    with pytest.raises(CannotRead, match=r"a\.json: the field experiment is missing"):
        record.read(path)


def test_a_record_of_another_schema_or_under_another_name_is_refused(of_copy: dict, tmp_path: Path) -> None:
    path = record.write(of_copy | {"schema": 3, "new": 1}, tmp_path)
    with pytest.raises(record.OtherSchema, match=r"\.json: it has schema 3, this version reads 2$"):
        record.read(path)
    path = record.write(of_copy, tmp_path).rename(tmp_path / "b.json")
    with pytest.raises(CannotRead, match=rf"b\.json: it holds the record of '{of_copy['key']}'$"):
        record.read(path)


def test_a_record_without_its_checksum_is_refused(of_copy: dict, path: Path) -> None:
    path.write_text(json.dumps(of_copy))
    with pytest.raises(CannotRead, match="it has lost its checksum"):
        record.read(path)


def test_a_record_says_what_else_made_it(of_copy: dict) -> None:
    assert store.version_difference(of_copy["versions"]) == ""
    old_versions = of_copy["versions"] | {"torch": "1.0", "platform": "another machine"}
    assert store.version_difference(old_versions) == f"posenc {posenc.__version__} and torch 1.0"


def test_many_records_are_summarised_without_their_pictures(
    of_copy: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record.write(of_copy, tmp_path / "records")
    assert record.summary_records(tmp_path) == record.read_all(tmp_path)
    monkeypatch.setattr(record, "MOST_WITH_PICTURES", 0)
    [summary] = record.summary_records(tmp_path, [of_copy["key"]])
    assert {*of_copy} - {*summary} == {*record.PICTURE_KEYS}


def test_a_run_that_has_its_record_has_not_failed(of_copy: dict, tmp_path: Path) -> None:
    records = tmp_path / "records"
    record.write_failure(records, of_copy["key"], record.Failure("rotary on copy: its process was killed"))
    assert list(record.failures(tmp_path)) == [of_copy["key"]]
    # Killed between the record and the end of the failure.
    record.write(of_copy, records)
    assert record.failures(tmp_path) == {}


def test_a_folder_without_records_says_how_to_make_some(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"^no records in '.*'; make some with posenc compare --out "):
            record.read_all(folder)


def test_all_records_of_a_folder_are_read_in_the_order_of_their_names(of_copy: dict, tmp_path: Path) -> None:
    for key in ("b", "a"):
        record.write(of_copy | {"key": key}, tmp_path / "records")
    (tmp_path / "records" / ".c.json.1-12345678.part").write_text("half")
    (tmp_path / "records" / "d.damaged").write_text("half")
    assert [row["key"] for row in record.read_all(tmp_path)] == ["a", "b"]
    (tmp_path / "records" / "c.json").write_text("half")
    with pytest.raises(
        CannotRead,
        match=r"c\.json: .*; move it out of the folder, or give the posenc compare again that made it: it sets",
    ):
        record.read_all(tmp_path)
