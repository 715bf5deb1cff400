"""A sequence sharded over ranks gives one process's results, or its encoding is refused by name."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import assert_near, refusal, run_on_ranks
from tiers import rest_slow
from torch import Tensor, nn

from posenc import Attention, Decoder, EncoderDecoder, Encoding, Positions, catalogue, chosen_weights, masks
from posenc.encoding.biases import Pairs
from posenc.kernels.block_sizes import SIZES
from posenc.parallel import SequenceShards, line, ring, shard_sequence, unshard_sequence
from posenc.parallel.layout import ORDERS, Layout
from posenc.testing.subjects import SHAPE, Net, Subject, on_axes
from posenc.tokens.masks import Mask

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed training")

TOKENS = 16

READ_BETWEEN = {"contextual", "path", "stick_breaking"}
"""Encodings that read the keys between a query and a key."""

FURTHER = [
    "rotary + forgetting + t5_bias",
    "on(rotary, heads=(0, 1))",
    "rotary(schedule=dynamic_ntk(factor=2))",
    "rerope(alibi, window=3)",
    "learned_rotary(per_head=True)",
    "shaw(mutual=True, max_distance=3)",
]
"""Sums, chosen heads, keys rotated at attention, and other forms of the same encodings."""


def specs() -> list[str]:
    inner_specs = {name: catalogue.find(name).wraps[:1] for name in catalogue.names()}
    return [f"{name}({inner[0]})" if inner else name for name, inner in inner_specs.items()]


def settings() -> list[tuple[str, Positions, Mask]]:
    """Return names, positions and masks: contiguous, documents across chunks, padding on both sides, a window."""
    padding = torch.tensor([[0] * 5 + [1] * 11, [1] * 13 + [0] * 3])
    return [
        ("in a row", Positions.count(TOKENS), masks.causal()),
        ("packed", Positions.packed([3, 7, 6]), masks.causal()),
        ("padded, in a window", Positions.padded(padding), masks.window(6)),
        ("seen from both sides", Positions.count(TOKENS), masks.bidirectional()),
        ("with a prefix", Positions.count(TOKENS, 3), masks.prefix(8)),
    ]


def net_of(spec: str, dtype: torch.dtype) -> Net:
    subject = Subject(spec, SHAPE)
    torch.manual_seed(1)
    net = Net(*subject.build(), subject.shape)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return net.to(dtype)


def results(net: nn.Module, x: Tensor, at: Positions, mask: Mask, weigh: Tensor) -> dict[str, Tensor]:
    """Return the output and its gradients, for a loss that is a sum over tokens."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = net(x, on_axes(at, net.axes), mask) if isinstance(net, Net) else net(x, positions=at, mask=mask)
    (out.tanh() * weigh).sum().backward()
    assert x.grad is not None
    return {"output": out.detach(), "gradient of x": x.grad}


def slopes(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def compare(
    net: nn.Module, shards: SequenceShards, at: Positions, mask: Mask, dtype: torch.dtype, atol: float, case: str
) -> None:
    """Check that the ranks together give what this process gives alone."""
    noise = torch.Generator().manual_seed(7)
    x = torch.randn(2, TOKENS, SHAPE.dim, generator=noise, dtype=torch.float64).to(dtype)
    weigh = torch.rand(2, TOKENS, 1, generator=noise, dtype=torch.float64).to(dtype)
    at = at.with_horizon(47)
    alone = copy.deepcopy(net)
    unshard_sequence(alone)
    expected = results(alone, x, at, mask, weigh)
    expected |= slopes(alone)
    actual = results(net, shards.cut(x), shards.cut(at), mask, shards.cut(weigh))
    actual = {name: shards.joined(value) for name, value in actual.items()}
    shards.add_gradients(net)
    assert_near(actual, {name: expected[name] for name in actual}, atol, case)
    # Sums over all tokens: two orders of addition round differently.
    assert_near(slopes(net), {name: slope for name, slope in expected.items() if name not in actual}, 4 * atol, case)


def compare_encodings(rank: int, exchange: str, specs: list[str], whole: bool, verdicts: str) -> None:
    outcomes = {}
    for number, spec in enumerate(specs):
        for dtype, atol in ((torch.float64, 1e-12), (torch.float32, 1e-6)) if whole else ((torch.float64, 1e-12),):
            net = net_of(spec, dtype)
            cases = settings() if whole else settings()[number % 5 :][:1]
            try:
                for name, at, mask in cases:
                    for order in ORDERS if whole and dtype == torch.float64 else ORDERS[number % 3 == 0 :][:1]:
                        shards = shard_sequence(net, order=order, exchange=exchange)
                        compare(net, shards, at, mask, dtype, atol, f"{spec}, {name}, {order}, {dtype}")
                outcomes[spec] = "exact"
            except ValueError as error:
                outcomes[spec] = str(error)
    if rank == 0:
        Path(verdicts).write_text(json.dumps(outcomes))


def verdicts_of(ranks: int, exchange: str, specs: list[str], folder: Path, *, whole: bool) -> dict[str, str]:
    file = folder / "verdicts.json"
    run_on_ranks(ranks, compare_encodings, folder, exchange, specs, whole, str(file))
    return json.loads(file.read_text())


def check_ring_verdicts(verdicts: dict[str, str]) -> None:
    for spec, verdict in verdicts.items():
        if spec in READ_BETWEEN:
            assert verdict.startswith(f"{spec} reads, for a query and a key, the keys between the two"), verdict
            assert verdict.endswith("use exchange='gather', which brings all keys to every rank")
        else:
            assert verdict == "exact", f"{spec}: {verdict}"


@pytest.mark.parametrize("part", rest_slow([0, 1], 1))
def test_every_encoding_is_exact_on_a_ring_or_refused_by_name(tmp_path: Path, part: int) -> None:
    check_ring_verdicts(verdicts_of(2, "ring", [*FURTHER[:3], *specs()][part::2], tmp_path, whole=False))


def test_what_reads_between_is_exact_with_gathered_keys(tmp_path: Path) -> None:
    names = [*sorted(READ_BETWEEN), "selective_rotary"]
    assert set(verdicts_of(2, "gather", names, tmp_path, whole=False).values()) == {"exact"}


@pytest.mark.slow
def test_every_encoding_is_exact_on_a_ring_in_every_setting(tmp_path: Path) -> None:
    check_ring_verdicts(verdicts_of(2, "ring", [*specs(), *FURTHER], tmp_path, whole=True))


@pytest.mark.slow
def test_what_reads_between_is_exact_with_gathered_keys_in_every_setting(tmp_path: Path) -> None:
    names = [*sorted(READ_BETWEEN), "forgetting", "shaw", "rerope(rotary)"]
    assert set(verdicts_of(2, "gather", names, tmp_path, whole=True).values()) == {"exact"}


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["ring", "gather"])
def test_four_ranks_are_exact(tmp_path: Path, exchange: str) -> None:
    verdicts = verdicts_of(4, exchange, [*specs(), *FURTHER], tmp_path, whole=False)
    if exchange == "ring":
        check_ring_verdicts(verdicts)
    else:
        assert set(verdicts.values()) == {"exact"}


# Layers, models and refusals


def decoder(encoding: str | tuple[str, ...], **sizes) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(11, dim=16, heads=4, layers=2, encoding=encoding, max_len=32, **sizes)
    with torch.no_grad():
        for parameter in model.stack.encodings.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model


def backward(model: Decoder, ids: Tensor, at: Positions, answers: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(ids, positions=at)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum")
    loss.backward()
    return {"logits": logits.detach()}


def compare_layers(rank: int, rules: list[str]) -> None:
    ids, answers = torch.randint(11, (2, 2, TOKENS), generator=torch.Generator().manual_seed(5))
    at = Positions.count(TOKENS)
    for encoding, sizes in (
        (("rotary", "none"), {"window": (6, None), "kv_heads": 2}),
        ("learned + kerple + forgetting", {"kernel": "reference"}),
    ):
        model = decoder(encoding, **sizes)
        expected = backward(model, ids, at, answers) | slopes(model)
        for order in ("zigzag", "contiguous"):
            shards = shard_sequence(model, order=order)
            actual = backward(model, shards.cut(ids), shards.cut(at), shards.cut(answers))
            actual["logits"] = shards.joined(actual["logits"])
            shards.add_gradients(model)
            assert_near(actual | slopes(model), expected, 1e-6, f"{encoding}, {order}")
            unshard_sequence(model)
        # Autocast rounds the same tensors.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            whole = model(ids)
            shards = shard_sequence(model)
            logits = shards.joined(model(shards.cut(ids), positions=shards.cut(at)))
        assert_near({"logits": logits.float()}, {"logits": whole.float()}, 0.03, f"{encoding} in bfloat16")
    # An attention rule that reads every pair, few queries at a time.
    with SIZES.set_to(pairs_of_rules=100):
        for spec in rules:
            net = net_of(spec, torch.float64)
            shards = shard_sequence(net)
            compare(net, shards, at, masks.causal(), torch.float64, 1e-12, f"{spec}, few queries at a time")
    layer = Attention(SHAPE.dim, SHAPE.heads, head_dim=SHAPE.head_dim, encoding="transformer_xl", max_len=32).double()
    shards = shard_sequence(layer)
    compare(layer, shards, at, masks.causal(), torch.float64, 1e-12, "a layer alone")
    _, *padded = settings()[2]
    sinking = Attention(SHAPE.dim, SHAPE.heads, head_dim=SHAPE.head_dim, encoding="alibi", sinks=True).double()
    for exchange in ("ring", "gather"):
        compare(
            sinking, shard_sequence(sinking, exchange=exchange), *padded, torch.float64, 1e-12, f"sinks, {exchange}"
        )
    check_refusals(shards, layer)
    check_planted_faults()
    check_memory_and_work()


def through_flex(rank: int) -> None:
    """Check FlexAttention, which runs on a CPU without gradients."""
    ids, at = torch.randint(11, (2, TOKENS), generator=torch.Generator().manual_seed(5)), Positions.count(TOKENS)
    expected = decoder("rotary + alibi")(ids)
    model = decoder("rotary + alibi", kernel="flex")
    shards = shard_sequence(model)
    with torch.no_grad():
        actual = shards.joined(model(shards.cut(ids), positions=shards.cut(at)))
    assert_near({"logits": actual}, {"logits": expected}, 1e-6, "through flex")


@pytest.mark.slow
def test_a_ring_goes_through_flex(tmp_path: Path) -> None:
    run_on_ranks(2, through_flex, tmp_path)


def check_refusals(shards: SequenceShards, layer: Attention) -> None:
    ids, at = torch.zeros(1, TOKENS, dtype=torch.long), Positions.count(TOKENS)
    cut_ids, here = shards.cut(ids), shards.cut(at)
    model = decoder("rotary")
    shard_sequence(model)
    together = "take it together with posenc.parallel.unshard_sequence(model)"
    assert together in refusal(lambda: model(cut_ids, positions=here, cache=model.cache()))
    assert together in refusal(lambda: model(cut_ids, positions=here, only=slice(0, 1)))
    assert "call without need_weights" in refusal(lambda: model(cut_ids, positions=here, need_weights=True))
    assert "ask the whole model" in refusal(lambda: chosen_weights(model, cut_ids, positions=here, rows=0))
    tensor = torch.ones(len(cut_ids[0]), len(cut_ids[0]), dtype=torch.bool)
    assert "give the mask as a rule" in refusal(lambda: model(cut_ids, positions=here, mask=tensor))
    assert "give each rank the positions of its own tokens" in refusal(lambda: model(cut_ids))
    short = cut_ids[:, : 4 + 2 * dist.get_rank()], here.rows(slice(0, 4 + 2 * dist.get_rank()))
    assert "all ranks hold as many tokens" in refusal(lambda: model(short[0], positions=short[1]))
    odd = here.rows(slice(0, 5))
    assert "a rank holds 2 chunks of equally many tokens in zigzag order, got 5" in refusal(
        lambda: model(cut_ids[:, :5], positions=odd)
    )
    gapless = Positions(at.coords, at.order, torch.tensor([[1] * 8 + [0] * 8]))
    assert "numbered upwards" in refusal(lambda: model(cut_ids, positions=shards.cut(gapless)))
    assert "a multiple of 4 tokens, got 15" in refusal(lambda: shards.cut(ids[:, :15]))
    dropping = decoder("rotary", dropout=0.1)
    shard_sequence(dropping)
    assert "call model.eval()" in refusal(lambda: dropping(cut_ids, positions=here))
    dropping.eval()(cut_ids, positions=here)
    assert "contextual reads" in refusal(lambda: shard_sequence(decoder("dape(alibi) + contextual")))
    assert "no gradient of its gradient" in str(second_gradient_error(layer, shards))
    # An error during an exchange leaves messages behind: in a group of one there are none.
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    shard_sequence(two_calls := Attention(12, 4, encoding=TwoCalls()), alone)
    assert "asks the kernel once, got 2 calls" in refusal(lambda: two_calls(torch.zeros(1, TOKENS, 12), positions=at))
    shard_sequence(silent := Attention(12, 4, encoding=WrongBetween()), alone)
    assert "has a bias that does; say between = None" in refusal(
        lambda: silent(torch.zeros(1, TOKENS, 12), positions=at)
    )
    assert "posenc.Attention inside is wanted, got Linear" in refusal(lambda: shard_sequence(nn.Linear(2, 2)))
    translator = EncoderDecoder(11, dim=16, heads=4, layers=1)
    shard_sequence(translator)
    assert together in refusal(lambda: translator(cut_ids, cut_ids, positions=here, source_positions=shards.cut(at)))


class TwoCalls(Encoding):
    """An encoding that calls the kernel twice, which log-sum-exps cannot merge."""

    between = ()

    def attend(self, q, at, keys, mask, kernel):
        out, weights = kernel(self, q, at, keys, mask)
        return out - kernel(self, 2 * q, at, keys, mask)[0], weights


class WrongBetween(Encoding):
    """An encoding that declares to read no other keys, with a bias that may read them."""

    between = ()

    def biases(self, q, at, keys):
        return [Pairs(self.score_mod, q, at, keys)]

    def score_mod(self, q, at, keys):
        return lambda score, b, h, i, j: score


def second_gradient_error(layer: Attention, shards: SequenceShards) -> Exception:
    x = shards.cut(torch.randn(1, TOKENS, SHAPE.dim, dtype=torch.float64)).requires_grad_()
    out = layer(x, positions=shards.cut(Positions.count(TOKENS)))
    try:
        torch.autograd.grad(out.sum(), x, create_graph=True)
    except RuntimeError as error:
        return error
    raise AssertionError("a second gradient was computed without an error")


def check_planted_faults() -> None:
    """Check that planted faults are found: positions by index, and a block's gradient that is not sent."""
    net, at = net_of("alibi", torch.float64), Positions.count(TOKENS)
    shards = shard_sequence(net)
    positions = line.Line.positions
    line.Line.positions = lambda self, chunk, place, facts: Positions.count(self.chunks[chunk].tokens)  # ty: ignore
    assert "output is off by" in failure(
        lambda: compare(net, shards, at, masks.causal(), torch.float64, 1e-12, "planted")
    )
    line.Line.positions = positions
    passing_on = ring.pass_on
    ring.pass_on = lambda tensors, group, tag: lambda: [torch.zeros_like(x) for x in tensors]
    message = failure(lambda: compare(net, shards, at, masks.causal(), torch.float64, 1e-12, "planted"))
    ring.pass_on = passing_on
    assert "gradient of x is off by" in message
    compare(net, shards, at, masks.causal(), torch.float64, 1e-12, "nothing planted")


def failure(act: Callable[[], None]) -> str:
    """Return the message of the AssertionError that a call raises."""
    try:
        act()
    except AssertionError as error:
        return str(error)
    raise AssertionError("the comparison missed the planted fault")


def check_memory_and_work() -> None:
    """Check that a rank of a ring saves only its own tokens. In zigzag order all have equally many blocks."""
    net, at = net_of("forgetting", torch.float64), Positions.count(TOKENS)
    x, attending = torch.randn(2, TOKENS, SHAPE.dim, dtype=torch.float64), ring.Ring.attend
    for exchange, saves_all in (("ring", False), ("gather", True)):
        shards, shapes, blocks = shard_sequence(net, exchange=exchange), [], []
        ring.Ring.attend = lambda *args, blocks=blocks: blocks.append(1) or attending(*args)  # ty: ignore
        with torch.autograd.graph.saved_tensors_hooks(lambda t, out=shapes: out.append(t.shape) or t, lambda t: t):
            net(shards.cut(x), shards.cut(at), masks.causal())
        ring.Ring.attend = attending
        # Weights have 18 entries, and saved tensors of tokens are [2, 3, T, ...].
        whole = [shape for shape in shapes if len(shape) > 2 and TOKENS in shape]
        assert bool(whole) == saves_all, f"{exchange}: {whole}"
        # Half of the 10 visible pairs of 4 chunks, in one layer.
        assert len(blocks) == (0 if saves_all else 5), f"{exchange}: {len(blocks)} blocks"


@pytest.mark.parametrize("rules", rest_slow([["shaw(max_distance=3)"], ["dape(kerple)"]], 1))
def test_layers_and_models_are_those_of_one_process_and_refuse_what_is_not_there(tmp_path: Path, rules) -> None:
    run_on_ranks(2, compare_layers, tmp_path, rules)


# Without processes


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_what_is_cut_is_joined_again(order: str, ranks: int) -> None:
    layout = Layout(ranks, order)
    x = torch.arange(6 * layout.chunks)[None]
    chunks = [layout.cut(rank, x, 1) for rank in range(ranks)]
    assert all(isinstance(chunk, Tensor) and chunk.shape == (1, 6 * layout.chunks // ranks) for chunk in chunks)
    assert torch.equal(layout.joined(chunks, 1), x)  # ty: ignore


def test_causal_work_is_the_same_on_all_ranks_in_zigzag_order() -> None:
    layout = Layout(4, "zigzag")
    pairs = [sum(int(i) + 1 for i in layout.tokens(rank, 64)) for rank in range(4)]
    assert max(pairs) == min(pairs) == 64 * 65 // 2 // 4
    contiguous = [sum(int(i) + 1 for i in Layout(4, "contiguous").tokens(rank, 64)) for rank in range(4)]
    assert max(contiguous) > 5 * min(contiguous)


def test_a_chunk_that_nobody_sees_is_known_by_its_orders_documents_and_padding() -> None:
    def chunk(start: int, document: int | None = None, present: bool = True) -> line.ChunkFacts:
        at = Positions.count(4, start)
        at = at if present else Positions.padded(torch.zeros(1, 4))
        at = at if document is None else at.with_facts(document=torch.full((1, 4), document))
        return line.ChunkFacts.from_positions(at)

    assert chunk(4).may_see(chunk(0), masks.causal()) and chunk(4).may_see(chunk(4), masks.causal())
    assert not chunk(0).may_see(chunk(4), masks.causal())
    assert chunk(0).may_see(chunk(4), masks.bidirectional()) and chunk(0).may_see(chunk(4), masks.prefix(5))
    assert not chunk(8).may_see(chunk(0), masks.window(5)) and chunk(8).may_see(chunk(0), masks.window(6))
    assert not chunk(4, 1).may_see(chunk(0, 0), masks.causal()) and chunk(4, 1).may_see(chunk(0, 1), masks.causal())
    assert not chunk(4).may_see(chunk(0, present=False), masks.causal())
    assert not chunk(0, present=False).may_see(chunk(0), masks.bidirectional())


def test_a_group_is_needed_and_words_are_known() -> None:
    assert "call torch.distributed.init_process_group first" in refusal(lambda: shard_sequence(decoder("rotary")))
    assert "order must be one of zigzag, contiguous" in refusal(lambda: Layout(2, "round"))


def test_a_class_that_does_not_say_what_it_reads_is_taken_to_read_all() -> None:
    class OwnAttend(Encoding):
        def attend(self, q, at, keys, mask, kernel):
            return kernel(self, q, at, keys, mask)

    class OwnTurn(Encoding):
        def turn(self, x, at, side):
            return x

    assert OwnAttend.between is None and OwnTurn.between == () and TwoCalls.between == ()
    assert (OwnAttend() + OwnTurn()).between is None
    assert catalogue.build("forgetting + rotary", SHAPE).between == ("forgetting",)
