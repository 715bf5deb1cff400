"""What a pass holds in memory, by plan: formulas, and the peak of a process."""

import json
import os
import platform
import subprocess
import sys
from typing import Any

import pytest

pytest.importorskip("transformers")

import tiny_llama
import torch
import torch.nn.functional as F

from posenc.checkpoints.formats.load import hollow_model
from posenc.checkpoints.measures import memory, work


def of(config: Any, length: int, dtype: torch.dtype = torch.float32, **way: Any) -> memory.Memory:
    from transformers import AutoModelForCausalLM

    return memory.of_pass(hollow_model(AutoModelForCausalLM, config, dtype), length, **way)


def test_weights_cache_and_logits_are_those_of_the_formulas() -> None:
    found = of(tiny_llama.config(), 200, chunk=50)
    vocabulary, model = len(tiny_llama.CHARACTERS), tiny_llama.model()
    assert found.weights == 4 * sum(one.numel() for one in (*model.parameters(), *model.buffers()))
    # Keys and values of 2 layers with one head of 16; the last token is not read.
    assert found.cache == 2 * 2 * 16 * 199 * 4
    # The logits of the last chunk, and as many of its rows as there are up to 128, twice in float32.
    assert found.logits == 50 * vocabulary * 4 + 2 * 50 * vocabulary * 4
    assert found.total == found.weights + found.cache + max(found.layers, found.logits)
    # The last chunk is the fullest one, although 199 is no multiple of 50.
    assert of(tiny_llama.config(), 220, chunk=50).logits == found.logits
    many = of(tiny_llama.config(), 200, chunk=50, batch=3)
    assert many.cache == 3 * found.cache and 2 * found.layers < many.layers <= 3 * found.layers
    half = of(tiny_llama.config(), 200, torch.bfloat16, chunk=50)
    assert (2 * half.weights, 2 * half.cache) == (found.weights, found.cache)


def test_a_window_ends_the_cache_and_shared_keys_are_kept_once() -> None:
    from transformers import Gemma3nTextConfig, MistralConfig

    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1}
    sizes |= {"head_dim": 16, "vocab_size": 64, "max_position_embeddings": 96}
    window = of(MistralConfig(**sizes, num_hidden_layers=2, sliding_window=33), 200, chunk=50)
    # Behind a chunk a window keeps what the next token sees beside itself, and counts.
    assert window.cache == pytest.approx(2 * 2 * 16 * 32 * 4, abs=64)
    small = {"num_hidden_layers": 4, "layer_types": ["full_attention"] * 4, "vocab_size_per_layer_input": 64}
    small |= {
        "hidden_size_per_layer_input": 8,
        "laurel_rank": 4,
        "altup_num_inputs": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    }
    shared = of(Gemma3nTextConfig(**sizes | small, num_kv_shared_layers=2), 100, chunk=50)
    assert shared.cache == 2 * 2 * 16 * 99 * 4


def test_a_kernel_that_makes_scores_is_seen_to_make_them() -> None:
    plain = of(tiny_llama.config(), 400, chunk=100)
    scores = of(tiny_llama.config(attn_implementation="eager"), 400, chunk=100)
    # Two heads, a hundred queries, 399 keys, float32: the scores and what the softmax makes of them.
    assert scores.layers - plain.layers > 2 * 100 * 399 * 4


def test_of_a_cache_elsewhere_two_layers_are_on_the_device() -> None:
    config = tiny_llama.config(num_hidden_layers=5)
    here, elsewhere = (of(config, 200, chunk=50, cache=place) for place in ("device", "cpu"))
    assert elsewhere.cache * 5 == here.cache * 2 and elsewhere.layers == here.layers


def test_a_view_of_a_weight_is_no_memory_of_its_own() -> None:
    """Experts turn their weights on their side: 1.2 TiB of DeepSeek-V3 were planned twice."""
    weight = torch.empty(300, 100, device="meta")
    with memory.Counted(weights=[weight]) as counted:
        made = torch.empty(7, 300, device="meta") @ weight
        weight.mT.contiguous()
    assert counted.now == made.nbytes and counted.peak == (7 * 100 + 300 * 100) * 4


def test_a_mask_that_becomes_numbers_counts() -> None:
    mask, query = torch.ones(1, 1, 64, 64, dtype=torch.bool, device="meta"), torch.empty(1, 2, 64, 8, device="meta")
    with memory.Fused(), memory.Counted() as counted:
        F.scaled_dot_product_attention(query, query, query, attn_mask=mask)
    assert counted.peak == 64 * 64 * 4 + 2 * 64 * 8 * 4


MEASURED = """
import json, os
from pathlib import Path
import tiny_llama, torch
from posenc.checkpoints.formats.load import hollow_model
from posenc.checkpoints.measures import memory, perplexity
from posenc.checkpoints.measures.work import Meter, without_holes
from transformers import LlamaForCausalLM

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

torch.set_num_threads(1)
without_holes()
sizes = {"hidden_size": 256, "intermediate_size": 1024, "num_attention_heads": 4, "num_key_value_heads": 4}
config = tiny_llama.config(**sizes, head_dim=64, num_hidden_layers=2, vocab_size=49152)
model, ids = LlamaForCausalLM(config).eval(), torch.arange(2000)
perplexity.losses(model, ids[:9], chunk=8)
with Meter() as idle:
    pass
with Meter() as busy:
    perplexity.losses(model, ids, chunk=500)
plan = memory.of_pass(hollow_model(type(model), config), len(ids), chunk=500)
# glibc would learn from it.
torch.ones(7 << 20)
held = [resident()]
blocks = [torch.ones(2 << 20) for _ in range(20)]
held.append(resident())
last = blocks.pop()
blocks.clear()
held.append(resident())
print(json.dumps({"plan": plan.total - plan.weights, "peaks": [idle.peak_mib, busy.peak_mib], "held": held}))
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc", reason="the allocator of glibc, and what Linux says of a process"
)
def test_a_process_takes_what_was_planned_and_gives_back_what_is_freed() -> None:
    # In a process of its own: what others have left in this one would be used again.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", MEASURED], env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    idle, busy = found["peaks"]
    # What there is beside the weights: 8 MiB of cache, and 140 of logits.
    assert (busy - idle) * 2**20 == pytest.approx(found["plan"], rel=0.25)
    # Twenty blocks of 8 MiB, of which the last is held on to.
    before, full, after = found["held"]
    assert full - before > 15 * (8 << 20) and after - before < 4 * (8 << 20)


def test_the_allocator_of_a_gpu_leaves_no_holes_unless_the_environment_says_how(monkeypatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(work.ctypes, "CDLL", lambda name: None)
    monkeypatch.setattr(torch._C, "_accelerator_setAllocatorSettings", told.append)
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        monkeypatch.delenv(name, raising=False)
    work.without_holes()
    assert not told or torch.cuda.is_available()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    told.clear()
    work.without_holes()
    assert told == ["expandable_segments:True"]
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    work.without_holes()
    assert len(told) == 1
