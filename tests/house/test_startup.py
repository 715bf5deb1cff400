"""Importing posenc costs nothing to speak of: what is heavy is imported when it is needed, and not before."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import posenc

HEAVY = (
    "torch._dynamo", "torch._inductor", "sympy", "triton", "matplotlib", "numpy", "transformers", "jinja2",
    "hypothesis", "mpmath", "safetensors",
)  # fmt: skip

STAGES = {
    "import": "import posenc",
    "public names": "posenc.names(); dir(posenc); posenc.Attention, posenc.Decoder, posenc.schedules",
    "an encoding": "posenc.Rotary",
    "encodings": "posenc.Rotary(64); posenc.ALiBi(8); posenc.Sinusoidal(8); posenc.Learned(8, 16)",
    "model": "posenc.Decoder(vocab=11, dim=32, heads=4, layers=2, encoding='rotary + alibi')",
    "plugins": "from posenc.specs import plugins; found['looked for'] = plugins.plugins_in.cache_info().misses",
    "command line": "from posenc.cli import main",
    "list": "main(['list'])",
    "lesson": "main(['lesson', '3'])",
    "order": "main(['order', 'rotary'])",
    "advise": "main('advise --task recall --train-length 512 --test-length 2048'.split())",
}

REPORT = """
import json, sys
import torch

def libraries():
    try:
        return {line.split()[-1] for line in open("/proc/self/maps") if ".so" in line}
    except OSError:
        return set()

found = {}
for stage, code in json.loads(sys.argv[1]).items():
    modules, loaded = set(sys.modules), libraries()
    exec(code)
    found[stage] = [sorted(set(sys.modules) - modules), sorted(libraries() - loaded)]
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def new_in() -> dict[str, tuple[list[str], list[str]]]:
    """The modules and the shared libraries that each stage brings into a fresh process, after `import torch`."""
    path = {**os.environ, "PYTHONPATH": str(Path(posenc.__file__).parents[1])}
    command = [sys.executable, "-c", REPORT, json.dumps(STAGES)]
    ran = subprocess.run(command, env=path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_importing_posenc_imports_itself_alone(new_in) -> None:
    assert new_in["import"] == [["posenc"], []]


def test_public_names_load_no_encoding_and_an_encoding_itself_alone(new_in) -> None:
    late = r"posenc\.(lab|lessons|explorer|checkout|plain|cli|terminal|testing|checkpoints)\b"
    late += r"|(rich|pandas|scipy)\b|posenc\.(schedules|coordinate_maps)\.[a-z]"
    for stage, encodings in (
        ("public names", []),
        ("an encoding", ["posenc.encodings.rotations", "posenc.encodings.rotations.rotary"]),
    ):
        modules, _ = new_in[stage]
        assert [name for name in modules if name.startswith("posenc.encodings.")] == encodings
        assert not [name for name in modules if re.match(late, name)]
    assert "posenc.model" in new_in["public names"][0]


def test_nothing_is_looked_for_before_an_unknown_name_is_asked_for(new_in) -> None:
    assert new_in["looked for"] == 0


def test_a_verb_loads_no_library_of_another(new_in) -> None:
    assert "posenc.lessons" in new_in["lesson"][0] and "scipy.special" in new_in["advise"][0]
    late = r"(concurrent\.futures\.process|pandas|scipy\.(stats|optimize))$"
    assert not [name for stage in STAGES for name in new_in[stage][0] if re.match(late, name)]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != "advise"])
def test_nothing_heavy_is_imported_before_it_is_needed(new_in, stage: str) -> None:
    modules, _ = new_in[stage]
    assert [name for name in modules if name.startswith(HEAVY)] == []


@pytest.mark.parametrize("stage", ["import", "encodings", "model"])
def test_no_shared_library_is_loaded_before_a_kernel_runs(new_in, stage: str) -> None:
    _, libraries = new_in[stage]
    # Those of Python's own modules, such as json's, are neither a kernel nor a dependency.
    assert [name for name in libraries if "lib-dynload" not in name] == []
