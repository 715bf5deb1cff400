"""What is written for lm-eval: the same texts and answers, and settings that say where they are."""

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

import tiny_llama
import yaml

from posenc.checkpoints.measures import lm_eval_tasks
from posenc.checkpoints.measures.asked import LongTask
from posenc.checkpoints.measures.long_tasks import TASKS


def test_texts_and_answers_are_those_of_the_task(tmp_path: Path) -> None:
    tokenizer = tiny_llama.tokenizer()
    task = LongTask(TASKS["several-queries"], tokenizer, opening=(99,), trials=2)
    name = lm_eval_tasks.write(task, 900, tmp_path)
    settings = yaml.safe_load((tmp_path / f"{name}.yaml").read_text())
    file = Path(settings["dataset_kwargs"]["data_files"]["test"])
    assert settings["task"] == name == "posenc-several-queries-900" and file.parent == tmp_path
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line, asked in zip(lines, task.questions(900), strict=True):
        both = tokenizer(line["text"] + line["answer"])["input_ids"]
        assert [99, *both] == asked.ids.tolist() and len(line["answer"]) == asked.answer
        assert line["text"].endswith(" are") and line["answer"].startswith(" ")


def test_what_may_come_in_any_order_is_refused(tmp_path: Path) -> None:
    task = LongTask(TASKS["common-words"], tiny_llama.tokenizer(), trials=1)
    with pytest.raises(ValueError, match="common-words may be answered in any order, and lm-eval asks for one"):
        lm_eval_tasks.write(task, 900, tmp_path)
    assert not list(tmp_path.iterdir())
