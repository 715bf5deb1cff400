"""Selective RoPE agrees with prefix sums and rotations computed token by token."""

import cmath
import math

import pytest
import torch
from torch import Tensor

from posenc import Attention, Decoder, Keys, Positions, masks
from posenc.encoding.formulas import Token
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rules.selective_rotary import SelectiveRotary
from posenc.kernels import bind
from posenc.tokens.masks import Mask


def angles(encoding: SelectiveRotary, x: Tensor) -> Tensor:
    return encoding.remember(x, Positions.count(x.shape[1]))["selective_rotary"]


def asked_for(encoding: SelectiveRotary, x: list[float], head: int) -> list[float]:
    """Return one token's angles for one head, as released but without the convolution."""
    size = math.sqrt(math.fsum(c * c for c in x) / encoding.heads + 1e-6)
    x, pairs = [c / size for c in x], encoding.head_dim // 2

    def apply_linears(linears: torch.nn.Sequential, x: list[float]) -> list[float]:
        for linear in linears:
            shift = [0.0] * linear.out_features if linear.bias is None else linear.bias.tolist()
            rows = linear.weight.tolist()
            x = [math.fsum(w * c for w, c in zip(row, x, strict=True)) + b for row, b in zip(rows, shift, strict=True)]
        return x

    out = apply_linears(encoding.to_angle, x)[head * pairs : (head + 1) * pairs]
    if encoding.log_drift is not None:
        out = [phi + math.exp(step) for phi, step in zip(out, encoding.log_drift[head].tolist(), strict=True)]
    if encoding.gate == "head":
        gate = apply_linears(encoding.to_gate, x)[head]
        out = [phi / (1 + math.exp(-gate)) for phi in out]
    if encoding.gate == "pair":
        gates = apply_linears(encoding.to_gate, x)[head * pairs : (head + 1) * pairs]
        out = [phi / (1 + math.exp(-gate)) for phi, gate in zip(out, gates, strict=True)]
    spectrum = [encoding.temperature * encoding.base ** (-2 * k / encoding.head_dim) for k in range(pairs)]
    temperatures = spectrum if encoding.temperatures is None else encoding.temperatures.tolist()
    return [phi * t for phi, t in zip(out, temperatures, strict=True)]


def written_out(
    layer: Attention, encoding: SelectiveRotary, x: Tensor, order: list[int], document: list[int], mask: Mask
) -> Tensor:
    """Compute attention for one row [T, dim] in plain loops, from prefix sums to softmax."""
    T, H, d = x.shape[0], encoding.heads, encoding.head_dim
    q = layer.split(layer.q_proj(x[None]), H)[0].tolist()
    group = H // layer.kv_heads
    k, v = (layer.split(project(x[None]), layer.kv_heads)[0].tolist() for project in (layer.k_proj, layer.v_proj))
    steps = [[asked_for(encoding, token, head) for token in x.tolist()] for head in range(H)]
    out = torch.zeros(T, H, d, dtype=torch.float64)
    for i in range(T):
        if order[i] < 0:
            continue
        for h in range(H):
            turn = []
            for t in range(T):
                so_far = [s for s in range(T) if 0 <= order[s] <= order[t] and document[s] == document[t]]
                turn.append([math.fsum(steps[h][s][p] for s in so_far) for p in range(d // 2)])

            def rotate(z: list[float], turns: list[float]) -> list[complex]:
                half = encoding.layout == "half"
                pairs = [(z[p], z[p + d // 2]) if half else (z[2 * p], z[2 * p + 1]) for p in range(d // 2)]
                return [complex(*pair) * cmath.rect(1, a) for pair, a in zip(pairs, turns, strict=True)]

            visible = [j for j in range(T) if order[j] >= 0 and document[j] == document[i]]
            if mask.causal:
                visible = [j for j in visible if order[j] <= order[i]]
            rotated_q = rotate(q[h][i], turn[i])
            keys = [rotate(k[h // group][j], turn[j]) for j in visible]
            logits = [math.fsum((a * b.conjugate()).real for a, b in zip(rotated_q, key, strict=True)) for key in keys]
            weights = torch.tensor([logit * layer.scale for logit in logits], dtype=torch.float64).softmax(0)
            values = torch.tensor([v[h // group][j] for j in visible], dtype=torch.float64)
            out[i, h] = weights @ values
    return layer.o_proj(out.flatten(1))


OPTIONS = (
    "rank=16",
    "drift=True, layout=interleaved",
    "gate=head, rank=3",
    "gate=pair, drift=True",
    "learned_temperature=True",
)


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kv_heads", [4, 2])
def test_it_is_what_the_paper_says_in_any_order_packed_and_padded(options: str, kv_heads: int) -> None:
    layer = Attention(16, 4, kv_heads=kv_heads, encoding=f"selective_rotary(base=7, {options})").double()
    encoding = layer.encoding
    assert isinstance(encoding, SelectiveRotary)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.5 * torch.randn_like(parameter)
    x = torch.randn(1, 9, 16, dtype=torch.float64)
    order, document = [3, 0, -1, 1, 5, 4, 2, 7, 6], [0, 0, 0, 0, 1, 1, 0, 1, 1]
    at = Positions(torch.tensor([order])[..., None], torch.tensor([order]), torch.tensor([document]))
    for mask in (masks.causal(), masks.bidirectional()):
        actual = layer(x, positions=at, mask=mask)[0]
        expected = written_out(layer, encoding, x[0], order, document, mask)
        real = torch.tensor(order) >= 0
        torch.testing.assert_close(actual[real], expected[real], rtol=0, atol=1e-12)


def test_angles_are_those_of_the_released_code_where_all_slices_have_one_length() -> None:
    encoding = SelectiveRotary(dim=12, heads=3, head_dim=4, rank=5).double()
    slices = torch.nn.functional.normalize(torch.randn(2, 7, 3, 4, dtype=torch.float64), dim=-1)
    x = 3.7 * slices.flatten(2)
    phi = slices.flatten(2) @ encoding.to_angle[0].weight.T @ encoding.to_angle[1].weight.T
    temperature = 1.0 / 500_000 ** (torch.arange(0, 4, 2, dtype=torch.float64) / 4)
    expected = phi.unflatten(-1, (3, 2)) * temperature
    torch.testing.assert_close(angles(encoding, x), expected.transpose(1, 2), rtol=0, atol=1e-6)


def test_with_drift_alone_it_is_rotary() -> None:
    layer = Attention(24, 3, encoding="selective_rotary(drift=True)").double()
    rotary = Attention(24, 3, encoding=Rotary(8, base=500_000.0)).double()
    rotary.load_state_dict({name: p for name, p in layer.state_dict().items() if not name.startswith("encoding")})
    torch.nn.init.zeros_(layer.encoding.to_angle[1].weight)
    x = torch.randn(2, 30, 24, dtype=torch.float64)
    for mask in (masks.causal(), masks.bidirectional(), masks.window(4)):
        torch.testing.assert_close(layer(x, mask=mask), rotary(x, mask=mask), rtol=0, atol=1e-11)


def test_coordinates_are_not_read() -> None:
    layer = Attention(24, 3, encoding="selective_rotary").double()
    x = torch.randn(1, 9, 24, dtype=torch.float64)
    expected = layer(x, mask=masks.causal())
    for ids in (torch.arange(9) * 100, torch.rand(9).sort().values):
        torch.testing.assert_close(layer(x, positions=ids, mask=masks.causal()), expected, rtol=0, atol=1e-12)


def test_a_token_turns_what_comes_after_it_and_nothing_before() -> None:
    layer = Attention(24, 3, encoding="selective_rotary").double()
    x = torch.randn(1, 9, 24, dtype=torch.float64)
    changed_x = x.clone()
    changed_x[:, 4] = torch.randn(24)
    _, weights = layer(x, mask=masks.causal(), need_weights=True)
    _, new_w = layer(changed_x, mask=masks.causal(), need_weights=True)
    torch.testing.assert_close(new_w[:, :, :4], weights[:, :, :4], rtol=0, atol=1e-12)
    # The angle between two later tokens is unchanged, so their logits differ as before.
    for w in (weights, new_w):
        assert (w[:, :, 8, 6] / w[:, :, 8, 5]).allclose(weights[:, :, 8, 6] / weights[:, :, 8, 5])
    # But the angle between a token before the changed one and a token after it has changed.
    assert not (new_w[:, :, 8, 3] / new_w[:, :, 8, 5]).allclose(weights[:, :, 8, 3] / weights[:, :, 8, 5])


def test_sums_over_a_long_sequence_stay_exact() -> None:
    encoding = SelectiveRotary(dim=2, heads=1, head_dim=2, drift=True)
    torch.nn.init.zeros_(encoding.to_angle[1].weight)
    T = 30_000
    memo = encoding.remember(torch.ones(1, T, 2), Positions.count(T))
    assert memo["selective_rotary"].dtype == torch.float32
    q = torch.tensor([1.0, 0.0]).expand(1, 1, 1, 2)
    at = Positions.count(1, T - 1)
    calls = {}

    def kernel(encoding, q, at, keys, mask, **options):
        calls["q"], calls["k"] = q, keys.k
        return q, None

    bound = bind("sdpa", encoding, scale=1.0)
    object.__setattr__(bound, "kernel", kernel)
    keys = Keys(q.expand(1, 1, T, 2), q.expand(1, 1, T, 2), Positions.count(T), memo)
    encoding.attend(q, at, keys, masks.causal(), bound)
    assert calls["q"][0, 0, 0].tolist() == pytest.approx([math.cos(T), math.sin(T)], abs=2e-7)
    assert calls["k"][0, 0, 999].tolist() == pytest.approx([math.cos(1000), math.sin(1000)], abs=2e-7)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_angles_of_a_half_precision_model_are_those_of_its_numbers(dtype: torch.dtype) -> None:
    encoding = SelectiveRotary(24, 3, 8, drift=True, gate="pair", learned_temperature=True).to(dtype)
    x = torch.randn(2, 50, 24).to(dtype)
    actual = angles(encoding, x)
    assert actual.dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        assert angles(encoding, x).equal(actual)
    torch.testing.assert_close(actual.double(), angles(encoding.double(), x.double()), rtol=1e-5, atol=1e-6)


def test_the_formula_counts_the_tokens_between_in_either_direction() -> None:
    encoding = SelectiveRotary(dim=2, heads=1, head_dim=2)
    steps = {0: 0.5, 1: 0.25, 2: -2.0, 3: 1.0}
    tokens = {o: Token([1.0, 0.0], o, o, {"selective_rotary": [a]}) for o, a in steps.items()}
    keys = [tokens[o] for o in (2, 0, 3, 1)]
    logits = encoding.formula_logits(tokens[2], keys, 0, 2.0)
    expected = [0.0, 0.25 - 2.0, -1.0, -2.0]
    assert logits == pytest.approx([2 * math.cos(angle) for angle in expected])


def test_it_begins_as_the_released_code_does() -> None:
    encoding = SelectiveRotary(64, 4, 16, rank=8, drift=True, gate="pair", learned_temperature=True)
    down, up = (linear.weight for linear in encoding.to_angle)
    assert down.shape == (8, 64) and up.shape == (32, 8)
    assert down.abs().max() <= 64**-0.5 and up.abs().max() <= 8**-0.5
    assert not encoding.log_drift.any()
    assert encoding.temperatures.tolist() == pytest.approx([500_000 ** (-k / 8) for k in range(8)])
    assert [tuple(linear.weight.shape) for linear in encoding.to_gate] == [(8, 64), (32, 8)]
    model = Decoder(vocab=5, dim=12, heads=3, layers=2, encoding="selective_rotary")
    assert sum("to_angle" in name for name, _ in model.named_parameters()) == 4
