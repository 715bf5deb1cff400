"""A short fine-tune: where its tokens stand, which text it sees, and what is refused."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.extension import tune
from posenc.checkpoints.extension.clock import Clock
from posenc.checkpoints.extension.settings import Settings
from posenc.checkpoints.live.attach import attach, detach
from posenc.coordinate_maps import SkippedChunks
from posenc.positions import Positions


def settings(**changes) -> Settings:
    return Settings("it", 2.0, **{"tune": 4, "tune_length": 16, "tune_rate": 1e-3, **changes})


@pytest.fixture
def clock() -> Clock:
    return Clock(lambda words: None)


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


def test_a_map_may_read_the_text(clock: Clock, monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(
        tune, "loss_of", lambda model, window, at: seen.append(torch.cat((window, at))) or model(window).logits.sum()
    )
    asked = settings(tune_map="restarted(separator=7)", tune=3)
    tune.check(asked)
    tune.tune(tiny_llama.model(), torch.arange(90) % 10, 64, asked, clock)
    for ids, at in seen:
        behind = torch.arange(16)[1:][ids[:-1] == 7]
        assert len(behind) and (at[behind] == 0).all() and (at.diff()[behind] == 1).all()


@pytest.mark.parametrize("name", tune.MAPS)
def test_tokens_stand_where_the_map_puts_them_up_to_the_target(name: str, clock: Clock, monkeypatch) -> None:
    seen: list[torch.Tensor] = []
    loss_of = tune.loss_of

    def watched(model, window, at):
        seen.append(at[0])
        return loss_of(model, window, at)

    monkeypatch.setattr(tune, "loss_of", watched)
    tune.tune(tiny_llama.model(), torch.arange(90), 64, settings(tune_map=name, tune=12), clock)
    gaps = torch.stack(seen).diff(dim=1)
    assert (gaps > 0).all() and max(int(at.max()) for at in seen) < 64
    most = {"plain": 0, "pose": 1, "randomised": 15}[name]
    assert int((gaps != 1).sum(1).max()) in ((most,) if name != "randomised" else range(5, 16))
    assert (max(int(at.max()) for at in seen) > 40) == (name != "plain")


def test_the_loss_falls_and_the_same_call_gives_the_same_weights(clock: Clock) -> None:
    ids = torch.tensor(tiny_llama.tokenizer()(tiny_llama.WORDS)["input_ids"])
    models = [tiny_llama.model() for _ in range(2)]
    losses = [tune.tune(model, ids, 64, settings(tune=15, tune_rate=5e-3, tune_map="plain"), clock) for model in models]
    assert losses[0] == losses[1] and len(losses[0]) == 15
    assert losses[0][-1] < losses[0][0] - 0.3
    assert all(a.equal(b) for a, b in zip(*(model.parameters() for model in models), strict=True))
    assert not models[0].training


def test_the_rate_rises_and_falls() -> None:
    rates = [tune.rate(step, 100) for step in range(100)]
    assert rates[9] == 1.0 and rates[4] == 0.5 and rates == sorted(rates[:10]) + sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.01


def test_a_loss_that_is_no_number_stops_the_run(clock: Clock) -> None:
    model = tiny_llama.model()
    with torch.no_grad():
        model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(RuntimeError, match="tuning went wrong at step 1: the loss is nan; lower --tune-rate"):
        tune.tune(model, torch.arange(90), 64, settings(), clock)


def test_a_rate_of_nothing_and_a_text_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="--tune-rate must be above 0, got 0"):
        tune.check(settings(tune_rate=0.0))
    text = SimpleNamespace(ids=torch.arange(100))
    tune.check_text(settings(), text, 17)
    with pytest.raises(ValueError, match="begin at token 16 of 100: too few for a window of 16 tokens"):
        tune.check_text(settings(), text, 16)
