"""Nothing that somebody else may hold is overwritten: by attention, by models, and by caches."""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.modules.module import register_module_forward_hook, register_module_full_backward_hook
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from posenc import Attention, Decoder, Encoder, EncoderDecoder, Positions, masks
from posenc.cache import GrowingCache, SlotCache
from posenc.encodings.path import PaTH
from posenc.kernels.block_sizes import SIZES
from posenc.watched import is_held, is_watched

Records = list[tuple[Tensor, Tensor]]

SPECS = ("rotary", "xpos", "learned_rotary", "sinusoidal + rotary", "learned(max_len=32)")


def note(records: Records, results: object) -> None:
    """Keep every floating tensor, and beside it what it was."""
    with torch.no_grad():
        for result in tree_leaves(results):
            if isinstance(result, Tensor) and result.is_floating_point():
                records.append((result, result.detach().clone()))


def changed(records: Records) -> list[int]:
    return [index for index, (held, was) in enumerate(records) if not torch.equal(held.detach(), was)]


@contextmanager
def global_hook(records: Records) -> Generator[None]:
    handle = register_module_forward_hook(lambda module, given, result: note(records, result))
    try:
        yield
    finally:
        handle.remove()


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


WATCHERS = {"a global hook": global_hook, "a function mode": function_mode, "a dispatch mode": dispatch_mode}


@pytest.mark.parametrize("watch", WATCHERS.values(), ids=WATCHERS)
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("gradients", [True, False])
def test_what_a_recorder_kept_of_a_model_stays_as_it_was(watch: Callable, spec: str, gradients: bool) -> None:
    model = Decoder(vocab=11, dim=16, heads=2, layers=2, encoding=spec, max_len=32).eval()
    ids, records = torch.randint(11, (2, 7)), []
    with torch.set_grad_enabled(gradients):
        expected = model(ids)
        with watch(records):
            assert torch.allclose(model(ids), expected, atol=1e-6)
    assert len(records) >= 9
    assert not changed(records)


@pytest.mark.parametrize("watch", WATCHERS.values(), ids=WATCHERS)
def test_what_a_recorder_kept_of_an_encoder_and_a_decoder_stays_as_it_was(watch: Callable) -> None:
    model = EncoderDecoder(vocab=11, dim=16, heads=2, layers=1, encoding="sinusoidal + rotary", scale_tokens=False)
    ids, records = torch.randint(11, (2, 7)), []
    with watch(records), torch.no_grad():
        model(ids, ids)
        Encoder(vocab=11, dim=16, heads=2, layers=1)(ids)
    assert not changed(records)


def own_hook(linear: nn.Module, records: Records) -> None:
    linear.register_forward_hook(lambda module, given, result: note(records, result))


def own_forward(linear: nn.Module, records: Records) -> None:
    forward = linear.forward

    def recording(x: Tensor) -> Tensor:
        result = forward(x)
        note(records, result)
        return result

    linear.forward = recording


def own_class(linear: nn.Module, records: Records) -> None:
    class Recorder(type(linear)):
        def forward(self, x: Tensor) -> Tensor:
            result = super().forward(x)
            note(records, result)
            return result

    linear.__class__ = Recorder


@pytest.mark.parametrize("keep", [own_hook, own_forward, own_class])
@pytest.mark.parametrize("name", ["stack.blocks.0.attention.to_key", "embedding.token"])
def test_what_a_module_itself_hands_out_stays_as_it_was(keep: Callable, name: str) -> None:
    model = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding="sinusoidal + rotary")
    records: Records = []
    keep(model.get_submodule(name), records)
    with torch.no_grad():
        model(torch.randint(11, (2, 7)))
    assert records and not changed(records)


class Labelled(Tensor):
    """A tensor that keeps what is made of it."""

    kept: Records

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if func is nn.functional.linear or func is nn.functional.embedding:
            with torch._C.DisableTorchFunctionSubclass():
                note(cls.kept, result)
        return result


def test_what_a_tensor_class_keeps_of_its_results_stays_as_it_was() -> None:
    Labelled.kept = []
    model = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding="sinusoidal + rotary")
    with torch.no_grad():
        model(torch.randint(11, (2, 7)).as_subclass(Labelled))
    assert Labelled.kept and not changed(Labelled.kept)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")
@pytest.mark.parametrize("watch", ["global", "own"])
def test_backward_hooks_of_modules_see_gradients_and_change_none(watch: str) -> None:
    model = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding="sinusoidal + rotary", bias=False)
    ids, seen = torch.randint(11, (2, 7)), []

    def gradients() -> list[Tensor]:
        model.zero_grad()
        model(ids).square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    expected = gradients()
    hook = lambda module, into, out: seen.append(module)  # noqa: E731
    handles = (
        [register_module_full_backward_hook(hook)]
        if watch == "global"
        else [module.register_full_backward_hook(hook) for module in model.modules()]
    )
    try:
        got = gradients()
    finally:
        for handle in handles:
            handle.remove()
    assert {model.embedding.token, model.stack.blocks[0].attention.to_query} <= set(seen)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_tensors_that_somebody_packs_for_the_backward_pass_stay_as_they_were() -> None:
    records: Records = []

    def pack(tensor: Tensor) -> Tensor:
        note(records, tensor)
        return tensor

    model = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding="sinusoidal + scalable_softmax + rotary")
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        assert is_held()
        model(torch.randint(11, (2, 7))).sum()
    assert records and not changed(records)


@pytest.mark.parametrize("make", [GrowingCache, lambda: SlotCache(12), lambda: SlotCache(12, rolling=True)])
@pytest.mark.parametrize("watch", [function_mode, dispatch_mode])
def test_keys_that_a_watched_cache_gave_stay_as_they_were(make: Callable, watch: Callable) -> None:
    layer, cache, records = Attention(16, 2, encoding="rotary"), make(), []
    with torch.no_grad(), watch([]):
        for token in range(8):
            x = torch.randn(2, 1, 16)
            layer(x, positions=torch.tensor([token]), cache=cache, mask=masks.window(5))
            note(records, (cache.keys.k, cache.keys.v, cache.keys.at.coords.float()))
    assert not changed(records)


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
    assert not is_watched() and not is_held()
    with torch.device("cpu"):
        assert not is_watched() and not is_held()
        with TorchFunctionMode():
            assert is_watched()
    with global_hook([]):
        assert is_held() and not is_watched()


def test_alone_attention_works_in_place() -> None:
    layer = Attention(16, 2, encoding="rotary")
    seen: list[tuple[int, int]] = []
    turn = layer.encoding.turn_both

    def watching(q: Tensor, k: Tensor, *args, **named):
        out = turn(q, k, *args, **named)
        seen.append((out[0].data_ptr() == q.data_ptr(), out[1].data_ptr() == k.data_ptr()))
        return out

    layer.encoding.turn_both = watching
    with torch.no_grad():
        layer(torch.randn(2, 7, 16))
        with global_hook([]):
            layer(torch.randn(2, 7, 16))
    assert seen == [(True, True), (False, False)]


class Wrapped(nn.Module):
    """A projection with something beside it, as adapters wrap one; it keeps what it handed out."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.records = inner, []

    def forward(self, x: Tensor) -> Tensor:
        result = self.inner(x)
        note(self.records, result)
        return result


def test_a_projection_may_be_wrapped_by_any_module_and_keep_its_results() -> None:
    layer, x = Attention(16, 2, encoding="rotary"), torch.randn(2, 5, 16)
    expected = layer(x, mask=masks.causal())
    layer.to_query, layer.to_key = Wrapped(layer.to_query), Wrapped(layer.to_key)
    with torch.no_grad():
        assert torch.equal(layer(x, mask=masks.causal()), expected)
    assert not changed(layer.to_query.records) and not changed(layer.to_key.records)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", ["rotary", "alibi", "learned"])
def test_a_model_that_is_traced_gives_what_it_gave(spec: str) -> None:
    model, (ids, others) = Decoder(vocab=11, dim=16, heads=2, layers=1, encoding=spec), torch.randint(11, (2, 2, 6))
    with torch.no_grad():
        traced = torch.jit.trace(model, (ids,), check_trace=False)
        torch.testing.assert_close(traced(others), model(others))


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
    with SIZES.set_to(pairs_of_rules=1):
        out = layer(torch.randn(2, 5, 16), positions=Positions.of(places), mask=masks.causal())
        places.add_(1)
        with pytest.raises(RuntimeError, match=r"in place after the forward pass; .* Positions.of\(ids.clone\(\)\)"):
            out.sum().backward()
