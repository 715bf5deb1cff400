"""A sequence cut over ranks gives what one process gives with all of it, for every encoding, or is refused by name."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from ranks import near, on_ranks, refused
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
"""What reads the keys between a query and a key."""

FURTHER = [
    "rotary + forgetting + t5_bias",
    "on(rotary, heads=(0, 1))",
    "rotary(schedule=dynamic_ntk(factor=2))",
    "rerope(alibi, window=3)",
    "learned_rotary(per_head=True)",
    "shaw(mutual=True, max_distance=3)",
]
"""Sums, chosen heads, keys turned when they are attended to, and other forms of the same encodings."""


def specs() -> list[str]:
    found = {name: catalogue.find(name).wraps[:1] for name in catalogue.names()}
    return [f"{name}({wrapped[0]})" if wrapped else name for name, wrapped in found.items()]


def settings() -> list[tuple[str, Positions, Mask]]:
    """Names, positions and masks: in a row, documents over the borders of chunks, padding on both sides, a window."""
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
    """The output and its gradients, of a loss that is a sum over tokens."""
    net.zero_grad()
    x = x.clone().requires_grad_()
    out = net(x, on_axes(at, net.axes), mask) if isinstance(net, Net) else net(x, positions=at, mask=mask)
    (out.tanh() * weigh).sum().backward()
    assert x.grad is not None
    return {"output": out.detach(), "gradient of x": x.grad}


def slopes(net: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def compare(
    net: nn.Module, shards: SequenceShards, at: Positions, mask: Mask, dtype: torch.dtype, atol: float, what: str
) -> None:
    """Whether the ranks together find what this process finds alone."""
    noise = torch.Generator().manual_seed(7)
    x = torch.randn(2, TOKENS, SHAPE.dim, generator=noise, dtype=torch.float64).to(dtype)
    weigh = torch.rand(2, TOKENS, 1, generator=noise, dtype=torch.float64).to(dtype)
    at = at.with_horizon(47)
    alone = copy.deepcopy(net)
    unshard_sequence(alone)
    wanted = results(alone, x, at, mask, weigh)
    wanted |= slopes(alone)
    found = results(net, shards.cut(x), shards.cut(at), mask, shards.cut(weigh))
    found = {name: shards.joined(value) for name, value in found.items()}
    shards.add_gradients(net)
    near(found, {name: wanted[name] for name in found}, atol, what)
    # Sums over all tokens, which two orders of adding up round apart.
    near(slopes(net), {name: slope for name, slope in wanted.items() if name not in found}, 4 * atol, what)


def every_encoding(rank: int, exchange: str, wanted: list[str], whole: bool, verdicts: str) -> None:
    said = {}
    for number, spec in enumerate(wanted):
        for dtype, atol in ((torch.float64, 1e-12), (torch.float32, 1e-6)) if whole else ((torch.float64, 1e-12),):
            net = net_of(spec, dtype)
            cases = settings() if whole else settings()[number % 5 :][:1]
            try:
                for name, at, mask in cases:
                    for order in ORDERS if whole and dtype == torch.float64 else ORDERS[number % 3 == 0 :][:1]:
                        shards = shard_sequence(net, order=order, exchange=exchange)
                        compare(net, shards, at, mask, dtype, atol, f"{spec}, {name}, {order}, {dtype}")
                said[spec] = "exact"
            except ValueError as error:
                said[spec] = str(error)
    if rank == 0:
        Path(verdicts).write_text(json.dumps(said))


def verdicts_of(ranks: int, exchange: str, wanted: list[str], folder: Path, *, whole: bool) -> dict[str, str]:
    file = folder / "verdicts.json"
    on_ranks(ranks, every_encoding, folder, exchange, wanted, whole, str(file))
    return json.loads(file.read_text())


def hold_on_a_ring(said: dict[str, str]) -> None:
    for spec, verdict in said.items():
        if spec in READ_BETWEEN:
            assert verdict.startswith(f"{spec} reads, for a query and a key, the keys between the two"), verdict
            assert verdict.endswith("use exchange='gather', which brings all keys to every rank")
        else:
            assert verdict == "exact", f"{spec}: {verdict}"


@pytest.mark.parametrize("part", rest_slow([0, 1], 1))
def test_every_encoding_is_exact_on_a_ring_or_refused_by_name(tmp_path: Path, part: int) -> None:
    hold_on_a_ring(verdicts_of(2, "ring", [*FURTHER[:3], *specs()][part::2], tmp_path, whole=False))


def test_what_reads_between_is_exact_with_gathered_keys(tmp_path: Path) -> None:
    wanted = [*sorted(READ_BETWEEN), "selective_rotary"]
    assert set(verdicts_of(2, "gather", wanted, tmp_path, whole=False).values()) == {"exact"}


@pytest.mark.slow
def test_every_encoding_is_exact_on_a_ring_in_every_setting(tmp_path: Path) -> None:
    hold_on_a_ring(verdicts_of(2, "ring", [*specs(), *FURTHER], tmp_path, whole=True))


@pytest.mark.slow
def test_what_reads_between_is_exact_with_gathered_keys_in_every_setting(tmp_path: Path) -> None:
    wanted = [*sorted(READ_BETWEEN), "forgetting", "shaw", "rerope(rotary)"]
    assert set(verdicts_of(2, "gather", wanted, tmp_path, whole=True).values()) == {"exact"}


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["ring", "gather"])
def test_four_ranks_are_exact(tmp_path: Path, exchange: str) -> None:
    said = verdicts_of(4, exchange, [*specs(), *FURTHER], tmp_path, whole=False)
    if exchange == "ring":
        hold_on_a_ring(said)
    else:
        assert set(said.values()) == {"exact"}


# Layers and models, and what is refused


def decoder(encoding: str | tuple[str, ...], **sizes) -> Decoder:
    torch.manual_seed(3)
    made = Decoder(11, dim=16, heads=4, layers=2, encoding=encoding, max_len=32, **sizes)
    with torch.no_grad():
        for parameter in made.stack.encodings.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


def trained(model: Decoder, ids: Tensor, at: Positions, answers: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    logits = model(ids, positions=at)
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), answers.flatten(), reduction="sum")
    loss.backward()
    return {"logits": logits.detach()}


def layers_and_models(rank: int, rules: list[str]) -> None:
    ids, answers = torch.randint(11, (2, 2, TOKENS), generator=torch.Generator().manual_seed(5))
    at = Positions.count(TOKENS)
    for encoding, sizes in (
        (("rotary", "none"), {"window": (6, None), "kv_heads": 2}),
        ("learned + kerple + forgetting", {"kernel": "reference"}),
    ):
        model = decoder(encoding, **sizes)
        wanted = trained(model, ids, at, answers) | slopes(model)
        for order in ("zigzag", "contiguous"):
            shards = shard_sequence(model, order=order)
            found = trained(model, shards.cut(ids), shards.cut(at), shards.cut(answers))
            found["logits"] = shards.joined(found["logits"])
            shards.add_gradients(model)
            near(found | slopes(model), wanted, 1e-6, f"{encoding}, {order}")
            unshard_sequence(model)
        # What autocast rounds is rounded alike.
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            whole = model(ids)
            shards = shard_sequence(model)
            got = shards.joined(model(shards.cut(ids), positions=shards.cut(at)))
        near({"logits": got.float()}, {"logits": whole.float()}, 0.03, f"{encoding} in bfloat16")
    # A rule that reads every pair, few queries at a time.
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
    refusals(shards, layer)
    faults()
    what_is_kept_and_computed()


def through_flex(rank: int) -> None:
    """Without gradients FlexAttention serves on a CPU too."""
    ids, at = torch.randint(11, (2, TOKENS), generator=torch.Generator().manual_seed(5)), Positions.count(TOKENS)
    wanted = decoder("rotary + alibi")(ids)
    model = decoder("rotary + alibi", kernel="flex")
    shards = shard_sequence(model)
    with torch.no_grad():
        got = shards.joined(model(shards.cut(ids), positions=shards.cut(at)))
    near({"logits": got}, {"logits": wanted}, 1e-6, "through flex")


@pytest.mark.slow
def test_a_ring_goes_through_flex(tmp_path: Path) -> None:
    on_ranks(2, through_flex, tmp_path)


def refusals(shards: SequenceShards, layer: Attention) -> None:
    ids, at = torch.zeros(1, TOKENS, dtype=torch.long), Positions.count(TOKENS)
    mine, here = shards.cut(ids), shards.cut(at)
    model = decoder("rotary")
    shard_sequence(model)
    together = "take it together with posenc.parallel.unshard_sequence(model)"
    assert together in refused(lambda: model(mine, positions=here, cache=model.cache()))
    assert together in refused(lambda: model(mine, positions=here, only=slice(0, 1)))
    assert "call without need_weights" in refused(lambda: model(mine, positions=here, need_weights=True))
    assert "ask the whole model" in refused(lambda: chosen_weights(model, mine, positions=here, rows=0))
    given = torch.ones(len(mine[0]), len(mine[0]), dtype=torch.bool)
    assert "say the mask by a rule" in refused(lambda: model(mine, positions=here, mask=given))
    assert "give each rank the positions of its own tokens" in refused(lambda: model(mine))
    short = mine[:, : 4 + 2 * dist.get_rank()], here.rows(slice(0, 4 + 2 * dist.get_rank()))
    assert "all ranks hold as many tokens" in refused(lambda: model(short[0], positions=short[1]))
    odd = here.rows(slice(0, 5))
    assert "a rank holds 2 chunks of equally many tokens in zigzag order, got 5" in refused(
        lambda: model(mine[:, :5], positions=odd)
    )
    named = Positions(at.coords, at.order, torch.tensor([[1] * 8 + [0] * 8]))
    assert "numbered upwards" in refused(lambda: model(mine, positions=shards.cut(named)))
    assert "a multiple of 4 tokens, got 15" in refused(lambda: shards.cut(ids[:, :15]))
    dropping = decoder("rotary", dropout=0.1)
    shard_sequence(dropping)
    assert "call model.eval()" in refused(lambda: dropping(mine, positions=here))
    dropping.eval()(mine, positions=here)
    assert "contextual reads" in refused(lambda: shard_sequence(decoder("dape(alibi) + contextual")))
    assert "no gradient of its gradient" in str(of_gradient(layer, shards))
    # An error in the middle of a round leaves messages behind: in a group of one there are none.
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    shard_sequence(two_calls := Attention(12, 4, encoding=TwoCalls()), alone)
    assert "asks the kernel once, got 2 calls" in refused(lambda: two_calls(torch.zeros(1, TOKENS, 12), positions=at))
    shard_sequence(between := Attention(12, 4, encoding=SaysNothing()), alone)
    assert "has a bias that does; say between = None" in refused(
        lambda: between(torch.zeros(1, TOKENS, 12), positions=at)
    )
    assert "posenc.Attention inside is wanted, got Linear" in refused(lambda: shard_sequence(nn.Linear(2, 2)))
    across = EncoderDecoder(11, dim=16, heads=4, layers=1)
    shard_sequence(across)
    assert together in refused(lambda: across(mine, mine, positions=here, source_positions=shards.cut(at)))


class TwoCalls(Encoding):
    """Asks the kernel twice, which no sum of exponentials puts together."""

    between = ()

    def attend(self, q, at, keys, mask, kernel):
        out, weights = kernel(self, q, at, keys, mask)
        return out - kernel(self, 2 * q, at, keys, mask)[0], weights


class SaysNothing(Encoding):
    """Says that it reads nothing else, with a bias that does not say so."""

    between = ()

    def biases(self, q, at, keys):
        return [Pairs(self.score_mod, q, at, keys)]

    def score_mod(self, q, at, keys):
        return lambda score, b, h, i, j: score


def of_gradient(layer: Attention, shards: SequenceShards) -> Exception:
    x = shards.cut(torch.randn(1, TOKENS, SHAPE.dim, dtype=torch.float64)).requires_grad_()
    out = layer(x, positions=shards.cut(Positions.count(TOKENS)))
    try:
        torch.autograd.grad(out.sum(), x, create_graph=True)
    except RuntimeError as error:
        return error
    raise AssertionError("a gradient of a gradient was given")


def faults() -> None:
    """What is planted is found: positions by index, a block's gradient that stays where it was found."""
    net, at = net_of("alibi", torch.float64), Positions.count(TOKENS)
    shards = shard_sequence(net)
    kept = line.Line.positions
    line.Line.positions = lambda self, chunk, place, travelled: Positions.count(self.chunks[chunk].tokens)  # ty: ignore
    assert "output is off by" in missed(
        lambda: compare(net, shards, at, masks.causal(), torch.float64, 1e-12, "planted")
    )
    line.Line.positions = kept
    passing_on = ring.pass_on
    ring.pass_on = lambda tensors, group, tag: lambda: [torch.zeros_like(x) for x in tensors]
    said = missed(lambda: compare(net, shards, at, masks.causal(), torch.float64, 1e-12, "planted"))
    ring.pass_on = passing_on
    assert "gradient of x is off by" in said
    compare(net, shards, at, masks.causal(), torch.float64, 1e-12, "nothing planted")


def missed(act: Callable[[], None]) -> str:
    """What is said where something is not as it should be."""
    try:
        act()
    except AssertionError as error:
        return str(error)
    raise AssertionError("what was planted was not found")


def what_is_kept_and_computed() -> None:
    """A rank keeps its own tokens alone on a ring, and in zigzag order meets as many blocks as another."""
    net, at = net_of("forgetting", torch.float64), Positions.count(TOKENS)
    x, attending = torch.randn(2, TOKENS, SHAPE.dim, dtype=torch.float64), ring.Ring.attend
    for exchange, kept_of_all in (("ring", False), ("gather", True)):
        shards, kept, met = shard_sequence(net, exchange=exchange), [], []
        ring.Ring.attend = lambda *given, met=met: met.append(1) or attending(*given)  # ty: ignore
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t.shape) or t, lambda t: t):
            net(shards.cut(x), shards.cut(at), masks.causal())
        ring.Ring.attend = attending
        # Weights have 18 entries, and what is kept of tokens [2, 3, T, ...].
        of_all = [shape for shape in kept if len(shape) > 2 and TOKENS in shape]
        assert bool(of_all) == kept_of_all, f"{exchange}: {of_all}"
        # Of 10 pairs of 4 chunks that see each other, and of one layer.
        assert len(met) == (0 if kept_of_all else 5), f"{exchange}: {len(met)} blocks"


@pytest.mark.parametrize("rules", rest_slow([["shaw(max_distance=3)"], ["dape(kerple)"]], 1))
def test_layers_and_models_are_those_of_one_process_and_refuse_what_is_not_there(tmp_path: Path, rules) -> None:
    on_ranks(2, layers_and_models, tmp_path, rules)


# Without processes


@pytest.mark.parametrize("ranks", [1, 2, 5])
@pytest.mark.parametrize("order", ["zigzag", "contiguous"])
def test_what_is_cut_is_joined_again(order: str, ranks: int) -> None:
    layout = Layout(ranks, order)
    x = torch.arange(6 * layout.chunks)[None]
    held = [layout.cut(rank, x, 1) for rank in range(ranks)]
    assert all(isinstance(one, Tensor) and one.shape == (1, 6 * layout.chunks // ranks) for one in held)
    assert torch.equal(layout.joined(held, 1), x)  # ty: ignore


def test_causal_work_is_the_same_on_all_ranks_in_zigzag_order() -> None:
    layout = Layout(4, "zigzag")
    pairs = [sum(int(i) + 1 for i in layout.tokens(rank, 64)) for rank in range(4)]
    assert max(pairs) == min(pairs) == 64 * 65 // 2 // 4
    contiguous = [sum(int(i) + 1 for i in Layout(4, "contiguous").tokens(rank, 64)) for rank in range(4)]
    assert max(contiguous) > 5 * min(contiguous)


def test_a_chunk_that_nobody_sees_is_known_by_its_orders_documents_and_padding() -> None:
    def chunk(start: int, document: int | None = None, present: bool = True) -> line.Chunk:
        at = Positions.count(4, start)
        at = at if present else Positions.padded(torch.zeros(1, 4))
        return line.Chunk.of(at if document is None else at.changed(document=torch.full((1, 4), document)))

    assert chunk(4).may_see(chunk(0), masks.causal()) and chunk(4).may_see(chunk(4), masks.causal())
    assert not chunk(0).may_see(chunk(4), masks.causal())
    assert chunk(0).may_see(chunk(4), masks.bidirectional()) and chunk(0).may_see(chunk(4), masks.prefix(5))
    assert not chunk(8).may_see(chunk(0), masks.window(5)) and chunk(8).may_see(chunk(0), masks.window(6))
    assert not chunk(4, 1).may_see(chunk(0, 0), masks.causal()) and chunk(4, 1).may_see(chunk(0, 1), masks.causal())
    assert not chunk(4).may_see(chunk(0, present=False), masks.causal())
    assert not chunk(0, present=False).may_see(chunk(0), masks.bidirectional())


def test_a_group_is_needed_and_words_are_known() -> None:
    assert "call torch.distributed.init_process_group first" in refused(lambda: shard_sequence(decoder("rotary")))
    assert "order must be one of zigzag, contiguous" in refused(lambda: Layout(2, "round"))


def test_a_class_that_does_not_say_what_it_reads_is_taken_to_read_all() -> None:
    class Own(Encoding):
        def attend(self, q, at, keys, mask, kernel):
            return kernel(self, q, at, keys, mask)

    class Turned(Encoding):
        def turn(self, x, at, side):
            return x

    assert Own.between is None and Turned.between == () and TwoCalls.between == ()
    assert (Own() + Turned()).between is None
    assert catalogue.build("forgetting + rotary", SHAPE).between == ("forgetting",)
