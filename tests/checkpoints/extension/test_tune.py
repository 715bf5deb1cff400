"""A short fine-tune: where its tokens stand, which text it sees, and what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.extension.clock import Clock
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.extension.tuning import adapters, state, tune
from posenc.checkpoints.live.attach import attach, detach
from posenc.coordinate_maps import SkippedChunks
from posenc.foreign import CannotRead
from posenc.positions import Positions

IDS = torch.arange(90)


def settings(**changes) -> Settings:
    return Settings("it", 2.0, **{"tune": 4, "tune_length": 16, "tune_rate": 1e-3, **changes})


def tuned(model: Any, folder: Path, ids: torch.Tensor = IDS, **changes: Any) -> tune.Tuned:
    return tune.tune(model, ids, 64, settings(**changes), Clock(lambda words: None), folder)


def differing(one: Any, other: Any) -> set[str]:
    """The names of the parameters that differ between two models."""
    pairs = zip(one.named_parameters(), other.parameters(), strict=True)
    return {name for (name, a), b in pairs if not torch.equal(a, b)}


@pytest.mark.parametrize("attached", [False, True])
def test_a_gap_between_positions_is_a_gap_and_no_border_of_documents(attached: bool) -> None:
    model = tiny_llama.model()
    at = torch.cat((torch.arange(8), torch.arange(60, 68)))[None]
    window = torch.arange(20, 36)[None]
    if attached:
        attach(model, "rotary(base=500.0)")
    with torch.no_grad():
        found = tune.loss_of(model, window, at)
        # A mask of pairs leaves nothing to be guessed.
        pairs = torch.ones(16, 16, dtype=torch.bool).tril()[None, None]
        logits = model(input_ids=window, position_ids=at, attention_mask=pairs, use_cache=False).logits[0, :-1]
        expected = torch.nn.functional.cross_entropy(logits, window[0, 1:])
        near = tune.loss_of(model, window, torch.arange(16)[None])
    if attached:
        detach(model)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert abs(float(found - near)) > 1e-4


def test_maps_by_name() -> None:
    assert tune.map_of("plain", 64) is None
    assert tune.map_of("pose", 64) == SkippedChunks(longest=64)
    at = tune.map_of("randomised", 64)(Positions.count(16)).coords[0, :, 0]
    assert (at.diff() > 0).all() and int(at.max()) < 64
    # Any other is a spec, which says itself how far it reaches.
    assert tune.map_of("skipped_chunks(longest=50, chunks=3)", 64) == SkippedChunks(longest=50, chunks=3)


def test_a_map_may_read_the_text(tmp_path: Path, monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        tune, "loss_of", lambda model, window, at: seen.append(torch.cat((window, at))) or model(window).logits.sum()
    )
    asked = {"tune_map": "restarted(separator=7)", "tune": 3, "tune_weights": "all"}
    tune.check(settings(**asked))
    tuned(tiny_llama.model(), tmp_path, IDS % 10, **asked)
    for ids, at in seen:
        behind = torch.arange(16)[1:][ids[:-1] == 7]
        assert len(behind) and (at[behind] == 0).all() and (at.diff()[behind] == 1).all()


@pytest.mark.parametrize("name", tune.MAPS)
def test_tokens_stand_where_the_map_puts_them_up_to_the_target(name: str, tmp_path: Path, monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    loss_of = tune.loss_of

    def watched(model, window, at):
        seen.append(at[0])
        return loss_of(model, window, at)

    monkeypatch.setattr(tune, "loss_of", watched)
    tuned(tiny_llama.model(), tmp_path, tune_map=name, tune=12)
    gaps = torch.stack(seen).diff(dim=1)
    assert (gaps > 0).all() and max(int(at.max()) for at in seen) < 64
    most = {"plain": 0, "pose": 1, "randomised": 15}[name]
    assert int((gaps != 1).sum(1).max()) in ((most,) if name != "randomised" else range(5, 16))
    assert (max(int(at.max()) for at in seen) > 40) == (name != "plain")


def test_the_loss_falls_and_the_same_call_gives_the_same_weights(tmp_path: Path) -> None:
    ids = torch.tensor(tiny_llama.tokenizer()(tiny_llama.WORDS)["input_ids"])
    models = [tiny_llama.model() for _ in range(2)]
    first, second = (
        tuned(model, tmp_path / str(place), ids, tune=15, tune_rate=5e-3, tune_map="plain").losses
        for place, model in enumerate(models)
    )
    assert first == second and len(first) == 15
    assert first[-1] < first[0] - 0.3
    assert not differing(*models)
    assert not models[0].training


# Which weights


def test_adapters_begin_at_nothing_and_are_merged_into_what_they_stood_beside(tmp_path: Path) -> None:
    before, model, ids = tiny_llama.model(), tiny_llama.model(), IDS[None, :16]
    with torch.no_grad(), adapters.trained(model, "lora", 4, torch.Generator().manual_seed(0)) as (narrow, whole):
        assert torch.equal(model(ids).logits, before(ids).logits)
        assert [tuple(one.shape) for one in narrow[:4]] == [(4, 32), (32, 4), (4, 32), (16, 4)]
        for one in narrow:
            one.normal_()
        beside = model(ids).logits
        asked = {one for one in model.parameters() if one.requires_grad}
        assert asked == set(whole) and asked < set(model.parameters())
    assert not torch.allclose(beside, before(ids).logits, atol=0.1)
    torch.testing.assert_close(model(ids).logits, beside, rtol=1e-4, atol=1e-4)
    assert all(one.requires_grad for one in model.parameters())
    assert {name.split(".")[-2] for name in differing(model, before)} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_lora_leaves_all_but_attention_embeddings_and_norms_and_all_leaves_nothing(tmp_path: Path) -> None:
    before, model = tiny_llama.model(), tiny_llama.model()
    found = tuned(model, tmp_path / "lora", tune_rank=2)
    left = {name for name, _ in model.named_parameters()} - differing(model, before)
    assert {name.split(".")[-2] for name in left} == {"gate_proj", "up_proj", "down_proj", "lm_head"}
    whole = sum(p.numel() for n, p in model.named_parameters() if "norm" in n or "embed" in n)
    assert found.trained == whole + 2 * 2 * ((32 + 32) + 2 * (32 + 16) + (32 + 32))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    model = tiny_llama.model()
    tuned(model, tmp_path / "all", tune_weights="all")
    assert len(differing(model, before)) == len(list(model.parameters()))


def test_the_insides_of_layers_are_computed_again_and_not_kept(tmp_path: Path) -> None:
    model, calls = tiny_llama.model(), list[bool]()
    model.model.layers[0].self_attn.register_forward_hook(lambda *_: calls.append(model.training))
    tuned(model, tmp_path, tune=1)
    assert calls == [True, True]
    model.train()
    model(IDS[None]).logits.sum().backward()
    assert len(calls) == 3


def test_fused_and_transposed_projections_have_adapters_too(tmp_path: Path) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64, "vocab_size": 101}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).eval()
    before = {name: one.clone() for name, one in model.named_parameters()}
    with torch.no_grad(), adapters.trained(model, "lora", 4, torch.Generator().manual_seed(0)) as (narrow, _):
        assert [tuple(one.shape) for one in narrow] == [(4, 16), (48, 4), (4, 16), (16, 4)]
        for one in narrow:
            one.normal_()
        beside = model(IDS[None, :16]).logits
    torch.testing.assert_close(model(IDS[None, :16]).logits, beside, rtol=1e-4, atol=1e-4)
    changed = {name for name, one in model.named_parameters() if not torch.equal(one, before[name])}
    assert changed == {"transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_proj.weight"}


def test_a_model_without_attention_and_an_adapter_that_is_passed_by_are_refused(tmp_path: Path, monkeypatch) -> None:
    with pytest.raises(ValueError, match=r"no module of a Linear is named attention.*--tune-weights all"):
        adapters.projections_of(torch.nn.Linear(2, 2))
    monkeypatch.setattr(adapters.Adapter, "beside", lambda self, projection, given, out: out)
    with pytest.raises(RuntimeError, match=r"no gradient reaches an adapter of this LlamaForCausalLM.*all"):
        tuned(tiny_llama.model(), tmp_path)


def test_steps_too_small_for_half_precision_add_up(tmp_path: Path) -> None:
    """A step is half of what bfloat16 can tell apart at 1: without copies in float32 a norm would never move."""
    model = tiny_llama.model().bfloat16()
    tuned(model, tmp_path, tune_map="plain", tune=8, tune_rate=1e-3)
    norm = model.model.norm.weight
    assert norm.dtype == torch.bfloat16 and (norm != 1).any()


# Stop, and go on


def test_a_tuning_that_was_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path, monkeypatch) -> None:
    ids, whole, model = torch.arange(90).flip(0), tiny_llama.model(attention_dropout=0.2), None
    unbroken = tuned(whole, tmp_path / "whole", ids, tune=7)
    monkeypatch.setattr(tune, "KEPT_EVERY", 0.0)
    save = state.save

    def cut(folder, weights, optimiser, losses, seconds):
        save(folder, weights, optimiser, losses, seconds)
        if len(losses) in (2, 5):
            raise KeyboardInterrupt

    monkeypatch.setattr(state, "save", cut)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            tuned(tiny_llama.model(attention_dropout=0.2), tmp_path / "cut", ids, tune=7)
    model = tiny_llama.model(attention_dropout=0.2)
    assert tuned(model, tmp_path / "cut", ids, tune=7).losses == unbroken.losses
    assert not differing(model, whole)


def test_a_damaged_state_says_how_to_begin_again(tmp_path: Path) -> None:
    weights = [torch.nn.Parameter(torch.ones(3))]
    optimiser = torch.optim.AdamW(weights)
    state.save(tmp_path, weights, optimiser, [1.0], 2.0)
    assert state.load(tmp_path, weights, optimiser) == ([1.0], 2.0)
    (file,) = tmp_path.glob("*/tuning.safetensors")
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(CannotRead, match=r"does not fit its checksum.*delete '.*tunes from the first step"):
        state.load(tmp_path, weights, optimiser)


def test_the_rate_rises_and_falls() -> None:
    rates = [tune.rate(step, 100) for step in range(100)]
    assert rates[9] == 1.0 and rates[4] == 0.5 and rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.01


def test_a_loss_that_is_no_number_stops_the_run(tmp_path: Path) -> None:
    model = tiny_llama.model()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="tuning went wrong at step 1: the loss is nan; lower --tune-rate"):
        tuned(model, tmp_path)


def test_a_rate_of_nothing_and_a_text_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="--tune-rate must be above 0, got 0"):
        tune.check(settings(tune_rate=0.0))
    text = SimpleNamespace(ids=torch.arange(100))
    tune.check_text(settings(), text, 17)
    with pytest.raises(ValueError, match="begin at token 16 of 100: too few for a window of 16 tokens"):
        tune.check_text(settings(), text, 16)
