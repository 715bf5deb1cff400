"""Made-up rows of a board, as the lab writes them. A reach sets each encoding's result on each task."""

from typing import Any

from posenc.lab.experiments.recipes import FIRST_SEED

FACTORS = (1.2, 1.5, 2.0, 4.0, 8.0, 16.0)

# task -> encoding -> reach of each seed: the largest solved multiple of the length (0: not learned).
BOARD: dict[str, dict[str, tuple[float, ...]]] = {
    "copy": {
        "none": (0, 0, 0, 0, 0),
        "rotary": (1, 1, 1, 1, 1),
        "learned": (1, 1, 1, 1, 1),
        "alibi": (4, 4, 4, 4, 4),
        "t5_bias": (4, 4, 4, 4, 2),
        "rotary + alibi": (2, 2, 1.5, 2, 2),
    },
    "pass_key": {
        "none": (1, 1, 0, 0, 1),
        "rotary": (1.5, 1.5, 1.5, 1, 1.5),
        "learned": (1, 1, 1, 1, 1),
        "alibi": (1.2, 1.2, 1.2, 1.2, 1.2),
        "t5_bias": (8, 8, 8, 8, 8),
        "forgetting": (8, 8, 8, 8, 4),
    },
    "order_class": {
        "none": (0, 0, 0, 0, 0),
        "rotary": (1.2, 1.5, 1.2, 1.2, 1.2),
        "learned": (1, 1, 1, 1, 1),
        "alibi": (2, 2, 2, 2, 2),
    },
    "grid_mark": {
        "none": (0, 0, 0, 0, 0),
        "axial_rotary": (1.5, 1.5, 2, 2, 2),
        "learned_grid": (1, 1, 1, 1, 1),
    },
    "text": {
        "none": (0, 0, 0, 0, 0),
        "rotary": (1.2, 1.2, 1.2, 1.2, 1.2),
        "alibi": (16, 16, 16, 16, 16),
        "learned": (1, 1, 1, 1, 1),
    },
}
STEPS = {"none": 900, "rotary": 400, "alibi": 700, "t5_bias": 600, "learned": 500}


def row(task: str, spec: str, seed: int, reach: float, **changes: Any) -> dict[str, Any]:
    """Return a row, exact up to its reach and wrong beyond. For text, the perplexity ratio is 1, then 2."""
    text = task == "text"
    train_length = 32 if text else 10
    lengths: list[dict[str, Any]] = []
    for factor in (1.0, *FACTORS):
        fine = reach >= factor
        scores: dict[str, Any] = {"exact_match": 0.99 if fine else 0.02, "token_accuracy": 0.99, "sequences": 512}
        if text:
            scores = {"bits_per_byte": 2.5 if fine else 3.5, "perplexity_ratio": 1.0 if fine else 2.0}
        lengths.append({"length": round(train_length * factor), "factor": factor} | scores)
    learned = reach > 0
    exact = 0.998 if learned else 0.3
    in_distribution = {"exact_match": exact, "token_accuracy": exact}
    return {
        "schema": 2,
        "key": f"{task}-{spec.replace(' ', '')}-seed{seed}",
        "experiment": {
            "spec": spec,
            "task": task,
            "text": None,
            "seed": seed,
            "train_length": train_length,
            "test_lengths": [entry["length"] for entry in lengths[1:]],
            "layers": 2,
            "dim": 64,
            "heads": 4,
            "steps": 1000,
            "batch": 32,
            "rate": 0.005,
            "matrix_rate": 0.0,
            "warmup": 50,
            "final_rate": 0.05,
            "curriculum": 0.0,
            "cool_down": 0,
            "weight_decay": 0.01,
            "evaluate_every": 50,
        },
        "parameters": {"model": 103_452, "encoding": 0},
        "versions": {
            "posenc": "0.2.0",
            "torch": "2.13.0",
            "python": "3.11.7",
            "platform": "Linux-x86_64",
            "processor": "AMD EPYC",
            "threads": 1,
        },
        "text": {"name": "the Python standard library", "sha256": "9f" * 32} if text else None,
        "trained_tokens": 32 if text else 22,
        "steps": 1000,
        "train_cpu_s": 9.5,
        "cpu_s": 12.5,
        "steps_to_learned": STEPS.get(spec, 650) if learned and not text else None,
        "cpu_s_to_learned": 6.5 if learned and not text else None,
        "learned": learned,
        "in_distribution": {"bits_per_byte": 2.5, "context_gain": 0.4} if text else in_distribution,
        "lengths": lengths,
    } | changes


def rows() -> list[dict[str, Any]]:
    """Return the rows of a small board with five seeds."""
    return [
        row(task, spec, FIRST_SEED + place, reach)
        for task, by_spec in BOARD.items()
        for spec, reaches in by_spec.items()
        for place, reach in enumerate(reaches)
    ]
