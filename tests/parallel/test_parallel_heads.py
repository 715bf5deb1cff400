"""Heads sharded over ranks give one process's logits, gradients and state, or are refused by name."""

import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from ranks import assert_near, refusal, run_on_ranks
from torch import Tensor, nn

from posenc import Attention, Decoder, EncoderDecoder, Positions, Shape, build, catalogue, chosen_weights
from posenc.parallel import HeadShards, shard_heads, shard_sequence
from posenc.parallel.some_heads import BiasRows, HeadSubset, ParameterPart

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="this torch has no distributed training")

TOKENS = 8

SPECS = [
    "alibi",
    "t5_bias",
    "fire",
    "rotary",
    "on(rotary, heads=(0, 1)) + forgetting",
    "rerope(alibi, window=3)",
    "learned + tupe + log_temperature",
]

REFUSALS = {
    "dape(kerple)": "dape(kerple) is not, for the heads (0, 1) of 4 alone, what it is among all of them",
    "fourier_rotary": "fourier_rotary",
    "selective_rotary": "selective_rotary is not, for the heads",
}
"""Encodings that mix heads, draw numbers for all of them at once, or divide by their number."""

FURTHER = [
    "on(kerple, heads=(0, 3))",
    "polar + inkling",
    "on(alibi, heads=(1,))",
    "on(on(alibi, heads=(1,)), heads=(2, 3))",
    "alibi(learned=True)",
    "alibi(form='falcon')",
    "learned_rotary(per_head=True)",
    "fourier_rotary(learned=True)",
    "dual_chunk(kerple)",
    "on(shaw(values=False), heads=(1, 3))",
]


LAYERS = {"layers": 2, "kv_heads": 2, "window": (None, 3), "sinks": True}
"""A model with several layers, shared key heads, windows and sinks."""


def decoder(spec: str | tuple[str, ...], **sizes) -> Decoder:
    torch.manual_seed(3)
    model = Decoder(11, encoding=spec, max_len=32, **{"dim": 16, "heads": 4, "layers": 1, **sizes}).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.2 * torch.randn_like(parameter)
    return model


def positions_of(model: Decoder) -> Positions:
    axes = max(1, *(encoding.axes for encoding in model.stack.encoding_of))
    if axes == 1:
        return Positions.count(TOKENS)
    return Positions.of(torch.stack([torch.arange(TOKENS) * (2 * axis + 1) % 5 for axis in range(axes)], -1)[None])


def slopes(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None and bool(p.grad.any())}


def head_entries(x: Tensor, part: ParameterPart) -> Tensor:
    """Return the entries of some heads of a whole tensor."""
    entries = x.unflatten(part.axis, (part.total_heads, -1)).index_select(part.axis, torch.tensor(part.heads))
    return entries.flatten(part.axis, part.axis + 1)


def compare(spec: str | tuple[str, ...], model: Decoder) -> HeadShards:
    """Check that the ranks' logits, gradients and state are those of one process."""
    ids = torch.randint(11, (2, TOKENS), generator=torch.Generator().manual_seed(5))
    at, whole, state = positions_of(model), copy.deepcopy(model), model.state_dict()
    logits = whole(ids, positions=at)
    logits.square().sum().backward()
    expected = slopes(whole)
    shards = shard_heads(model)
    actual = model(ids, positions=at)
    actual.square().sum().backward()
    shards.add_gradients()
    assert_near({"logits": actual}, {"logits": logits}, 1e-10, str(spec))
    gradients, of_parts = {}, {}
    for parameter in model.parameters():
        part = shards.parts.get(parameter)
        name = shards.names[parameter if part is None else part.whole]
        if parameter.grad is not None and name in expected:
            gradients[name] = parameter.grad
            of_parts[name] = expected[name] if part is None else head_entries(expected[name], part)
    assert_near(gradients, of_parts, 1e-10, str(spec))
    assert_near(shards.whole_state(model), state, 0.0, str(spec))
    return shards


def compare_or_refuse(rank: int, specs: list[str]) -> None:
    for spec in specs:
        # Sections for three axes need three pairs.
        model = decoder(spec, **({"head_dim": 6} if spec == "multimodal_rotary" else {}))
        if spec in REFUSALS:
            message = refusal(lambda model=model: shard_heads(model))
            reason = REFUSALS[spec].replace("(0, 1)", str((2 * rank, 2 * rank + 1)))
            assert message.startswith(reason) and message.endswith("or cut the sequence with shard_sequence"), message
            assert model.stack.blocks[0].attention.heads == 4, "a refused model must stay unchanged"  # ty: ignore
        else:
            compare(spec, model)


def compare_models(rank: int) -> None:
    """Check several layers, and what each rank holds."""
    compare_or_refuse(rank, [*SPECS, *REFUSALS])
    shards = compare(("rotary", "alibi"), model := decoder(("rotary", "alibi"), **LAYERS))
    compare("rotary with norms of queries and keys", decoder("rotary", norm="rms", qk_norm=True, bias=False))
    attention = model.stack.blocks[0].attention
    assert isinstance(attention, Attention)
    assert (attention.heads, attention.kv_heads, shards.heads) == (2, 1, (2 * rank, 2 * rank + 1))
    assert attention.q_proj.weight.shape == (8, 16) and attention.k_proj.weight.shape == (4, 16)
    assert attention.sinks is not None and attention.sinks.shape == (2,)
    ids = torch.zeros(1, 3, dtype=torch.long)
    assert "call without need_weights" in refusal(lambda: model(ids, need_weights=True))
    assert "ask the whole model" in refusal(lambda: chosen_weights(model, ids, rows=0))
    # A copy has its heads on the same ranks, and parameters of its own.
    twin = copy.deepcopy(model)
    assert torch.equal(twin(ids), model(ids))
    assert "the model that was cut is wanted" in refusal(lambda: shards.whole_state(twin))
    # A cache holds the heads of this rank.
    whole = decoder(("rotary", "alibi"), **LAYERS)
    assert torch.equal(model.generate(ids, max_new_tokens=4), whole.generate(ids, max_new_tokens=4))
    assert "a multiple of 2, and so many key heads; got" in refusal(lambda: shard_heads(decoder("rotary", kv_heads=1)))
    check_encoder_decoder(rank)
    check_planted_fault()


def check_encoder_decoder(rank: int) -> None:
    torch.manual_seed(1)
    model = EncoderDecoder(11, dim=16, heads=4, layers=1, encoding="alibi", cross_encoding="t5_bias").double()
    ids = torch.randint(11, (2, 1, 6), generator=torch.Generator().manual_seed(rank * 0))
    expected = model(*ids)
    shard_heads(model)
    assert_near({"logits": model(*ids)}, {"logits": expected}, 1e-10, "encoder and decoder")


def check_planted_fault() -> None:
    """Check that the slopes of other heads fail the comparison."""
    is_same = HeadSubset.is_same
    HeadSubset.is_same = lambda self, whole, part: part is not None  # ty: ignore
    try:
        compare("alibi", decoder("alibi"))
    except AssertionError as error:
        assert "logits is off by" in str(error)
    else:
        raise AssertionError("the comparison missed the slopes of other heads")
    finally:
        HeadSubset.is_same = is_same


def test_usual_encodings_are_cut_by_heads_and_others_refused_by_name(tmp_path: Path) -> None:
    run_on_ranks(2, compare_models, tmp_path)


@pytest.mark.slow
def test_every_encoding_is_cut_by_heads_or_refused_by_name(tmp_path: Path) -> None:
    inner_specs = {name: catalogue.find(name).wraps[:1] for name in catalogue.names()}
    specs = [f"{name}({inner[0]})" if inner else name for name, inner in inner_specs.items()]
    run_on_ranks(2, compare_or_refuse, tmp_path, [*specs, *FURTHER])


def heads_and_sequence(rank: int) -> None:
    """Shard heads and tokens over four ranks, two by two."""
    rows = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3])]
    columns = [dist.new_group(ranks) for ranks in ([0, 2], [1, 3])]
    spec = "rotary + forgetting + alibi"
    ids = torch.randint(11, (2, TOKENS), generator=torch.Generator().manual_seed(5))
    model = decoder(spec, layers=2)
    logits = model(ids)
    logits.square().sum().backward()
    expected = slopes(model)
    model.zero_grad()
    heads = shard_heads(model, rows[rank // 2])
    tokens = shard_sequence(model, columns[rank % 2])
    actual = model(tokens.cut(ids), positions=tokens.cut(Positions.count(TOKENS)))
    actual.square().sum().backward()
    tokens.add_gradients(model)
    heads.add_gradients()
    assert_near({"logits": tokens.joined(actual)}, {"logits": logits}, 1e-10, spec)
    for parameter in model.parameters():
        part = heads.parts.get(parameter)
        name = heads.names[parameter if part is None else part.whole]
        if parameter.grad is not None and name in expected:
            slope = expected[name] if part is None else head_entries(expected[name], part)
            assert_near({name: parameter.grad}, {name: slope}, 1e-10, spec)


@pytest.mark.slow
def test_heads_and_the_sequence_are_cut_together(tmp_path: Path) -> None:
    run_on_ranks(4, heads_and_sequence, tmp_path)


# Without processes


def test_a_bias_of_some_heads_has_their_rows() -> None:
    alibi = build("alibi", Shape(16, 4, 4, 32))
    subset = HeadSubset((2, 3), total_heads=4, kv_heads=4, head_dim=4, dim=16)(alibi)
    assert isinstance(subset, BiasRows) and str(subset) == "alibi of heads (2, 3)"
    biases = [encoding.bias(Positions.count(5), causal=True) for encoding in (subset, alibi)]
    assert torch.equal(biases[0], biases[1][:, 2:])
    assert not torch.equal(biases[0], build("alibi", Shape(16, 2, 4, 32)).bias(Positions.count(5), causal=True))


def test_what_all_heads_share_is_the_same_object_and_what_each_learns_is_its_part() -> None:
    fire = build("fire", Shape(16, 4, 4, 32))
    of_heads = HeadSubset((2, 3), total_heads=4, kv_heads=4, head_dim=4, dim=16)
    subset = of_heads(fire)
    names = dict(subset.named_parameters())
    common = {name for name, parameter in fire.named_parameters() if names[name] is parameter}
    assert {"c", "multiplier", "hidden.weight"} <= common and "out.weight" not in common
    assert torch.equal(names["out.weight"], fire.get_parameter("out.weight")[2:])
    assert of_heads(fire) is subset


def test_an_encoding_of_two_natures_is_refused() -> None:
    class TwoNatures(type(build("alibi", Shape(16, 4, 4, 32)))):
        def embed(self, x, at):
            return x

    with pytest.raises(ValueError, match=r"both adds to embeddings, which is the same on all ranks, .* two encodings"):
        HeadSubset((0, 1), total_heads=4, kv_heads=4, head_dim=4, dim=16)(TwoNatures(4))


def test_norms_of_all_heads_together_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    monkeypatch.setattr("posenc.parallel.heads.process_group", lambda _: group)
    with pytest.raises(ValueError, match=r"^qk_norm='joined' norms all heads as one vector, and no rank has all; ta"):
        shard_heads(decoder("rotary", qk_norm="joined"))


def test_a_group_is_needed_to_cut_heads() -> None:
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group first"):
        shard_heads(decoder("rotary"))
