"""Files with several parts, with additions, in other layouts, and of checkpoints; and what is refused."""

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from standalone.test_forms import samples

from posenc import Positions, Shape, build, cli, eject, names
from posenc.catalogue import ENCODINGS
from posenc.encoding.base import Encoding
from posenc.lessons import lesson_of
from posenc.standalone import readable
from posenc.tokens.positions import as_positions

SHAPE = Shape(dim=32, heads=4, head_dim=8, max_len=64)
IDS = torch.tensor([[0, 1, 2, 3, 4], [7, 8, 9, 30, 63]])


def scope_of(text: str, name: str = "ejected") -> dict[str, Any]:
    scope: dict[str, Any] = {"__name__": name}
    exec(compile(text, "ejected.py", "exec"), scope)
    return scope


def run_self_test(text: str) -> None:
    scope_of(text, "__main__")


@pytest.mark.parametrize("seq_dim", [1, 2])
@pytest.mark.parametrize(
    "spec",
    [
        "rotary + alibi", "alibi + rotary + log_temperature(trained_length=64)",
        "on(rotary, heads=(0, 1)) + on(alibi, heads=(2, 3))", "on(shaw(values=False), heads=(3, 0)) + kerple",
        "rotary(schedule=dynamic_ntk(trained_length=64)) + kerple",
        "rotary(base=100) + rotary(partial=0.5)", "on(alibi(form='asymmetric'), heads=(1,)) + alibi",
        "rotary(schedule=yarn(factor=4, trained_length=64)) + t5_bias",
    ],
)  # fmt: skip
def test_a_sum_in_one_file_is_the_librarys(spec: str, seq_dim: int) -> None:
    text = eject(spec, seq_dim=seq_dim)
    run_self_test(text)
    encoding = build(spec, SHAPE).double()
    sizes = {"num_heads": 4, "head_dim": 8}
    arguments = [name for name in sizes if f"{name}: int" in text.split("class PositionalEncoding")[1]]
    module = scope_of(text)["PositionalEncoding"](**{name: sizes[name] for name in arguments}).double()
    copy_weights(encoding, module)
    q, k = samples(2, 4, 5, 8), samples(2, 4, 5, 8).flip(-1)
    inputs = [x if seq_dim == 2 else x.transpose(1, 2) for x in (q, k)]
    at = as_positions(IDS).with_horizon(200)
    if "turn" in encoding.doors:
        # Frequencies that depend on the length of the text are those of 200 tokens.
        options = {"horizon": 200} if "horizon" in inspect.signature(module.rotate).parameters else {}
        inputs = module.rotate(*inputs, IDS, **options)
        q, k = encoding.turn(q, at, "query"), encoding.turn(k, at, "key")
        for actual, expected in zip(inputs, (q, k), strict=True):
            torch.testing.assert_close(actual if seq_dim == 2 else actual.transpose(1, 2), expected)
    if "by_distance" in encoding.doors or "biases" in encoding.doors:
        bias = encoding.bias(IDS, q=q, k=k)
        torch.testing.assert_close(module.bias(*inputs, IDS).expand_as(bias), bias, rtol=1e-6, atol=1e-6)


def copy_weights(encoding: Encoding, module: torch.nn.Module) -> None:
    for target, source in zip(module.parameters(), encoding.parameters(), strict=True):
        source.data = samples(*source.shape)
        target.data = source.data.clone()


def test_embeddings_of_tokens_are_the_librarys() -> None:
    for spec, sizes in (("learned", {"max_seq_len": 64}), ("sinusoidal", {})):
        text = eject(spec, tokens=True)
        run_self_test(text)
        module = scope_of(text)["TokenPositionEmbedding"](50, 32, **sizes).double().eval()
        encoding = build(spec, SHAPE).double()
        encoding.load_state_dict(module.position.state_dict())
        ids = torch.tensor([[3, 1, 4, 1, 5]])
        torch.testing.assert_close(module(ids), encoding(module.token(ids)))
    with pytest.raises(
        ValueError, match="tokens are embedded with learned or sinusoidal, not with alibi; leave tokens"
    ):
        eject("alibi", tokens=True)


def test_a_cached_token_is_rotated_and_kept_as_in_one_pass() -> None:
    text = eject("rotary", cache=True)
    run_self_test(text)
    scope = scope_of(text)
    rope, cache = scope["RotaryEmbedding"](8), scope["KVCache"]()
    q, k = samples(1, 2, 6, 8), samples(1, 2, 6, 8).flip(-1)
    whole = rope(q, k)
    for t in range(6):
        one_q, one_k = rope(q[:, :, t : t + 1], k[:, :, t : t + 1], offset=cache.length)
        keys, values = cache.update(one_k, -one_k)
        torch.testing.assert_close(one_q, whole[0][:, :, t : t + 1])
    torch.testing.assert_close(keys, whole[1])
    assert values.equal(-keys) and cache.length == 6


def test_packed_ids_and_mask_are_the_librarys() -> None:
    text = eject("rotary", packed=True)
    run_self_test(text)
    scope = scope_of(text)
    documents = torch.tensor([[1, 1, 1, 2, 2, 3], [4, 4, 5, 5, 5, 5]])
    at = Positions.from_segments(documents)
    assert scope["packed_position_ids"](documents).equal(at.coords[..., 0].long())
    from posenc import masks

    assert scope["packed_mask"](documents).equal(masks.causal().allowed(at, at))


def test_what_has_no_readable_form_is_refused_with_advice(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="because it changes another encoding; those that"):
        eject("dape(alibi)")
    with pytest.raises(
        ValueError, match="none has no readable form, because it adds nothing; those that have: alibi, "
    ):
        eject("none")
    with pytest.raises(
        ValueError, match=r"shaw replaces attention, and its file cannot add other encodings; eject it alone"
    ):
        eject("alibi + shaw")
    run_self_test(eject("shaw"))
    with pytest.raises(ValueError, match="alibi has no layout 'interleaved' to choose; leave layout out"):
        eject("alibi", layout="interleaved")
    with pytest.raises(ValueError, match=r"seq_dim must be 2, for \[B, H, T, D\], or 1, for \[B, T, H, D\]; got 3"):
        eject("rotary", seq_dim=3)
    with pytest.raises(
        ValueError, match=r"leaves it open; give it in tokens, as in eject\(\.\.\., trained_length=4096\)"
    ):
        eject("rotary(schedule=yarn(factor=4))")
    run_self_test(eject("rotary(schedule=yarn(factor=4))", trained_length=4096))
    assert cli.main(["eject"]) and "give one encoding: a SPEC, such as rotary" in capsys.readouterr().err


def test_the_command_writes_the_file_that_its_first_lines_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rope.py"
    assert not cli.main(["eject", "rotary", "--layout", "interleaved", "--seq-dim", "1", "--cache", "--out", str(path)])
    text = path.read_text()
    assert text == eject("rotary", layout="interleaved", seq_dim=1, cache=True)
    assert "posenc eject rotary --layout interleaved --seq-dim 1 --cache" in text
    assert "lines" in capsys.readouterr().out
    assert not cli.main(["eject", "alibi"]) and "class ALiBi" in capsys.readouterr().out


def test_the_encoding_of_a_checkpoint_is_written_with_its_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    config = {
        "model_type": "llama", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 99,
        "intermediate_size": 64, "max_position_embeddings": 2048, "rope_theta": 500_000.0,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert not cli.main(["eject", "--checkpoint", str(tmp_path)])
    text = capsys.readouterr().out
    run_self_test(text)
    assert "BASE = 500_000" in text and "FACTOR = 4.0" in text and "TRAINED_LENGTH = 512" in text
    assert cli.main(["eject", "rotary", "--checkpoint", str(tmp_path)])
    assert "give one encoding: a SPEC" in capsys.readouterr().err
    local = {"model_type": "gemma3_text", "rope_scaling": None, "rope_local_base_freq": 10_000.0, "head_dim": 16}
    config |= local | {"num_hidden_layers": 6, "sliding_window": 512, "sliding_window_pattern": 6}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert cli.main(["eject", "--checkpoint", str(tmp_path)])
    assert "layers 5: rotary(base=500000); give one of them as SPEC" in capsys.readouterr().err
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 64}))
    assert cli.main(["eject", "--checkpoint", str(tmp_path)])
    assert "no encoding was read from" in capsys.readouterr().err


BY_POSITION = (
    "alibi", "t5_bias", "kerple", "sandwich", "fire", "mlp_bias", "grid_bias", "log_grid_bias", "transformer_xl",
    "deberta", "tupe", "inkling", "shaw(values=False)", "alibi(learned=True) + t5_bias",
)  # fmt: skip


@pytest.mark.parametrize("seq_dim", [1, 2])
@pytest.mark.parametrize("spec", BY_POSITION)
def test_ids_that_fit_no_queries_or_keys_are_refused_with_advice(spec: str, seq_dim: int) -> None:
    text = eject(spec, seq_dim=seq_dim)
    run_self_test(text)
    scope = scope_of(text)
    (*_, cls) = (value for value in scope.values() if getattr(value, "__module__", "") == "ejected")
    sizes = {"d_model": 16, "num_heads": 2, "head_dim": 8, "max_seq_len": 64}
    module = cls(**{name: size for name, size in sizes.items() if name in inspect.signature(cls).parameters}).double()
    bias_of = getattr(module, "bias", module)
    q, k = (samples(1, 2, length, 8).movedim(2, seq_dim) for length in (1, 5))
    q = samples(1, 1, 16) if spec == "inkling" else q
    ids = torch.arange(7, 12)[:, None].expand(5, 2) if "grid" in spec else torch.arange(7, 12)
    for wrong in ({"position_ids": ids[-1:]}, {"position_ids": ids, "key_position_ids": ids}):
        with pytest.raises(ValueError, match=r"expected .*ids of 1 queries and .*5 keys.*(key_position_ids|or none)"):
            bias_of(q, k, **wrong)
    both = bias_of(q, k, ids[-1:], ids)
    assert both.shape[-2:] == (1, 5)
    if ids.dim() == 1:  # key_position_ids alone: queries are the last keys
        assert bias_of(q, k, key_position_ids=ids).equal(both)
        assert bias_of(q.narrow(1 if q.dim() == 3 else seq_dim, 0, 0), k).shape[-2:] == (0, 5)


@pytest.mark.parametrize("spec", ["shaw"])
def test_a_mask_that_is_not_boolean_or_has_three_axes_is_refused_with_advice(spec: str) -> None:
    scope = scope_of(eject(spec))
    (*_, cls) = (value for value in scope.values() if getattr(value, "__module__", "") == "ejected")
    module, x = cls(**{"head_dim": 8} if spec == "shaw" else {}).double(), samples(2, 2, 5, 8)
    with pytest.raises(ValueError, match=r"of a float mask .* give mask == 0"):
        module(x, x, x, torch.zeros(5, 5))
    with pytest.raises(ValueError, match=r"of \[batch, T, S\] give mask\[:, None\]"):
        module(x, x, x, torch.ones(2, 5, 5, dtype=torch.bool))


@pytest.mark.parametrize(
    ("number", "options", "name"),
    [
        (2, {"spec": "learned"}, "LearnedPositionalEncoding"),
        (3, {"spec": "sinusoidal"}, "SinusoidalPositionalEncoding"),
        (5, {"spec": "learned", "tokens": True}, "TokenPositionEmbedding"),
        (11, {"spec": "rotary"}, "RotaryEmbedding"),
        (11, {"spec": "rotary", "layout": "interleaved"}, "RotaryEmbedding"),
    ],
)
def test_a_file_is_a_right_answer_of_its_lesson(
    number: int, options: dict[str, Any], name: str, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(eject(**options))
    verdicts = lesson_of(str(number)).check(f"{tmp_path / 'mine.py'}:{name}")
    assert verdicts and all(verdict.kept for verdict in verdicts), verdicts


def test_every_encoding_has_a_form_but_rules_wrappers_and_none(tmp_path: Path) -> None:
    missing = set(names()) - set(readable())
    rules = {name for name in missing if "attend" in ENCODINGS[name].doors or ENCODINGS[name].wraps}
    assert missing == rules | {"none"} and len(missing) < 10
    code = "from posenc import Encoding\nclass Mine(Encoding):\n    def by_distance(self, delta): return -delta.abs()\n"
    (tmp_path / "mine.py").write_text(code)
    with pytest.raises(ValueError, match=r"Mine has no readable form yet; those that have: alibi, axial_rotary, "):
        eject(f"{tmp_path / 'mine.py'}:Mine")
