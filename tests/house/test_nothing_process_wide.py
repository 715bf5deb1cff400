"""Nothing that other threads or other libraries share is changed: the code is searched, and threads watch it run."""

import ast
import functools
import importlib
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tiny_llama
import torch
from torch import nn

import posenc
from posenc.kernels.block_sizes import SIZES

SOURCE = Path(posenc.__file__).parent

CALLS = re.compile(
    r"(^|\.)(setattr|delattr|patch|patch\.\w+|no_init_weights|init_empty_weights|set_default_\w+|set_num_\w*threads"
    r"|manual_seed_all|fork_rng|set_rng_state|use_deterministic_algorithms|catch_warnings|filterwarnings|simplefilter"
    r"|basicConfig|set_verbosity\w*|disable_progress_bar|putenv|chdir|umask|setlocale|setrecursionlimit|settrace"
    r"|setprofile|setrlimit|setdefaulttimeout)$|^(torch\.manual_seed|random\.seed|(np|numpy)\.random\.seed)$"
    r"|^Attention(Mask)?Interface\.(register|_global_mapping\.pop)$|^ROPE_INIT_FUNCTIONS\.pop$"
    r"|^signal\.signal$|^os\.environ\.\w*(set|update|pop)\w*$|^gc\.(disable|freeze)$|\.mallopt$|AllocatorSettings$"
)
"""Calls that change something of the whole process, or of an object that is given by name."""

OWN_PROCESS = "a command, a run or a worker, which has its process to itself"
OWN_OBJECTS = "sets attributes of objects that it has made, or that it was given to change"
THREAD = "of this thread alone"
OWN_NAMES = "names of posenc's own in transformers' registries, where nothing is replaced: docs/decisions/0018"
EXCEPTIONS = {
    "lab/experiments/*": {r"torch\.manual_seed": OWN_PROCESS},
    "lab/runs/*": {
        r"torch\.set_num_threads": OWN_PROCESS,
        r"warnings\.\w+": "what FSDP says of views: torch takes no such wish but by a filter of warnings",
    },
    "export/files.py": {r"warnings\.\w+": "what torch says of itself while it exports, likewise"},
    "lab/sweeps/*": {r"signal\.signal|torch\.set_num_threads|setattr": OWN_PROCESS},
    "lab/board/*": {
        r"torch\.set_num_threads": OWN_PROCESS,
        r"torch\.random\.fork_rng": "the state is put back as it was",
    },
    "lab/results/figures/*": {
        r"warnings\.\w+": "letters that a font lacks: matplotlib takes no such wish but by a filter of warnings"
    },
    "cli/__init__.py": {r"signal\.signal": OWN_PROCESS, r"sys\.unraisablehook": OWN_PROCESS},
    "__main__.py": {r"warnings\.\w+": OWN_PROCESS},
    "seeding.py": {r"torch\.random\.fork_rng": "the state is put back as it was"},
    "foreign/code.py": {r"sys\.modules": "a file of the user's becomes a module, as an import makes one"},
    "checkpoints/models/rotations.py": {r"sys\.setprofile": THREAD},
    "checkpoints/formats/load.py": {r"logging\.disable_progress_bar": OWN_PROCESS},
    "checkpoints/live/unturned_keys.py": {
        r"setattr|delattr": OWN_OBJECTS,
        r"Attention(Mask)?Interface\.register": OWN_NAMES,
    },
    "checkpoints/live/register.py": {r"ROPE_INIT_FUNCTIONS": OWN_NAMES},
    "checkpoints/kinds/kind.py": {r"setattr": OWN_OBJECTS},
    "checkpoints/live/cached_positions.py": {r"setattr": OWN_OBJECTS},
}
"""Where such a call may stand all the same, and why."""


def dotted_name(node: ast.expr) -> str:
    """What unparse gives, which takes its time."""
    if isinstance(node, ast.Name):
        return node.id
    return f"{dotted_name(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else ast.unparse(node)


def imported_names(modules: list[ast.AST]) -> set[str]:
    """The names that a file's imports bind, those of functions too."""
    nodes = [node for node in modules if isinstance(node, (ast.Import, ast.ImportFrom))]
    return {(alias.asname or alias.name).partition(".")[0] for node in nodes for alias in node.names}


@functools.cache
def changes_of(path: Path) -> list[tuple[int, str]]:
    return list(changes(ast.parse(path.read_text(encoding="utf-8"))))


def changes(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """What in a file may change something of the whole process: line, and what is called or assigned to."""
    statements = list(ast.walk(tree))
    names = imported_names(statements)
    for node in statements:
        if isinstance(node, ast.Call) and CALLS.search(call_name := dotted_name(node.func)):
            yield node.lineno, call_name
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [getattr(node, "target", None)]
        for target in targets:
            root = target
            while isinstance(root, (ast.Attribute, ast.Subscript)):
                root = root.value
            if isinstance(root, ast.Name) and root is not target and root.id in names:
                yield root.lineno, ast.unparse(target)


def is_exception(file: str, change: str) -> bool:
    rules = [rule for place, rule in EXCEPTIONS.items() if Path(file).match(place)]
    return any(re.match(pattern, change) for rule in rules for pattern in rule)


def test_no_file_changes_what_the_whole_process_shares() -> None:
    faults = [
        f"{file}:{line}: {change}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, change in changes_of(path)
        if not is_exception(file := path.relative_to(SOURCE).as_posix(), change)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "text",
    [
        "from torch import nn\nnn.Module.register_parameter = as_shape",
        "import torch\ntorch.nn.init.normal_ = nothing",
        "import os\nos.environ['OMP_NUM_THREADS'] = '1'",
        "def f(home, name):\n    setattr(home, name, wrapper)",
        "with patch.object(plan, 'ROWS', 4): pass",
        "import torch\ntorch.set_default_device('meta')",
        "from transformers.initialization import no_init_weights\nwith no_init_weights(): pass",
        "import warnings\nwith warnings.catch_warnings(): pass",
        "import sys\nsys.modules['x'] = 3",
        "import torch\ndel torch.nn.Linear",
        "AttentionInterface.register('sdpa', attend)",
        "from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS\nROPE_INIT_FUNCTIONS['linear'] = mine",
    ],
)
def test_the_search_finds_what_it_should(text: str) -> None:
    assert list(changes(ast.parse(text)))


def test_every_exception_is_used() -> None:
    for place, rule in EXCEPTIONS.items():
        files = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).match(place)]
        uses = [change for path in files for _, change in changes_of(path)]
        for pattern in rule:
            assert any(re.match(pattern, change) for change in uses), f"{place}: {pattern} allows nothing"


@contextmanager
def another_thread_builds() -> Iterator[None]:
    """Every module that another thread makes meanwhile has its weights, its dtype and its random numbers."""
    llama = importlib.import_module("transformers.models.llama.modeling_llama")
    logger = logging.getLogger("transformers.posenc_watches")
    rotary, stop, wrong = llama.apply_rotary_pos_emb, threading.Event(), list[str]()
    linear, built = nn.Linear.forward, 0

    def build() -> None:
        nonlocal built
        while not stop.wait(0.001):
            # So large that a skeleton would have a shape alone in its place.
            weight = nn.Linear(2100, 2100).weight
            built += 1
            if weight.is_meta or not bool(weight[0].any()) or not weight.requires_grad:
                wrong.append(f"a weight on {weight.device} beginning {weight[0][:2] if not weight.is_meta else ''}")
            if torch.get_default_dtype() != torch.float32 or torch.tensor(1.0).is_meta:
                wrong.append("another default")
            if llama.apply_rotary_pos_emb is not rotary or not logger.isEnabledFor(logging.WARNING):
                wrong.append("something of transformers' is another")
            if nn.Linear.forward is not linear:
                wrong.append("something of torch's is another")

    builder = threading.Thread(target=build)
    builder.start()
    try:
        yield
    finally:
        stop.set()
        builder.join()
    assert built and not wrong, wrong[:3]


def test_threads_build_models_while_configs_are_read() -> None:
    pytest.importorskip("transformers")
    configs = importlib.import_module("posenc.checkpoints.inspection.configs")
    huggingface = importlib.import_module("posenc.checkpoints.formats.huggingface")
    config = {"model_type": "llama", "hidden_size": 2304, "intermediate_size": 2304, "num_attention_heads": 9}
    config |= {"num_hidden_layers": 2, "vocab_size": 4096}
    with another_thread_builds():
        for turn in range(2):
            huggingface.read_json_text.cache_clear()
            reading = configs.read(config | {"rope_theta": 500.0 + turn})
            assert reading.parts[0].layers[1].spec == f"rotary(base={500 + turn})" and not reading.not_covered


def test_threads_build_models_while_checkpoints_are_inspected_attached_to_and_converted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    checkpoints = importlib.import_module("posenc.checkpoints")
    convert = importlib.import_module("posenc.checkpoints.conversion.convert")
    model, folder = tiny_llama.model(), tiny_llama.save(tmp_path / "tiny")
    ids = torch.arange(8)[None]
    with another_thread_builds(), torch.inference_mode():
        state = model(ids).logits
        for spec in ("alibi", "rotary(base=500.0)"):
            checkpoints.attach(model, spec)
            model(ids)
            checkpoints.detach(model)
        assert torch.equal(model(ids).logits, state)
        assert checkpoints.inspect(folder).parts
        convert.convert(folder, tmp_path / "new", convert.ConversionRequest(layout="interleaved"))


def test_reading_a_config_draws_no_random_numbers() -> None:
    pytest.importorskip("transformers")
    configs = importlib.import_module("posenc.checkpoints.inspection.configs")
    state = torch.get_rng_state()
    configs.read({"model_type": "vit", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2})
    assert torch.equal(torch.get_rng_state(), state)


def test_transformers_is_quiet_in_the_thread_that_reads_alone() -> None:
    pytest.importorskip("transformers.utils.logging").get_logger("transformers")
    load = importlib.import_module("posenc.checkpoints.formats.load")
    messages: list[str] = []
    library, logger = logging.getLogger("transformers"), logging.getLogger("transformers.posenc_hears")
    listener = logging.Handler()
    listener.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    library.addHandler(listener)
    try:
        with load.quietly():
            logger.warning("hidden")
            logger.error("an error")
            thread = threading.Thread(target=logger.warning, args=("of another thread",))
            thread.start()
            thread.join()
        logger.warning("afterwards")
    finally:
        library.removeHandler(listener)
    assert messages == ["an error", "of another thread", "afterwards"]


def test_sizes_of_blocks_are_those_of_one_thread() -> None:
    sizes = []
    with SIZES.set_to(rows=3):
        thread = threading.Thread(target=lambda: sizes.append(SIZES.rows))
        thread.start()
        thread.join()
        assert SIZES.rows == 3
    assert sizes == [256] and SIZES.rows == 256
