"""The technical report: every number in it is read from a committed record, and stands beside the command that made it.

python3 run.py paper [FILE]        writes FILE, as a rule docs/_build/posenc.pdf
"""

import gzip
import inspect
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = Path(__file__).with_suffix(".typ")
COSTS = ("models", "attention", "memory")
"""What of a benchmark is printed: the rest is in the record."""
LENGTHS = ("T 1024: forward", "T 4096: forward", "T 1024: forward and backward")
ERROR_CASES = {
    "rotation": ("prefill, float32: forward", "prefill, bfloat16: forward", "decoding, float32: one token at 4000"),
    "attention": ("T 1024: forward", "32 x 32: forward"),
    "decoding": ("one step of a layer, 4096 slots",),
}
"""The cases whose results are printed beside float64."""


def main(arguments: list[str]) -> int:
    if len(arguments) > 1:
        print("run.py paper takes one file at most, such as report.pdf", file=sys.stderr)
        return 2
    file = Path(arguments[0]) if arguments else ROOT / "docs" / "_build" / "posenc.pdf"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(typeset(facts(ROOT)))
    print(f"the report: {file}")
    return 0


def typeset(report_facts: dict[str, Any]) -> bytes:
    """The PDF that the template makes of the facts."""
    import typst

    return typst.compile(str(TEMPLATE), sys_inputs={"facts": json.dumps(report_facts)})


def facts(root: Path) -> dict[str, Any]:
    """All that the report says in numbers, as texts, from the records below a folder."""
    return {
        "version": version_of(root),
        **contract(),
        "bench": bench(newest(root / "benchmarks" / "results")),
        "census": census(root / "tests" / "census.tsv"),
        "claims": claims(root / "docs" / "published"),
        "board": board(root / "docs" / "board" / "rows.jsonl.gz"),
    }


def version_of(root: Path) -> str:
    match = re.search(r'^version = "(.+)"', (root / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise ValueError(f'{root / "pyproject.toml"} names no version; expected a line like version = "0.2.0"')
    return match.group(1)


def contract() -> dict[str, Any]:
    """The encodings that ship, and what each of them is held to."""
    from posenc import catalogue, testing

    promises = [
        {"name": promise.__name__.replace("_", " "), "says": (inspect.getdoc(promise) or "").partition("\n")[0]}
        for promise in testing.PROMISES
    ]
    return {"encodings": list(catalogue.names()), "promises": promises}


def newest(folder: Path) -> Path:
    """The last record of a whole run of `run.py bench`. Raises ValueError where there is none."""
    whole = [
        file
        for file in sorted(folder.glob("*.json"))
        if set(COSTS) <= set(json.loads(file.read_text(encoding="utf-8"))["settings"]["what"])
    ]
    if not whole:
        raise ValueError(f"{folder} has no record of `run.py bench` with {', '.join(COSTS)}; run it with --out")
    return max(whole, key=lambda file: json.loads(file.read_text(encoding="utf-8"))["began"])


def bench(file: Path) -> dict[str, Any]:
    """What encodings cost, and how far their results lie from float64, of one record."""
    record = json.loads(file.read_text(encoding="utf-8"))
    rows = [
        [row["case"], row["candidate"], f"{row['value']:.2f}", f"{row['low']:.2f} to {row['high']:.2f}", row["unit"]]
        for row in record["rows"]
        if row["what"] in COSTS and row["kind"] == "posenc" and row["value"] is not None
        if row["what"] != "attention" or row["case"] in LENGTHS
    ]
    errors = [
        [row["case"], row["candidate"], f"{row['error']:.1e}"]
        for row in record["rows"]
        if row["kind"] in ("posenc", "naive") and row["error"] is not None
        if row["case"] in ERROR_CASES.get(row["what"], ())
    ]
    hardware, versions = record["hardware"], record["versions"]
    return {
        "file": f"benchmarks/results/{file.name}",
        "machine": f"{hardware['processor']}, {hardware['cores']} cores, {hardware['instruction set']}",
        "versions": f"PyTorch {versions['torch']}, Python {versions['python']}",
        "began": record["began"][:10],
        "rows": rows,
        "errors": errors,
    }


def census(file: Path) -> dict[str, Any]:
    """How many architectures of transformers come out how, when posenc computes their positions."""
    first, *lines = file.read_text(encoding="utf-8").splitlines()
    counts = Counter(line.split("\t")[1] for line in lines if line)
    return {"of": first.lstrip("# "), "total": sum(counts.values()), "rows": [[k, n] for k, n in counts.most_common()]}


def claims(folder: Path) -> list[dict[str, str]]:
    """The published results that were run again, one for each file."""
    entries = []
    for file in sorted(folder.glob("*.json.gz")):
        record = json.loads(gzip.decompress(file.read_bytes()))
        seeds = f"{min(record['seeds'])} to {max(record['seeds'])}"
        command = f"posenc lab run {record['claim']} --seed-from {min(record['seeds'])}"
        keys = ("claim", "says", "source", "verdict", "why")
        entries.append({name: str(record[name]) for name in keys} | {"seeds": seeds, "command": command})
    return entries


def board(file: Path) -> list[list[Any]]:
    """How many runs the board has of each task: task, runs, encodings."""
    specs: dict[str, list[str]] = {}
    for line in gzip.decompress(file.read_bytes()).splitlines():
        run = json.loads(line)["experiment"]
        specs.setdefault(run["task"], []).append(str(run["spec"]))
    return [[task, len(specs_of_task), len(set(specs_of_task))] for task, specs_of_task in sorted(specs.items())]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
