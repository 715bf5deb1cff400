"""The tasks for lm-eval: a file of its settings and a file of texts for each, which need nothing of posenc's."""

import json
from pathlib import Path

from posenc.checkpoints.measures.asked import LongTask
from posenc.lab import store


def write(task: LongTask, length: int, folder: Path) -> str:
    """Write a task at a length for lm-eval into a folder, and return the name that lm-eval knows it by.

    lm_eval --include_path FOLDER --tasks NAME ...

    Its `acc` is the share of answers without a mistake, as `whole` is here, or `right` where one thing is asked: it
    asks the model whether each token of the answer is the likeliest one. The texts are those of this tokenizer at this
    length; lm-eval makes them tokens again, and of another model's tokens it may take more.

    Raises ValueError for a task whose answer may come in any order, of which lm-eval knows one, and as the task does.
    """
    texts, answers = [], []
    for asked in task.questions(length):
        if any(len(ids) > 1 for item in asked.wanted for _, ids in item):
            raise ValueError(f"{task.name} may be answered in any order, and lm-eval asks for one; leave it out")
        text = asked.ids[len(task.opening) :].tolist()
        texts.append(task.tokenizer.decode(text[: -asked.answer]))
        answers.append(task.tokenizer.decode(text[-asked.answer :]))
    name = f"posenc-{task.name}-{length}"
    lines = [json.dumps({"text": text, "answer": answer}) for text, answer in zip(texts, answers, strict=True)]
    store.write(folder / f"{name}.jsonl", ("\n".join(lines) + "\n").encode())
    settings = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str((folder / f"{name}.jsonl").resolve())}},
        "test_split": "test",
        "output_type": "loglikelihood",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 1.0},
    }
    # JSON is YAML.
    store.write(folder / f"{name}.yaml", (json.dumps(settings, indent=1) + "\n").encode())
    return name
