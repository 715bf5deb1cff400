"""Recorded values of a pass stay unchanged, also under tracing and when positions change."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posenc import Attention, Decoder, Positions, masks
from posenc.cache import GrowingCache, SlotCache
from posenc.encodings.rules.path import PaTH
from posenc.kernels.block_sizes import SIZES
from posenc.tokens.tracing import is_watched

Records = list[tuple[Tensor, Tensor]]


def note(records: Records, results: object) -> None:
    """Record every floating-point tensor together with a copy."""
    with torch.no_grad():
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.is_floating_point():
                records.append((result, result.detach().clone()))


def changed_records(records: Records) -> list[int]:
    return [index for index, (tensor, was) in enumerate(records) if not torch.equal(tensor.detach(), was)]


@contextmanager
def function_mode(records: Records) -> Generator[None]:
    class Recorder(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func is nn.functional.linear or func is nn.functional.embedding:
                note(records, result)
            return result

    with Recorder():
        yield


@contextmanager
def dispatch_mode(records: Records) -> Generator[None]:
    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func._schema.name in ("aten::addmm", "aten::linear", "aten::mm", "aten::embedding"):
                note(records, result)
            return result

    with Recorder():
        yield


@pytest.mark.parametrize("watch", [function_mode, dispatch_mode])
@pytest.mark.parametrize("spec", ["rotary", "xpos", "sinusoidal + learned_rotary", "learned(max_len=32)"])
@pytest.mark.parametrize("gradients", [True, False])
def test_what_a_recorder_kept_of_a_model_stays_as_it_was(watch: Callable, spec: str, gradients: bool) -> None:
    model = Decoder(vocab=11, dim=16, heads=2, layers=2, encoding=spec, max_len=32).eval()
    ids, records = torch.randint(11, (2, 7)), []
    with torch.set_grad_enabled(gradients):
        expected = model(ids)
        with watch(records):
            assert torch.allclose(model(ids), expected, atol=1e-6)
    assert len(records) >= 9
    assert not changed_records(records)


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(12), lambda: SlotCache(12, rolling=True)])
@pytest.mark.parametrize("watch", [function_mode, dispatch_mode])
def test_keys_that_a_watched_cache_gave_stay_as_they_were(make: Callable, watch: Callable) -> None:
    layer, cache, records = Attention(16, 2, encoding="rotary"), make(), []
    with torch.no_grad(), watch([]):
        for token in range(8):
            x = torch.randn(2, 1, 16)
            layer(x, positions=torch.tensor([token]), cache=cache, mask=masks.window(5))
            note(records, (cache.keys.k, cache.keys.v, cache.keys.at.coords.float()))
    assert not changed_records(records)


@pytest.mark.parametrize("spec", ["rotary", "sinusoidal"])
def test_a_traced_model_changes_no_result_of_a_projection(spec: str) -> None:
    model = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding=spec).eval()
    ids = torch.randint(11, (2, 7))
    with torch.no_grad():
        expected = model(ids)
        graph = make_fx(model)(ids)
        assert torch.allclose(graph(ids), expected, atol=1e-6)
    assert "embedding" in graph.code
    assert not [node for node in graph.graph.nodes if str(node.target).startswith(("aten.add_.", "aten.mul_."))]


def test_a_device_context_watches_nobody_and_a_mode_does() -> None:
    assert not is_watched()
    with torch.device("cpu"):
        assert not is_watched()
        with TorchFunctionMode():
            assert is_watched()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", ["rotary", "alibi", "learned"])
def test_a_model_that_is_traced_gives_what_it_gave(spec: str) -> None:
    model, (ids, other_ids) = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding=spec), torch.randint(11, (2, 2, 6))
    with torch.no_grad():
        graph = torch.jit.trace(model, (ids,), check_trace=False)
        torch.testing.assert_close(graph(other_ids), model(other_ids))


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("spec", ["rotary", "sinusoidal", "log_temperature", "alibi"])
def test_positions_that_somebody_changes_in_place_are_read_anew(mode: Callable, spec: str) -> None:
    model, ids = Decoder(vocab=11, dim=16, heads=2, layers=2, encoding=spec), torch.randint(11, (2, 5))
    places = torch.arange(5)
    at = Positions.of(places)
    with mode():
        model(ids, positions=at)
        places.mul_(3)
        assert torch.equal(model(ids, positions=at), model(ids, positions=Positions.of(places.clone())))


@pytest.mark.parametrize("spec", ["alibi", "forgetting", "path"])
def test_positions_that_are_changed_before_the_backward_pass_are_refused(spec: str, monkeypatch) -> None:
    monkeypatch.setattr(PaTH, "queries_together", 1)
    layer, places = Attention(16, 2, encoding=spec), torch.tensor([0, 1, 5, 6, 9])
    with SIZES.set_to(pairs_of_rules=1, pairs_of_a_grid=0):
        out = layer(torch.randn(2, 5, 16), positions=Positions.of(places), mask=masks.causal())
        places.add_(1)
        with pytest.raises(RuntimeError, match=r"in place after the forward pass; .* Positions.of\(ids.clone\(\)\)"):
            out.sum().backward()
