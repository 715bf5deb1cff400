"""Perplexity in bounded memory, against one pass in double precision, and against numbers worked out by hand."""

import math
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

import tiny_llama

from posenc.checkpoints.extension.clock import Meter
from posenc.checkpoints.formats.load import LoadedModel
from posenc.checkpoints.live.attach import attach, detach
from posenc.checkpoints.measures import perplexity
from posenc.checkpoints.measures.measure import Inputs
from posenc.checkpoints.measures.perplexity import Perplexity, PrefixCache, Tokens

SPEC = "rotary(base=500.0, schedule={})"


@pytest.fixture(scope="module")
def model():
    return tiny_llama.model()


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 100, (150,), generator=torch.Generator().manual_seed(1))


def in_one_pass(model, ids: Tensor) -> Tensor:
    """The definition: -ln softmax of one pass without a cache, in double precision."""
    with torch.no_grad():
        logits = model.double()(input_ids=ids[None]).logits[0]
    model.float()
    return -logits[:-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]


@pytest.mark.parametrize("chunk", [1, 7, 64, 149, 1000])
def test_losses_are_those_of_one_pass_whatever_the_chunk(chunk: int, model, ids: Tensor) -> None:
    if chunk == 1:
        ids = ids[:20]
    losses = perplexity.losses(model, ids, chunk=chunk)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses.double(), in_one_pass(model, ids), rtol=0, atol=2e-5)


@pytest.mark.parametrize("method", ["yarn(factor=2, trained_length=96)", "linear(factor=2)"])
def test_one_pass_at_the_longest_length_serves_all_shorter_ones(method: str, model, ids: Tensor) -> None:
    attach(model, SPEC.format(method))
    long, short = (perplexity.losses(model, ids[:length], chunk=40) for length in (150, 101))
    detach(model)
    torch.testing.assert_close(long[:100], short, rtol=0, atol=2e-5)


def test_what_depends_on_the_length_takes_a_pass_for_each(model, ids: Tensor) -> None:
    losses = {}
    for length in (100, 150):
        attach(model, SPEC.format("dynamic_ntk(factor=2.0, trained_length=96)"), horizon=length)
        losses[length] = perplexity.losses(model, ids[:length], chunk=40)
        detach(model)
    assert (losses[150][:99] - losses[100]).abs().max() > 1e-3


def test_memory_holds_the_logits_of_one_chunk_and_few_rows_in_float32(model, ids: Tensor, monkeypatch) -> None:
    rows, read = [], []
    cross_entropy = torch.nn.functional.cross_entropy

    def counted_cross_entropy(logits: Tensor, *args, **options) -> Tensor:
        rows.append(logits.shape[0])
        return cross_entropy(logits, *args, **options)

    monkeypatch.setattr(perplexity, "LOSS_ROWS", 16)
    monkeypatch.setattr(perplexity.F, "cross_entropy", counted_cross_entropy)
    for logits, targets in perplexity.predictions(model, ids, 40, None, PrefixCache()):
        read.append(len(logits))
        assert len(logits) == len(targets)
    perplexity.losses(model, ids, chunk=40)
    assert read == [40, 40, 40, 29]
    assert max(rows) == 16 and sum(rows) == 149


def test_the_logits_of_a_chunk_are_gone_when_the_next_ones_are_made(ids: Tensor) -> None:
    model, refs = tiny_llama.model(), []

    def check_freed(*_: object) -> None:
        assert all(logits() is None for logits in refs)

    model.register_forward_pre_hook(check_freed)
    model.lm_head.register_forward_hook(lambda head, args, output: refs.append(weakref.ref(output.untyped_storage())))
    perplexity.losses(model, ids, chunk=40)
    perplexity.likeliest_tokens(model, ids, 100, 40, PrefixCache())
    assert len(refs) == 8


def test_no_logits_are_made_that_are_not_wanted(ids: Tensor) -> None:
    model, row_counts = tiny_llama.model(), []
    model.lm_head.register_forward_hook(lambda head, args, output: row_counts.append(output.shape[1]))
    last = perplexity.losses(model, ids, chunk=40, last=50)
    likeliest = perplexity.likeliest_tokens(model, ids, 50, 40, PrefixCache())
    # 149 predictions in chunks of 40, 40, 40 and 29; a chunk without predictions still makes one row.
    assert row_counts == [1, 1, 21, 29] * 2
    whole = perplexity.losses(model, ids, chunk=40)
    torch.testing.assert_close(last, whole[-50:], rtol=1e-5, atol=1e-5)
    logits = torch.cat([logits for logits, _ in perplexity.predictions(model, ids, 40, None, PrefixCache())])
    assert torch.equal(likeliest, logits[-50:].argmax(-1))


def test_progress_is_the_share_of_the_work_and_ends_at_one(model, ids: Tensor) -> None:
    shares: list[float] = []
    perplexity.losses(model, ids, chunk=50, tell=shares.append)
    assert shares == sorted(shares) and len(shares) == 3 and shares[-1] == 1.0


@pytest.mark.parametrize(
    ("ids", "chunk", "message"),
    [
        (torch.tensor([1]), 8, r"two tokens or more, got shape \[1\]"),
        (torch.zeros(1, 1, 9, dtype=torch.long), 8, r"got shape \[1, 1, 9\]"),
        (torch.arange(9), 0, "chunk must be 1 token or more, got 0"),
    ],
)
def test_what_cannot_be_read_is_refused(ids: Tensor, chunk: int, message: str, model) -> None:
    with pytest.raises(ValueError, match=message):
        perplexity.losses(model, ids, chunk=chunk)


# Measures


def test_perplexity_is_the_exponential_of_the_mean_over_all_windows() -> None:
    windows = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 7.0])]
    assert perplexity.perplexity(windows, 1, 4) == pytest.approx(math.exp(4.0))
    assert perplexity.perplexity(windows, 2, 3) == pytest.approx(math.exp(4.0))
    assert perplexity.perplexity(windows, 1, 2) == pytest.approx(math.exp(3.0))


def test_the_last_tokens_are_the_last_512_of_the_length() -> None:
    losses = torch.cat((torch.full((999,), 1.0), torch.full((512,), 2.0), torch.full((488,), 3.0)))
    values = partial(Perplexity.values, None, {2000: {"losses": [losses.tolist()]}})
    numbers = values(1512)
    # Tokens 1000..1511 have a loss of 2; those before, 1.
    assert numbers["last"].value == pytest.approx(math.exp(2.0))
    assert numbers["mean"].value == pytest.approx(math.exp((999 + 1024) / 1511))
    assert numbers["last"].error is None
    short = values(100)
    assert short["last"].value == short["mean"].value == pytest.approx(math.e)


def test_the_error_is_that_of_windows() -> None:
    windows = [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]
    mean = Perplexity.values(None, {3: {"losses": windows}}, 3)["mean"]
    # Mean losses 1, 2, 3: standard deviation 1, standard error 1/sqrt(3), and exp' = exp.
    assert mean.each == (1.0, 2.0, 3.0)
    assert mean.error == pytest.approx(math.exp(2) / math.sqrt(3))


def test_windows_are_as_many_as_a_short_text_holds(model, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(tiny_llama.TEXT)
    checkpoint = LoadedModel(model, tiny_llama.tokenizer(), model.config, tmp_path)
    inputs = Inputs(checkpoint, 96, 192, text=(str(tmp_path / "text.txt"),))
    tokens = len(inputs.tokens.ids)
    measure = Perplexity(inputs)
    assert (measure.count, measure.start) == (tokens // 192, tokens % 192)
    measure = Perplexity(replace(inputs, start=400, samples=3))
    assert (measure.count, measure.start) == (3, 400)
    assert measure.window(2, 100).tolist() == inputs.tokens.ids[784:884].tolist()
    long = "x" * 30_000
    (tmp_path / "text.txt").write_text(long)
    assert (Perplexity(replace(inputs)).count, Perplexity(replace(inputs)).start) == (24, 2000)
    assert Perplexity(replace(inputs, longest=4096)).count == 2


def test_a_pass_serves_shorter_lengths_unless_the_method_goes_by_the_length() -> None:
    assert Perplexity.passes(None, (96, 144, 192), by_length=False) == (192,)
    assert Perplexity.passes(None, (96, 144, 192), by_length=True) == (96, 144, 192)


def test_a_curve_covers_every_token_once() -> None:
    losses = torch.arange(1.0, 11.0)
    where, values = perplexity.curve([losses], bins=5)
    assert where == [1.5, 3.5, 5.5, 7.5, 9.5]
    assert values == pytest.approx([math.exp(x) for x in (1.5, 3.5, 5.5, 7.5, 9.5)])


def test_a_loss_beyond_all_numbers_stays_a_number() -> None:
    assert math.isfinite(perplexity.perplexity([torch.tensor([5000.0])], 1, 2))


def test_tokens_that_no_window_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"tokens 1 to 9 do not lie in windows of \[4\] tokens"):
        perplexity.perplexity([torch.ones(3)], 1, 9)


# Text


def test_a_text_is_read_as_it_stands(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b.txt").write_text("two")
    tokens = perplexity.tokenize_texts([tmp_path / "a.txt", tmp_path / "b.txt"], tiny_llama.tokenizer())
    assert "".join(tiny_llama.CHARACTERS[i] for i in tokens.ids) == "one\ntwo"
    assert tokens.name == "a.txt, b.txt" and tokens.opening == ()
    # printf 'one\ntwo' | sha256sum
    assert tokens.sha256 == "21066d108d5319ecb5a1fc4454f42ef22fc5f1c7df49c31d90294950e0ea8b2c"


def test_the_default_text_is_the_language_reference() -> None:
    name, text = perplexity.read_texts([])
    assert "pydoc_data.topics" in name and "lambda" in text and len(text) > 300_000


def test_a_window_begins_with_what_the_models_texts_begin_with() -> None:
    text = Tokens("it", "", torch.arange(10), (77,))
    assert text.window(3, 4).tolist() == [77, 3, 4, 5]
    assert Tokens("it", "", torch.arange(10)).window(3, 4).tolist() == [3, 4, 5, 6]


def test_an_opening_token_is_taken_from_the_tokenizer() -> None:
    class Opening:
        bos_token_id = 5

        def __call__(self, text: str, add_special_tokens: bool = True, **_: object) -> dict[str, list[int]]:
            return {"input_ids": [5] * add_special_tokens + [len(word) for word in text.split()]}

    tokens = perplexity.tokenize_texts([], Opening())
    assert tokens.opening == (5,) and tokens.ids[0] != 5


def test_a_text_shorter_than_the_window_says_how_long_it_is() -> None:
    with pytest.raises(
        ValueError, match="novel has 10 tokens, and a window of 20 from token 4 takes 24; give a longer"
    ):
        Tokens("novel", "", torch.arange(10)).window(4, 20)


@pytest.mark.parametrize(("content", "message"), [(b"\xff\xfe\x00", "is not text"), (b"  \n", "holds no text")])
def test_what_is_no_text_is_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "it.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        perplexity.read_texts([tmp_path / "it.txt"])


def test_more_text_than_is_read_is_refused_unread(tmp_path: Path) -> None:
    # Sparse files take no room on the disk.
    for name in ("a.txt", "b.txt"):
        with open(tmp_path / name, "wb") as file:
            file.truncate(1 << 30)
    words = r"^--text holds 2,147,483,648 bytes, and at most 67,108,864 are read; give an excerpt of it$"
    with pytest.raises(ValueError, match=words):
        perplexity.read_texts([tmp_path / "a.txt", tmp_path / "b.txt"])


def test_a_missing_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"none\.txt: there is no such file"):
        perplexity.read_texts([tmp_path / "none.txt"])


# Cost


def test_the_meter_says_the_most_that_the_process_has_held() -> None:
    with Meter() as first:
        pass
    if first.peak_mib is None:
        pytest.skip("the peak of a process is read on Linux only")
    mib = round(first.peak_mib) + 64
    with Meter() as large:
        torch.ones(mib << 18)
    with Meter() as last:
        torch.ones(1 << 10).sum()
    assert mib < large.peak_mib <= last.peak_mib
    assert large.wall > 0 and last.cpu >= 0
