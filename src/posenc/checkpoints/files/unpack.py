"""How the members of a package become a folder that `load` takes: as they lie, out of ONNX, out of a pickle."""

import json
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

SMILES = r"(\[[^\]]+\]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9])"
"""The pieces of a chemical formula in SMILES: an atom in brackets, an atom, a bond, a branch, a ring.

Source: Schwaller et al., Molecular Transformer, ACS Central Science 2019.
"""

DINOV2_SMALL: dict[str, Any] = {
    "architectures": ["Dinov2Model"],
    "model_type": "dinov2",
    "hidden_size": 384,
    "num_hidden_layers": 12,
    "num_attention_heads": 6,
    "mlp_ratio": 4,
    "image_size": 518,
    "patch_size": 14,
    "num_channels": 3,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-06,
    "qkv_bias": True,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
    "drop_path_rate": 0.0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.02,
    "dtype": "float32",
}

IMAGENET = {
    "image_processor_type": "BitImageProcessor",
    "do_convert_rgb": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.485, 0.456, 0.406],
    "image_std": [0.229, 0.224, 0.225],
    "do_resize": True,
    "resample": 3,
    "size": {"shortest_edge": 256},
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
}
"""How images are made ready: colours with the mean and the spread of ImageNet."""


def as_they_lie(members: Path, folder: Path) -> None:
    """Files that are a model folder, or a GGUF file, already."""
    for member in members.iterdir():
        name = "model.gguf" if member.suffix == ".gguf" else member.name
        shutil.move(member, folder / name)


def dinov2_of_onnx(members: Path, folder: Path) -> None:
    """DINOv2's weights out of an exported graph, under the names that its checkpoints have.

    Exporters keep the names of some parameters and fold others into constants: a linear layer y = x W^T becomes
    MatMul(x, W^T), whose second input has no name of its own but whose node is named after the layer, and the two
    parts of the position table are what is reshaped and concatenated. What the graph has besides the backbone stays.
    """
    import torch
    from onnx import load, numpy_helper
    from safetensors.torch import save_file

    (file,) = members.glob("*.onnx")
    graph = load(str(file)).graph
    constants = {constant.name: constant for constant in graph.initializer}

    def tensor(name: str) -> "Tensor":
        return torch.from_numpy(numpy_helper.to_array(constants[name]).copy())

    tensors = {name.removeprefix("backbone."): tensor(name) for name in constants if name.startswith("backbone.")}
    table = {}
    for node in graph.node:
        folded = [name for name in node.input if name.startswith("onnx::") and name in constants]
        if node.op_type == "MatMul" and folded:
            layer = re.sub(r"^/backbone/|/MatMul$", "", node.name).replace("/", ".")
            tensors[f"{layer}.weight"] = tensor(folded[0]).T.contiguous()
        elif folded and node.name.startswith("/backbone/embeddings/"):
            table[node.op_type] = tensor(folded[0])
    tensors["embeddings.position_embeddings"] = torch.cat([table["Concat"], table["Reshape"]], dim=1)
    # Used in training only, and not part of the graph.
    tensors["embeddings.mask_token"] = torch.zeros(1, DINOV2_SMALL["hidden_size"])
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(DINOV2_SMALL, indent=2) + "\n")
    (folder / "preprocessor_config.json").write_text(json.dumps(IMAGENET, indent=2) + "\n")


def albert_of_pickle(members: Path, folder: Path) -> None:
    """An ALBERT over SMILES out of a pickle whose hash was checked, read as weights only, and its vocabulary."""
    import torch
    from safetensors.torch import save_file

    tensors = torch.load(members / "pytorch_model.bin", map_location="cpu", weights_only=True)
    # The head's matrix is the embedding's, and the positions are 0, 1, 2, ...: neither is a weight of its own.
    derived = ("predictions.decoder.weight", "predictions.decoder.bias", "albert.embeddings.position_ids")
    kept = {name: tensor.contiguous() for name, tensor in tensors.items() if name not in derived}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    shutil.move(members / "config.json", folder / "config.json")
    vocabulary = (members / "vocab.txt").read_text().split("\n")
    smiles_tokenizer({piece: number for number, piece in enumerate(vocabulary) if piece}, folder)


def smiles_tokenizer(vocabulary: dict[str, int], folder: Path) -> None:
    """Write the tokenizer of a BERT over SMILES: one token for each piece of the formula, between [CLS] and [SEP]."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors

    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    # What is between the pieces, such as a space, is no piece: it is taken away.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Split(Regex(SMILES), "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    )
    tokenizer.decoder = decoders.Fuse()
    special = {"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]"}
    special |= {"cls_token": "[CLS]", "mask_token": "[MASK]"}
    tokenizer.add_special_tokens([*special.values()])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 512, **special}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=2) + "\n")
