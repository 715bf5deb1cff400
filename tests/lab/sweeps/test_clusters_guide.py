"""The guide to clusters: its SLURM commands run unchanged, with a shell loop as sbatch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import planted_runs
import pytest

from posenc.lab.runs import record

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "clusters.md"

SBATCH = """#!/bin/sh
count=$(sed -n 's/^#SBATCH --array=0-//p' "$1")
for task in $(seq 0 "$count"); do
    SLURM_ARRAY_TASK_ID=$task SLURM_ARRAY_TASK_COUNT=$((count + 1)) bash "$1" || exit 1
done
"""


def blocks() -> tuple[str, str]:
    """The job file of the guide, and the commands that submit it and merge the records."""
    script, lines = re.findall(r"^```bash\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    return script, lines


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
@pytest.mark.timeout(900)
def test_the_lines_for_slurm_run_as_they_stand(tmp_path: Path) -> None:
    script, lines = blocks()
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("sbatch", SBATCH), ("posenc", f'#!/bin/sh\nexec {sys.executable} -m posenc "$@"\n')):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "sweep.sbatch").write_text(script)
    environ = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.run(["bash", "-e", "-c", lines], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    folder = tmp_path / "runs" / "array"
    assert len(list(folder.glob("shard-*-of-4"))) == 4 and len(record.read_all(folder)) == 4
    assert "4 records are new in runs/array" in process.stdout and "Report: runs/array/report.html" in process.stdout


def test_the_guide_has_as_many_tasks_as_shards() -> None:
    script, _ = blocks()
    assert "--shard $SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" in script and "--array=0-" in script


def test_records_are_a_table_of_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb", reason="the guide's question to DuckDB needs duckdb")
    for run in planted_runs.runs(3):
        planted_runs.write_record(tmp_path / "runs" / "array" / "records", run, record.key_of(run))
    [query] = re.findall(r"^```sql\n(.*?)^```$", GUIDE.read_text(), flags=re.DOTALL | re.MULTILINE)
    rows = duckdb.sql(query.replace("runs/array", str(tmp_path / "runs" / "array"))).fetchall()
    assert [(task, spec, count) for task, spec, _, count in rows] == [("repeat", "none", 3)]
