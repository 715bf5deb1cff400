"""Records: one JSON line that holds everything, under a name that changes with every setting."""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from posenc.lab import data, record
from posenc.lab.recipes import recipe
from posenc.lab.train import Run, start, train

SHAPES = {
    "": (
        "schema key experiment encoding parameters versions text trained_tokens steps train_cpu_s cpu_s wall_s "
        "steps_to_learned "
        "cpu_s_to_learned learned curve in_distribution lengths ablation order attention pictures"
    ),
    "parameters": "model encoding",
    "versions": "posenc torch python platform threads",
    "ablation": "intact removed shuffled shifted swapped",
    "attention": "tokens with without",
    "pictures": "added wavelengths bias rotation",
}
"""The keys that a record always has, and those of what it holds."""

OF_LISTS = {
    "curve": "step loss score cpu_s",
    "lengths": "length factor exact_match token_accuracy bits_per_byte sliding_bits_per_byte perplexity_ratio",
    "order": "attention layers position equivariance difference",
}


@pytest.fixture(scope="module")
def book(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("".join(f"{i} bottles on the wall\n" for i in range(3000)))
    return str(path)


def trained(task: str, spec: str | tuple[str, ...], **changes) -> Run:
    small = {"train_length": 4, "dim": 16, "heads": 2, "layers": 2, "steps": 6, "evaluate_every": 2, "batch": 4}
    return train(start(recipe(task, spec, 3, **(small | changes))))


def made(task: str, spec: str | tuple[str, ...], **changes) -> dict[str, Any]:
    return record.of(trained(task, spec, **changes), time.monotonic())


@pytest.fixture(scope="module")
def of_copy() -> dict[str, Any]:
    return made("copy", "rotary + t5_bias")


@pytest.fixture(scope="module")
def of_text(book: str) -> dict[str, Any]:
    return made("text", ("sinusoidal", "none"), text=book, train_length=8)


@pytest.fixture(params=["of_copy", "of_text"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue(request.param)


def test_every_key_is_there_and_no_other(found: dict) -> None:
    for path, keys in SHAPES.items():
        assert set(found[path] if path else found) == set(keys.split())
    for path, keys in OF_LISTS.items():
        assert found[path] and all(set(item) == set(keys.split()) for item in found[path])


def test_a_record_is_plain_json_and_comes_back_the_same(found: dict, tmp_path: Path) -> None:
    json.dumps(found, allow_nan=False)
    path = record.write(found, tmp_path)
    assert path.name == f"{found['key']}.json" and path.read_text().count("\n") == 1
    # JSON has lists where there were tuples.
    assert record.read(path) == json.loads(json.dumps(found))


def test_a_record_says_what_was_built_and_how_large_it_is(of_copy: dict, of_text: dict) -> None:
    assert of_copy["encoding"].startswith("rotary(base=1000.0") and " + t5_bias(" in of_copy["encoding"]
    assert of_copy["parameters"]["encoding"] == 32 * 2 and of_copy["parameters"]["model"] > 64
    assert of_text["encoding"] == "sinusoidal / none" and of_text["parameters"]["encoding"] == 0
    assert of_copy["experiment"]["spec"] == "rotary + t5_bias" and of_copy["steps"] == 6


def test_a_record_of_a_text_names_it_by_its_hash(of_copy: dict, of_text: dict, book: str) -> None:
    text = data.load(book)
    assert of_copy["text"] is None
    assert of_text["text"] == text.facts()
    assert of_text["text"]["name"] == book and len(of_text["text"]["sha256"]) == 64


def test_each_task_has_its_own_score_and_the_other_is_null(of_copy: dict, of_text: dict) -> None:
    assert set(of_copy["in_distribution"]) == {"exact_match", "token_accuracy"}
    assert set(of_text["in_distribution"]) == {"bits_per_byte"}
    assert of_text["in_distribution"]["bits_per_byte"] == of_text["lengths"][0]["bits_per_byte"]
    for row in of_copy["lengths"]:
        assert row["bits_per_byte"] is None and row["exact_match"] is not None
    for row in of_text["lengths"]:
        assert row["exact_match"] is None and row["bits_per_byte"] > 0
    assert (of_text["steps_to_learned"], of_text["cpu_s_to_learned"]) == (None, None)


def test_the_first_length_is_the_trained_one(found: dict) -> None:
    assert found["lengths"][0]["length"] == found["experiment"]["train_length"] and found["lengths"][0]["factor"] == 1.0
    assert [row["length"] for row in found["lengths"][1:]] == list(found["experiment"]["test_lengths"])


def test_attention_is_weights_of_every_layer_and_head_that_sum_to_one(found: dict) -> None:
    tokens = len(found["attention"]["tokens"])
    assert 2 <= tokens <= 32 and found["attention"]["tokens"][0] == "^"
    for kind in ("with", "without"):
        layers = found["attention"][kind]
        assert len(layers) == 2 and all(len(heads) == 2 for heads in layers)
        for rows in (rows for heads in layers for rows in heads):
            assert len(rows) == tokens and all(len(row) == tokens for row in rows)
            assert all(math.fsum(row) == pytest.approx(1, abs=0.005) for row in rows)
            assert all(weight == 0 for i, row in enumerate(rows) for weight in row[i + 1 :])
    assert found["attention"]["with"] != found["attention"]["without"]


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
    run = trained("copy", "none")
    for score, learned in ((0.99, True), (0.98, False)):
        trained_length = {"exact_match": score, "token_accuracy": 1.0, "bits_per_byte": None}
        beyond = {"exact_match": 1.0, "token_accuracy": 1.0, "bits_per_byte": None}
        monkeypatch.setattr(record, "by_length", lambda run, rows=(trained_length, beyond): list(rows))
        assert record.of(run, time.monotonic())["learned"] is learned
        monkeypatch.undo()


def test_a_text_is_learned_when_it_has_settled_and_beats_a_model_of_the_byte_before(book: str) -> None:
    run = start(recipe("text", "none", text=book, train_length=4, dim=8, heads=1, layers=1))
    best, run.step = run.task.text.bigram_bits, 100
    for last, bits, learned in ((2.39, 0.99, True), (2.36, 0.99, False), (2.39, 1.01, False)):
        run.curve = [{"step": s, "score": v} for s, v in ((50, 3.0), (80, 2.5), (90, 2.45), (100, last))]
        assert record.converged(run, bits * best) is learned
    run.curve = [{"step": 100, "score": 2.0}]
    assert not record.converged(run, 0.5 * best)


BASE = recipe("copy", "rotary", 1)
OTHERS = {
    "spec": "alibi", "task": "reverse", "text": "other", "seed": 2, "train_length": 9, "test_lengths": (12, 15, 21),
    "layers": 3, "dim": 32, "heads": 8, "steps": 7, "batch": 3, "rate": 1e-3, "matrix_rate": 0.02, "warmup": 49,
    "final_rate": 0.1, "curriculum": 0.5,
    "cool_down": 7, "weight_decay": 0.0, "evaluate_every": 49,
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(BASE)])
def test_the_key_changes_with_every_setting(name: str) -> None:
    changed = dataclasses.replace(BASE, **{name: OTHERS[name]})
    assert record.key_of(changed) != record.key_of(BASE)
    assert record.key_of(dataclasses.replace(BASE)) == record.key_of(BASE)


def test_a_key_is_readable_and_a_safe_file_name() -> None:
    assert record.key_of(BASE).startswith("copy-rotary-seed1-")
    assert record.key_of(recipe("copy", ("rotary(base=3)", "none"))).startswith("copy-rotary-base-3-none-seed0-")
    longest = record.key_of(recipe("copy", " + ".join(["rotary(base=500)"] * 20)))
    assert len(longest) < 80 and not set(longest) - set(
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_"
    )


def test_the_key_changes_with_the_file_of_an_own_encoding(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    source = "from posenc import Encoding\n\nclass Mine(Encoding):\n    pass\n"
    keys = []
    for content in (source, source, source + "# changed\n"):
        mine.write_text(content)
        keys.append(record.key_of(recipe("copy", f"rotary + {mine}:Mine")))
    assert keys[0] == keys[1] != keys[2]


def test_the_key_changes_with_the_text_behind_a_path(tmp_path: Path) -> None:
    keys = []
    for word in ("one ", "two "):
        (tmp_path / "book.txt").write_text(word * 10_000)
        data.load.cache_clear()
        keys.append(record.key_of(recipe("text", "none", text=str(tmp_path / "book.txt"))))
    assert keys[0] != keys[1]


def test_a_write_that_fails_leaves_no_half_record_and_the_old_one_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = record.write({"schema": 1, "key": "a", "value": 1}, tmp_path)
    plain = Path.write_text

    def full(self: Path, text: str, **options) -> int:
        plain(self, text[: len(text) // 2], **options)
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        record.write({"schema": 1, "key": "a", "value": 2}, tmp_path)
    with pytest.raises(OSError, match="No space left"):
        record.write({"schema": 1, "key": "b", "value": 2}, tmp_path)
    monkeypatch.undo()
    assert [file.name for file in tmp_path.glob("*.json")] == ["a.json"]
    assert record.read(path)["value"] == 1


@pytest.mark.parametrize("content", ["", "{", '{"schema": 1', "[]", "3", "{}", '{"schema": 1}', "\x00\x00"])
def test_a_damaged_record_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(
        ValueError, match=r"a\.json is not a whole record \(\w+\); delete it and run the same command again$"
    ):
        record.read(tmp_path / "a.json")


def test_a_record_that_is_no_text_is_named_too(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.json is not a whole record"):
        record.read(tmp_path / "a.json")


def test_a_record_of_another_schema_or_under_another_name_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"schema": 2, "key": "a"}')
    with pytest.raises(
        ValueError, match=r"a\.json has schema 2, this version reads 1; run the comparison again into another folder$"
    ):
        record.read(tmp_path / "a.json")
    (tmp_path / "a.json").write_text('{"schema": 1, "key": "b"}')
    with pytest.raises(ValueError, match=r"a\.json holds the record of 'b'; rename it back or delete it$"):
        record.read(tmp_path / "a.json")


def test_a_folder_without_records_says_how_to_make_some(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(ValueError, match=r"^no records in '.*'; make some with posenc compare --out "):
            record.read_all(folder)


def test_all_records_of_a_folder_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for key in ("b", "a"):
        record.write({"schema": 1, "key": key}, tmp_path / "records")
    (tmp_path / "records" / "c.tmp").write_text("half")
    (tmp_path / "records" / "d.damaged").write_text("half")
    assert [found["key"] for found in record.read_all(tmp_path)] == ["a", "b"]
