"""Sums of encodings, encodings on chosen heads, and the owners of parameters in a stack."""

import math

import pytest
import torch
from torch import Tensor

from posenc import Attention, Block, Compose, Decoder, Encoding, Keys, Polar, Positions, Shape, build, masks
from posenc.catalogue import build_layers
from posenc.encoding.chosen_heads import OnHeads
from posenc.encoding.formulas import Token
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.encodings.content_biases.shaw import Shaw
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.distance_biases.t5_bias import T5Bias
from posenc.encodings.none import NoPE
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rules.path import PaTH
from posenc.encodings.rules.rotary_values import RotaryValues
from posenc.encodings.rules.stick_breaking import StickBreaking
from posenc.kernels import bind

SHAPE = Shape.of(dim=24, heads=6, max_len=32)
DOUBLE = {"dtype": torch.float64}


def attend(encoding: Encoding, q: Tensor, k: Tensor, v: Tensor, at: Positions, kernel: str = "auto") -> Tensor:
    keys = Keys(encoding.key(k, at), v, at)
    return encoding.attend(encoding.query(q, at), at, keys, masks.causal(), bind(kernel, encoding, scale=0.5))[0]


def by_parts(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Compute causal attention with a bias, for queries and keys that are already rotated."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    past = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).tril()
    return (q @ k.transpose(-1, -2) * 0.5 + bias).masked_fill(~past, -torch.inf).softmax(-1) @ v


def qkv(kv_heads: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    return (
        torch.randn(2, 6, 9, 4, **DOUBLE),
        torch.randn(2, kv_heads, 9, 4, **DOUBLE),
        torch.randn(2, kv_heads, 9, 4, **DOUBLE),
    )


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_turns_and_biases_of_a_sum_apply_together(kernel: str) -> None:
    q, k, v = qkv()
    at = Positions.count(9)
    turned_q, turned_k = Rotary(4)(q, k)
    t5 = T5Bias(6, buckets=8, max_distance=20, std=1.0).double()
    actual = attend(Rotary(4) + ALiBi(6) + t5, q, k, v, at, kernel)
    expected = by_parts(turned_q, turned_k, v, ALiBi(6).bias(9, dtype=torch.float64) + t5.bias(9))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_a_bias_that_reads_the_query_sees_it_turned(kernel: str) -> None:
    q, k, v = qkv()
    shaw = Shaw(4, max_distance=2, values=False, std=1.0).double()
    turned_q, turned_k = Rotary(4)(q, k)
    bias = shaw.bias(9, q=turned_q) + ALiBi(6).bias(9, dtype=torch.float64)
    for whole in (shaw + Rotary(4) + ALiBi(6), Rotary(4) + ALiBi(6) + shaw):
        torch.testing.assert_close(
            attend(whole, q, k, v, Positions.count(9), kernel),
            by_parts(turned_q, turned_k, v, bias),
            rtol=0,
            atol=1e-6,
        )


def test_all_parts_add_to_the_embeddings() -> None:
    x, learned = torch.randn(2, 5, 24), Learned(24, 32)
    expected = learned(Sinusoidal(24)(x))
    assert torch.equal((Sinusoidal(24) + learned)(x), expected)
    assert (Sinusoidal(24) + learned).formula_added(3, 5) == pytest.approx((expected - x)[0, 3, 5].item(), abs=1e-6)


def test_a_sum_of_sums_is_flat_and_opens_every_door_of_its_parts() -> None:
    whole = (Sinusoidal(24) + Rotary(4)) + (ALiBi(6) + NoPE())
    assert isinstance(whole, Compose) and len(whole.parts) == 4
    assert whole.doors == {"embed", "turn", "by_distance"}
    assert (ALiBi(6) + Shaw(4, values=False)).doors == {"biases"}


def test_an_attention_rule_sees_the_doors_of_the_whole() -> None:
    q, k, v = qkv()
    at = Positions.count(9)
    shaw = Shaw(4, max_distance=3, std=1.0).double()
    turned_q, turned_k = Rotary(4)(q, k)
    bias = shaw.bias(9, q=turned_q) + ALiBi(6).bias(9, dtype=torch.float64)
    relative = (torch.arange(9)[None, :] - torch.arange(9)[:, None]).clamp(-3, 3) + 3
    past = torch.ones(9, 9, dtype=torch.bool).tril()
    weights = (turned_q @ turned_k.transpose(-1, -2) * 0.5 + bias).masked_fill(~past, -torch.inf).softmax(-1)
    expected = weights @ v + torch.einsum("bhts,tsd->bhtd", weights, shaw.value_table[relative])
    whole = Rotary(4) + shaw + ALiBi(6)
    assert whole.needs_weights and not (Rotary(4) + ALiBi(6)).needs_weights
    torch.testing.assert_close(attend(whole, q, k, v, at), expected, rtol=0, atol=1e-6)


def test_two_attention_rules_are_refused_and_both_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"at most one encoding may replace the attention rule, got shaw and shaw\(max_distance=4\); drop one",
    ):
        build("shaw + rotary + shaw(max_distance=4)", SHAPE)


def test_the_scalar_formulas_of_a_sum_are_those_of_its_parts() -> None:
    q, k = torch.randn(2, 1, 1, 1, 4, **DOUBLE)
    query, key = q.flatten().tolist(), k.flatten().tolist()
    whole, at, keys_at = Rotary(4) + ALiBi(2), Positions.count(1, 7), Positions.count(1, 3)
    turned_q, turned_k = Rotary(4).query(q, at).flatten(), Rotary(4).key(k, keys_at).flatten()
    assert whole.formula_query(query, 7.0, 1) == pytest.approx(turned_q.tolist())
    assert whole.formula_key(key, 3.0, 1) == pytest.approx(turned_k.tolist())
    logit = 0.5 * float(turned_q @ turned_k) - 4 * ALiBi(2).slopes[1]
    assert whole.formula_logit(query, key, 7.0, 3.0, 1, 0.5) == pytest.approx(logit)
    turned_back = RotaryValues(4).formula_value(query, 7.0, 3.0, 2)
    assert (ALiBi(2) + RotaryValues(4)).formula_value(query, 7.0, 3.0, 2) == turned_back != query[2]
    # The shares are 3/4 and 1/2, and the nearer key takes its share first.
    keys = [Token(key, float(t), t) for t in range(2)]
    weights = (StickBreaking() + ALiBi(2)).formula_weights([math.log(3), 0.0], Token(query, 2.0, 2), keys)
    assert weights == pytest.approx([3 / 8, 1 / 2])


def test_the_scalar_formula_of_a_sum_has_the_logits_that_one_part_makes_by_itself() -> None:
    query = Token([1.0, 0.0], 2.0, 2)
    facts = [([0.0, 1.0], 0.5), ([1.0, 0.0], 1.0), ([1.0, 0.0], 0.5)]
    keys = [Token([1.0, 2.0], float(t), t, {"path_direction": w, "path_strength": b}) for t, (w, b) in enumerate(facts)]
    # The reflection of token 2 halves the query, and that of token 1 makes it zero.
    slope = ALiBi(1).slopes[0]
    expected = [0.0 - 2 * slope, 1.0 - slope, 2.0]
    assert (ALiBi(1) + PaTH(5, 1, 2)).formula_logits(query, keys, 0, 2.0) == pytest.approx(expected)


class Facts(Encoding):
    """An encoding that memoises a tensor under a fixed name."""

    def remember(self, x, at):
        return {"fact": x[:, None]}


class MoreFacts(Encoding):
    def remember(self, x, at):
        return {"other": -x[:, None]}


def test_what_parts_remember_lies_together_and_a_name_belongs_to_one() -> None:
    x = torch.randn(1, 3, 24)
    attention = Attention(24, 6, encoding=Facts() + MoreFacts())
    at = Positions.count(3)
    _, keys = attention.queries_and_keys(x, None, None, attention.call_for(x, positions=at))
    assert {name: tuple(t.shape) for name, t in keys.memo.items()} == {"fact": (1, 1, 3, 24), "other": (1, 1, 3, 24)}
    with pytest.raises(ValueError, match=r"two parts of .* remember \['fact'\]; a memo name belongs to one encoding"):
        Attention(24, 6, encoding=Facts() + Facts())(x)


# on(...)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_chosen_heads_are_turned_and_biased_and_the_others_have_no_position(kernel: str) -> None:
    q, k, v = qkv()
    at = Positions.count(9)
    actual = attend(build("on(rotary + alibi, heads=(4, 1, 2))", SHAPE), q, k, v, at, kernel)
    turned_q, turned_k = (x.clone() for x in (q, k))
    heads = [4, 1, 2]
    turned_q[:, heads], turned_k[:, heads] = Rotary(4)(q[:, heads], k[:, heads])
    bias = torch.zeros(1, 6, 9, 9, **DOUBLE)
    bias[:, heads] = ALiBi(3).bias(9, dtype=torch.float64)
    torch.testing.assert_close(actual, by_parts(turned_q, turned_k, v, bias), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernel", ["sdpa", "reference"])
def test_biases_that_read_the_query_work_on_chosen_heads_in_any_mixture(kernel: str) -> None:
    q, k, v = qkv()
    whole = build("on(alibi + shaw(values=False, max_distance=2, std=1), heads=(5, 0)) + alibi", SHAPE).double()
    assert isinstance(whole, Compose) and isinstance(whole.parts[0], OnHeads)
    inner = whole.parts[0].encoding
    assert isinstance(inner, Compose)
    bias = ALiBi(6).bias(9, dtype=torch.float64).repeat(2, 1, 1, 1)
    bias[:, [5, 0]] += ALiBi(2).bias(9, dtype=torch.float64) + inner.parts[1].bias(9, q=q[:, [5, 0]])
    torch.testing.assert_close(
        attend(whole, q, k, v, Positions.count(9), kernel), by_parts(q, k, v, bias), rtol=0, atol=1e-6
    )


def test_shared_key_heads_are_turned_when_all_their_queries_are() -> None:
    q, k, v = qkv(kv_heads=3)
    actual = attend(build("on(rotary, heads=(2, 3))", SHAPE), q, k, v, Positions.count(9))
    turned_q, turned_k = q.clone(), k.clone()
    turned_q[:, 2:4], turned_k[:, 1:2] = Rotary(4)(q[:, 2:4], k[:, 1:2])
    torch.testing.assert_close(actual, by_parts(turned_q, turned_k, v, torch.zeros(())), rtol=0, atol=1e-12)
    with pytest.raises(
        ValueError,
        match=r"2 query heads share each key head, so the chosen heads must come in whole groups of 2, got \(0, 3\)",
    ):
        attend(build("on(rotary, heads=(0, 3))", SHAPE), q, k, v, Positions.count(9))


@pytest.mark.parametrize("heads", [(), (0, 0), (6,), (-1, 2)])
def test_heads_that_do_not_exist_or_stand_twice_are_refused(heads: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="heads must be different numbers from 0 to 5"):
        OnHeads(Rotary(4), heads, of=6)


@pytest.mark.parametrize(("encoding", "door"), [(Sinusoidal(24), "embed"), (Shaw(4), "attend"), (Facts(), "remember")])
def test_encodings_that_know_no_heads_are_refused(encoding: Encoding, door: str) -> None:
    with pytest.raises(
        ValueError, match=rf"opens the door '{door}', which knows no heads; on\(...\) takes rotary-like and bias"
    ):
        OnHeads(encoding, (0,), of=6)


def test_the_scalar_formula_of_chosen_heads_is_plain_on_the_others() -> None:
    encoding = OnHeads(ALiBi(2), (3, 1), of=4)
    q = [1.0, 2.0]
    plain, slopes = 0.5 * 5.0, {3: ALiBi(2).slopes[0], 1: ALiBi(2).slopes[1]}
    for head in range(4):
        assert encoding.formula_logit(q, q, 7.0, 3.0, head, 0.5) == pytest.approx(plain - 4 * slopes.get(head, 0.0))


def test_the_bias_of_chosen_heads_is_where_the_distances_are() -> None:
    bias = OnHeads(T5Bias(2, device="meta"), (3, 1), of=4).by_distance(torch.arange(5, device="meta"))
    assert bias is not None and bias.device.type == "meta" and bias.shape == (4, 5)


# Owners of parameters


def parameters(model: torch.nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def assert_saves(model: torch.nn.Module) -> None:
    """Check what safetensors needs: each name has its own storage."""
    state = model.state_dict()
    assert len({t.untyped_storage().data_ptr() for t in state.values()}) == len(state)


def test_equal_specs_share_one_instance_and_their_parameters_count_once() -> None:
    encodings, per_layer = build_layers(("t5_bias", "none", "t5_bias + rotary"), SHAPE, 7)
    assert [e.spec_name for e in encodings] == ["t5_bias", "none", "rotary"]
    assert per_layer[0] is per_layer[3] is per_layer[6] and isinstance(per_layer[2], Compose)
    assert per_layer[2].parts[0] is per_layer[0] and per_layer[5].parts[1] is per_layer[2].parts[1]


def test_encodings_of_the_layer_are_built_for_each() -> None:
    encodings, per_layer = build_layers("shaw + alibi", SHAPE, 3)
    assert [str(e) for e in encodings] == ["shaw", "alibi", "shaw", "shaw"]
    assert len({id(e.parts[0]) for e in per_layer}) == 3 and len({id(e.parts[1]) for e in per_layer}) == 1


def test_encodings_of_the_layer_stay_so_on_chosen_heads_and_inside_sums() -> None:
    for spec in ("on(shaw(values=False), heads=(0, 1))", "on(shaw(values=False) + alibi, heads=(0, 1))"):
        encodings, per_layer = build_layers(spec, SHAPE, 3)
        assert len(encodings) == 3 and len({id(e) for e in per_layer}) == 3


@pytest.mark.parametrize(
    ("encoding", "extra"),
    [
        ("t5_bias", 32 * 6),
        (("t5_bias", "none"), 32 * 6),
        (("t5_bias", "t5_bias(buckets=8)"), 32 * 6 + 8 * 6),
        ("t5_bias + learned", 32 * 6 + 32 * 24),
        ("shaw(max_distance=2)", 4 * 2 * 5 * 4),
        ("on(t5_bias, heads=(0, 2))", 32 * 2),
        (("rotary", "rotary", "rotary", "none"), 0),
        ("learned", 32 * 24),
    ],
    ids=str,
)
def test_a_model_counts_and_saves_each_parameter_once(encoding, extra: int) -> None:
    options = {"vocab": 7, "dim": 24, "heads": 6, "layers": 4, "max_len": 32}
    model = Decoder(**options, encoding=encoding)
    assert parameters(model) - parameters(Decoder(**options, encoding="none")) == extra
    assert sum(t.numel() for t in model.state_dict().values()) == parameters(model)
    assert_saves(model)
    again = Decoder(**options, encoding=encoding)
    again.load_state_dict(model.state_dict())
    ids = torch.randint(7, (2, 9))
    assert torch.equal(again(ids), model(ids))


def test_a_tied_output_is_saved_once() -> None:
    assert_saves(Decoder(vocab=7, dim=24, heads=6, layers=2, encoding="t5_bias", tie_output=True))


@pytest.mark.parametrize("encoding", [T5Bias(6), Rotary(4) + T5Bias(6), (T5Bias(6), Rotary(4) + ALiBi(6))], ids=str)
def test_an_instance_is_used_by_all_its_layers_and_owned_once(encoding) -> None:
    model = Decoder(vocab=7, dim=24, heads=6, layers=4, encoding=encoding)
    assert parameters(model) - parameters(Decoder(vocab=7, dim=24, heads=6, layers=4, encoding="none")) == 32 * 6
    assert_saves(model)


def test_a_tuple_is_cycled_over_the_layers() -> None:
    model = Decoder(vocab=7, dim=24, heads=6, layers=5, encoding=("rotary", "alibi", "none"))
    assert [str(e) for e in model.stack.encoding_of] == ["rotary", "alibi", "none", "rotary", "alibi"]
    with pytest.raises(ValueError, match="a stack needs at least one encoding; use 'none' for no position"):
        Decoder(vocab=7, dim=24, heads=6, encoding=())


def test_a_cycled_model_uses_each_layers_own_encoding() -> None:
    model = Decoder(vocab=7, dim=24, heads=6, layers=2, encoding=("rotary", "alibi")).double().eval()
    ids = torch.randint(7, (2, 9))
    x = model.embedding.token(ids)
    for block, encoding in zip(model.stack.blocks, (Rotary(4), ALiBi(6)), strict=True):
        x = block(x, mask=masks.causal(), encoding=encoding)
    torch.testing.assert_close(model(ids), model.output(model.stack.final_norm(x)), rtol=0, atol=1e-12)


def test_what_adds_to_embeddings_adds_once_however_many_layers_name_it() -> None:
    model = Decoder(vocab=7, dim=24, heads=6, layers=4, encoding=("sinusoidal", "sinusoidal + rotary"))
    assert [str(e) for e in model.stack.input_encodings] == ["sinusoidal"]
    ids = torch.randint(7, (2, 9))
    actual = model.embedding(ids, positions=Positions.count(9), encodings=model.stack.input_encodings)
    torch.testing.assert_close(actual, model.embedding.token(ids) + Sinusoidal(24).table(9), rtol=0, atol=0)


def test_a_block_alone_applies_every_part_of_a_sum() -> None:
    x = torch.randn(2, 5, 24, **DOUBLE)
    block = Block(24, 6, encoding="sinusoidal + rotary").double()
    inner = Block(24, 6).double()
    inner.load_state_dict(block.state_dict())
    torch.testing.assert_close(block(x), inner(Sinusoidal(24)(x), encoding=Rotary(4)), rtol=0, atol=1e-12)


def test_heads_that_become_wider_are_refused_beside_others() -> None:
    x = torch.zeros(1, 4, 3, 8)
    with pytest.raises(ValueError, match=r"polar makes heads of 8 channels 16 wide, .*; use it on all heads"):
        OnHeads(Polar(2, 8), (0, 1), of=4).query(x)


@pytest.mark.parametrize("encoding", ["polar", "rotary", "rotary + shaw(values=False)", "selective_rotary"])
@pytest.mark.parametrize("temperature", ["log_temperature", "scalable_softmax", "step_temperature(interval=3)"])
def test_a_temperature_multiplies_the_logit_wherever_it_is_written(encoding: str, temperature: str) -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(1, 9, 24, dtype=torch.float64), Attention(24, 6).double()
    first, *rest = build(f"{temperature} + {encoding}", SHAPE).double().parts
    leading, trailing = (layer(x, encoding=Compose(*parts)) for parts in ((first, *rest), (*rest, first)))
    torch.testing.assert_close(leading, trailing, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(leading, layer(x, encoding=Compose(*rest)))
