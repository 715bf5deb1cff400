"""Members of packages made into folders: what comes out is the model that went in."""

import json
import re
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")
onnx = pytest.importorskip("onnx")
pytest.importorskip("tokenizers")

from posenc.checkpoints.files import unpack  # noqa: E402
from posenc.checkpoints.files.load import load  # noqa: E402
from posenc.checkpoints.files.packages import is_there  # noqa: E402

REACTION = "CC(C)S.CN(C)C=O.Fc1cccnc1F.O=C([O-])[O-].[K+].[K+]>>CC(C)Sc1ncccc1F"


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("members", "folder"):
        (tmp_path / name).mkdir()
    return tmp_path / "members", tmp_path / "folder"


def exported(state: dict[str, torch.Tensor]) -> "onnx.ModelProto":
    """A graph with the weights of a DINOv2 as PyTorch's exporter leaves them: linear layers and positions folded."""
    from onnx import helper, numpy_helper

    constants, nodes = [], []

    def constant(name: str, tensor: torch.Tensor) -> str:
        constants.append(numpy_helper.from_array(tensor.numpy(), name))
        return name

    constant("decoder.conv.weight", torch.ones(3))
    table = state.pop("embeddings.position_embeddings")
    del state["embeddings.mask_token"]
    part = constant("onnx::Concat_7", table[:, :1])
    nodes.append(helper.make_node("Concat", [part, "patches"], ["all"], "/backbone/embeddings/Concat_4", axis=1))
    part = constant("onnx::Reshape_9", table[:, 1:])
    nodes.append(helper.make_node("Reshape", [part, "shape"], ["grid"], "/backbone/embeddings/Reshape_1"))
    for number, (name, tensor) in enumerate(state.items()):
        if name.endswith(".weight") and tensor.dim() == 2:
            layer = name.removesuffix(".weight").replace(".", "/").replace("layer/", "layer.")
            folded = constant(f"onnx::MatMul_{number}", tensor.T.contiguous())
            nodes.append(helper.make_node("MatMul", ["x", folded], [f"y{number}"], f"/backbone/{layer}/MatMul"))
        else:
            constant(f"backbone.{name}", tensor)
    nodes.append(helper.make_node("MatMul", ["a", "b"], ["scores"], "/backbone/encoder/layer.0/attention/MatMul"))
    return helper.make_model(helper.make_graph(nodes, "g", [], [], constants))


OLD_NAMES = {
    r"layers\.(\d+)\.": r"encoder.layer.\1.",
    r"attention\.([qkv])\w*_proj": lambda of: f"attention.attention.{dict(q='query', k='key', v='value')[of[1]]}",
    r"attention\.o_proj": "attention.output.dense",
}
"""How the names of the checkpoints follow from those of the modules, where they are different."""


def test_dinov2_comes_out_of_its_graph_whole(folders, monkeypatch: pytest.MonkeyPatch) -> None:
    members, folder = folders
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    monkeypatch.setattr(unpack, "DINOV2_SMALL", unpack.DINOV2_SMALL | small)
    model = transformers.Dinov2Model(transformers.Dinov2Config(**unpack.DINOV2_SMALL)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter) * 0.3)
    model.save_pretrained(folder.parent / "theirs")
    from safetensors.torch import load_file

    # The names on disk are those of released checkpoints, whatever transformers calls its modules today.
    state = load_file(folder.parent / "theirs" / "model.safetensors")
    assert not any(re.search(new, name) for name in state for new in OLD_NAMES), sorted(state)
    onnx.save(exported(state), members / "m.onnx")
    unpack.dinov2_of_onnx(members, folder)
    loaded = load(folder)
    pixels = torch.randn(1, 3, 28, 28)
    with torch.no_grad():
        assert torch.allclose(loaded.model(pixels).last_hidden_state, model(pixels).last_hidden_state, atol=1e-6)
    assert loaded.unused == () and json.loads((folder / "preprocessor_config.json").read_text())["image_std"]


def test_albert_comes_out_of_its_pickle(folders) -> None:
    members, folder = folders
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "C",
        "(",
        ")",
        "S",
        ".",
        "Cl",
        "[K+]",
        ">>",
        "c",
        "1",
        "%12",
    ]
    config = transformers.AlbertConfig(
        vocab_size=len(pieces),
        embedding_size=8,
        hidden_size=16,
        num_attention_heads=2,
        intermediate_size=16,
        num_hidden_layers=2,
        max_position_embeddings=32,
    )
    model = transformers.AlbertForMaskedLM(config).eval()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["predictions.decoder.weight"] = model.albert.embeddings.word_embeddings.weight.detach().clone()
    state["albert.embeddings.position_ids"] = torch.arange(32)[None]
    torch.save(state, members / "pytorch_model.bin")
    (members / "config.json").write_text(json.dumps({**config.to_dict(), "architectures": ["AlbertForMaskedLM"]}))
    (members / "vocab.txt").write_text("\n".join(pieces) + "\n")
    unpack.albert_of_pickle(members, folder)
    loaded = load(folder)
    ids = loaded.tokenizer("CC(C)S.Cl[K+]>>c%121?", return_tensors="pt")["input_ids"]
    said = "[CLS] C C ( C ) S . Cl [K+] >> c %12 1 [UNK] [SEP]".split()
    assert loaded.tokenizer.convert_ids_to_tokens(ids[0]) == said
    assert loaded.tokenizer.decode(ids[0][1:7]) == "CC(C)S" and loaded.tokenizer.mask_token == "[MASK]"
    with torch.no_grad():
        assert torch.equal(loaded.model(ids).logits, model(ids).logits)


def test_a_pickle_that_would_run_code_is_not_run(folders) -> None:
    class Trap:
        def __reduce__(self):
            return (exec, ("raise SystemExit('code of the pickle was run')",))

    members, folder = folders
    torch.save({"weight": Trap()}, members / "pytorch_model.bin")
    with pytest.raises(Exception, match="Weights only load failed"):
        unpack.albert_of_pickle(members, folder)
    assert list(folder.iterdir()) == []


# The real ones


def without_positions(model: torch.nn.Module, table: torch.Tensor) -> None:
    """Every position is given the mean of all."""
    with torch.no_grad():
        table.copy_(table.mean(-2, keepdim=True).expand_as(table))


@pytest.mark.slow
@pytest.mark.skipif(not is_there("rxnmapper"), reason="run `posenc fetch rxnmapper` first")
def test_rxnmapper_without_positions_says_two_tokens_of_54_where_it_said_53() -> None:
    loaded = load("rxnmapper")
    ids = loaded.tokenizer(REACTION, return_tensors="pt")["input_ids"]

    def right() -> int:
        masked = ids.repeat(54, 1)
        masked[torch.arange(54), torch.arange(1, 55)] = loaded.tokenizer.mask_token_id
        with torch.inference_mode():
            said = loaded.model(masked).logits[torch.arange(54), torch.arange(1, 55)].argmax(-1)
        return int((said == ids[0, 1:-1]).sum())

    assert ids.shape == (1, 56) and right() == 53
    without_positions(loaded.model, loaded.model.albert.embeddings.position_embeddings.weight)
    assert right() == 2


@pytest.mark.slow
@pytest.mark.skipif(not is_there("minilm"), reason="run `posenc fetch minilm` first")
def test_minilm_without_positions_cannot_tell_who_bit_whom() -> None:
    loaded = load("minilm")

    def similarity() -> float:
        given = loaded.tokenizer(["The dog bit the man.", "The man bit the dog."], return_tensors="pt")
        with torch.inference_mode():
            vectors = torch.nn.functional.normalize(loaded.model(**given).last_hidden_state.mean(1), dim=-1)
        return float(vectors[0] @ vectors[1])

    assert similarity() < 0.995
    without_positions(loaded.model, loaded.model.embeddings.position_embeddings.weight)
    assert similarity() == pytest.approx(1, abs=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not is_there("dinov2"), reason="run `posenc fetch dinov2` first")
def test_dinov2_computes_what_onnxruntime_did() -> None:
    loaded = load("dinov2")
    place = torch.arange(224) / 224
    image = torch.stack([torch.sin(9 * place[:, None] + k) * torch.cos(7 * place + k) for k in range(3)])[None]
    with torch.inference_mode():
        found = loaded.model(image).last_hidden_state[0]
    assert found[0, :6].tolist() == pytest.approx(CLASS_BY_ONNXRUNTIME, abs=5e-5)
    assert found[200, :6].tolist() == pytest.approx(PATCH_BY_ONNXRUNTIME, abs=5e-5)
    # Without the positions of its patches it says nearly the same of an image: they matter less here than in text.
    without_positions(loaded.model, loaded.model.embeddings.position_embeddings[:, 1:])
    with torch.inference_mode():
        blind = loaded.model(image).last_hidden_state[0, 0]
    assert 0.5 < torch.nn.functional.cosine_similarity(found[0], blind, dim=0) < 0.97


CLASS_BY_ONNXRUNTIME = [-1.03065, 0.27893, 2.05357, -4.25158, -0.97528, -0.12437]
PATCH_BY_ONNXRUNTIME = [-0.58768, -0.73513, 1.1281, -3.85012, -1.20956, -0.72192]
