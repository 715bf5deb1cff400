"""Options can be given singly or together, and errors, signatures and the repr name them."""

import functools
import inspect
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
import torch
from torch import nn

from posenc import Attention, Block, Config, Decoder, Encoder, EncoderDecoder, TokenPositionEmbedding, masks

SMALL = Config(
    dim=16, heads=4, layers=3, kv_heads=2, intermediate_size=24, norm_first=False, window=(3, None), max_len=9
)
ONE_BY_ONE = {field.name: getattr(SMALL, field.name) for field in fields(SMALL)}
LACKING = {
    Attention: {
        "layers", "window", "intermediate_size", "feed_forward", "norm_first", "branch_norm", "parallel_residual",
        "residual_scale", "embedding_norm", "output_softcap",
    },
    Block: {"layers", "window", "embedding_norm", "output_softcap"},
    Encoder: {"output_softcap"},
}  # fmt: skip
FIRST = {Decoder: (11,), Encoder: (11,), EncoderDecoder: (11,)}
MODULES = (Attention, Block, Decoder, Encoder, EncoderDecoder)


def same_model(a: nn.Module, b: nn.Module) -> bool:
    shapes = [{name: tensor.shape for name, tensor in model.state_dict().items()} for model in (a, b)]
    return repr(a) == repr(b) and shapes[0] == shapes[1]


@pytest.mark.parametrize("module", MODULES)
def test_sizes_one_by_one_and_sizes_together_make_the_same(module: type[nn.Module]) -> None:
    first = FIRST.get(module, ())
    options = {name: value for name, value in ONE_BY_ONE.items() if name not in LACKING.get(module, ())}
    whole = module(*first, SMALL, encoding="rotary")
    assert same_model(whole, module(*first, **options, encoding="rotary"))
    assert same_model(whole, module(*first, dim=SMALL, encoding="rotary"))
    with pytest.raises(ValueError, match=r"a Config or its options one by one, got a Config and dropout, kv_heads; "):
        module(*first, SMALL, encoding="rotary", kv_heads=4, dropout=0.5)
    other_model = module(*first, replace(SMALL, kv_heads=4, dropout=0.5), encoding="rotary")
    assert not same_model(other_model, whole)


@pytest.mark.parametrize("module", [Decoder, Encoder, EncoderDecoder])
def test_positional_arguments_come_as_vocab_sizes_and_encoding(module: type[nn.Module]) -> None:
    model = module(11, 16, 4, 3, "alibi", norm_first=True)
    assert same_model(model, module(11, Config(16, 4, 3), encoding="alibi"))
    assert model.config == Config(16, 4, 3) and model.vocab == 11


def test_a_model_of_given_sizes_runs() -> None:
    ids = torch.randint(11, (2, 7))
    torch.manual_seed(0)
    whole = Decoder(11, SMALL, encoding="rotary + alibi")
    torch.manual_seed(0)
    model = Decoder(11, **ONE_BY_ONE, encoding="rotary + alibi")
    assert torch.equal(whole(ids), model(ids))


def test_the_original_is_post_norm_unless_its_sizes_say_otherwise() -> None:
    assert not EncoderDecoder(11, dim=16, heads=2, layers=1).config.norm_first
    assert EncoderDecoder(11, Config(dim=16, heads=2, layers=1)).config.norm_first
    assert inspect.signature(EncoderDecoder).parameters["norm_first"].default is False
    assert inspect.signature(Decoder).parameters["norm_first"].default is True


@pytest.mark.parametrize("module", MODULES)
def test_the_signature_names_every_size_for_help_and_completion(module: type[nn.Module]) -> None:
    parameters = inspect.signature(module).parameters
    assert {option.name for option in fields(Config)} - LACKING.get(module, set()) <= set(parameters)
    assert not LACKING.get(module, set()) & set(parameters) and "sizes" not in parameters
    assert not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    leading = [name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    in_models = ["vocab", "dim", "heads", "layers", "encoding"]
    assert leading == (in_models if module in FIRST else ["dim", "heads"])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Decoder(11, head=4), r"^Decoder has no option 'head'; did you mean 'heads'\?$"),
        (
            lambda: EncoderDecoder(11, SMALL, kvheads=4),
            r"^EncoderDecoder has no option 'kvheads'; did you mean 'kv_hea",
        ),
        (lambda: Encoder(11, tie_outputs=True), r"^Encoder has no option 'tie_outputs'; it has: vocab, dim, heads, "),
        (lambda: Decoder(11, tie_outputs=True), r"^Decoder has no option 'tie_outputs'; did you mean 'tie_output'\?$"),
        (lambda: Block(16, 2, layers=3), r"^Block has no option 'layers'; it has: dim, heads, "),
        (lambda: Attention(16, 2, window=3), r"^Attention has no option 'window'; it has: dim, heads, "),
        (lambda: Decoder(), "missing 1 required positional argument: 'vocab'"),
        (lambda: Decoder(11, 16, dim=16), "multiple values for argument 'dim'"),
    ],
)
def test_an_option_that_there_is_not_is_refused_with_the_nearest_one(make, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"heads": 7}, "heads must divide dim=512, got heads=7"),
        ({"heads": 0}, "heads must divide dim=512, got heads=0"),
        ({"layers": 0}, "a stack needs at least one layer, got 0"),
        ({"layers": 1.5}, "layers must be a whole number, got 1.5"),
        ({"kv_heads": 3}, "kv_heads must divide heads=8, got 3"),
        ({"kv_heads": 0}, "kv_heads must divide heads=8, got 0"),
        ({"head_dim": 0}, "head_dim must be 1 or more, got 0"),
        ({"max_len": 0}, "max_len must be 1 or more, got 0"),
        ({"intermediate_size": 0}, "intermediate_size must be a whole number of 1 or more, got 0"),
        ({"norm": "middle"}, "norm must be one of layer, rms, got 'middle'"),
        ({"norm": "post"}, "norm says which norm, and norm_first=False is what 'post' was"),
        ({"norm_eps": 0.0}, "norm_eps must be above 0, got 0.0"),
        ({"feed_forward": "swish"}, "feed_forward must be one of gelu, gelu_tanh, relu, relu2, swiglu, geglu, geglu_t"),
        ({"qk_norm": "all"}, "qk_norm must be True, False or 'joined', got 'all'"),
        ({"init": "zeros"}, "init must be one of torch, normal, gpt2, small, xavier, got 'zeros'"),
        ({"softcap": 0}, "softcap must be above 0, got 0"),
        ({"output_softcap": -1.0}, "output_softcap must be above 0, got -1.0"),
        ({"residual_scale": float("inf")}, "residual_scale must be a finite number, got inf"),
        ({"parallel_residual": True, "norm_first": False}, "parallel_residual branches read norms of the block"),
        ({"bias": ("q",)}, "bias must be one of q_proj, k_proj, v_proj, o_proj, feed_forward, norm, output, got 'q'"),
        ({"kernel": "fast"}, "no kernel named 'fast'"),
        ({"scale": float("nan")}, "scale must be a finite number, got nan"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"bias": "no"}, "bias must be True or False or a tuple, got 'no'"),
        ({"window": ()}, "window needs at least one size or None for the layers, got an empty tuple"),
        ({"window": []}, "window needs at least one size or None for the layers, got an empty tuple"),
        ({"window": (3, 0)}, "a window holds at least 1 token, got window=0"),
        ({"window": "3"}, "window must be a whole number or a tuple, got '3'"),
    ],
)
def test_impossible_sizes_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config(**options)
    with pytest.raises(ValueError, match=words):
        Decoder(11, **options)


def test_sizes_are_sizes_and_stay_as_they_are() -> None:
    with pytest.raises(ValueError, match=r"^dim must be a whole number, got \{'dim': 16\}$"):
        Decoder(11, {"dim": 16})
    assert Config(window=[3, None]) == Config(window=(3, None))
    with pytest.raises(FrozenInstanceError):
        SMALL.dim = 3


def test_windows_hold_in_both_stacks_of_an_encoder_decoder_and_not_between_them() -> None:
    model = EncoderDecoder(11, dim=16, heads=2, layers=1, window=2).eval()
    ids = torch.randint(11, (1, 6))
    [weights] = model(ids, ids, need_weights=True)[1]
    assert not weights["self"].tril(-2).any() and bool((weights["cross"] > 0).all())
    changed_ids = ids.clone()
    changed_ids[0, 0] = (ids[0, 0] + 1) % 11
    hidden, far = model.encode(ids)[0], model.encode(changed_ids)[0]
    assert torch.equal(hidden[:, 2:], far[:, 2:]) and not torch.equal(hidden[:, 1], far[:, 1])


# The repr of a module

READS_ALL = "rotary(schedule=yarn(factor=4)) + t5_bias"
OF_ALL = {
    "dim": (16, 32),
    "heads": (4, 2),
    "layers": (1, 2),
    "max_len": (9, 10),
    "window": (None, (3, None)),
    "kv_heads": (None, 2),
    "head_dim": (None, 2),
    "intermediate_size": (None, 24),
    "feed_forward": ("gelu", "relu"),
    "norm": ("layer", "rms"),
    "norm_first": (True, False),
    "norm_eps": (1e-5, 1e-6),
    "branch_norm": (False, True),
    "parallel_residual": (False, True),
    "residual_scale": (1.0, 0.5),
    "embedding_norm": (False, True),
    "qk_norm": (True, False),
    "kernel": ("auto", "reference"),
    "scale": (None, 1.0),
    "softcap": (None, 20.0),
    "output_softcap": (None, 20.0),
    "init": ("torch", "gpt2"),
    "dropout": (0.0, 0.25),
    "bias": (True, False),
    "sinks": (False, True),
    "vocab": (11, 12),
    "encoding": (READS_ALL, f"{READS_ALL} + alibi"),
    "cross_encoding": ("none", "alibi"),
    "cross": (True, False),
    "causal": (True, False),
    "scale_tokens": (False, True),
    "tie_output": (False, True),
    "hints": ({}, {"t5_bias": {"buckets": 8}}),
}
"""Two values for every option, the second of which changes a result."""
OF_EMBEDDING = {
    "vocab": (11, 12),
    "dim": (16, 32),
    "encoding": ("learned", "sinusoidal"),
    "scale": (False, True),
    "tied": (False, True),
    "dropout": (0.0, 0.25),
    "max_len": (9, 10),
}
OPTIONS = {module: OF_ALL for module in MODULES} | {TokenPositionEmbedding: OF_EMBEDDING}
NOT_PRINTED = {"device", "dtype"}
"""Options not in the repr: device and dtype belong to the parameters, which can be moved and cast."""


@functools.cache
def repr_of(module: type[nn.Module], option: str = "") -> str:
    """Return the repr of a module with the other value of one option."""
    names = inspect.signature(module).parameters
    return repr(module(**{name: two[name == option] for name, two in OPTIONS[module].items() if name in names}))


@pytest.mark.parametrize(
    ("module", "option"),
    [
        pytest.param(module, option, id=f"{module.__name__}-{option}")
        for module in OPTIONS
        for option in inspect.signature(module).parameters
        if option not in NOT_PRINTED
    ],
)
def test_modules_that_differ_in_one_option_differ_in_print(module: type[nn.Module], option: str) -> None:
    assert repr_of.__wrapped__(module, option) == repr_of(module, option) != repr_of(module)


def test_which_layer_has_which_encoding_is_printed() -> None:
    first, uniform = (
        Decoder(11, dim=16, heads=2, layers=3, encoding=cycle)
        for cycle in (("rotary", "none"), ("rotary", "none", "none"))
    )
    assert "encoding=('rotary', 'none', 'rotary'), window=None" in repr(first) and repr(first) != repr(uniform)
    assert "encoding='alibi', window=(3, None)\n" in repr(Decoder(11, 16, 2, 2, "alibi", window=(3, None)))


# Weights in one shape


def test_weights_are_a_tensor_of_a_layer_and_a_tuple_of_a_model_with_both_attentions_by_name() -> None:
    x, ids = torch.randn(2, 5, 16), torch.randint(11, (2, 5))
    shape, options = (2, 4, 5, 5), {"dim": 16, "heads": 4, "encoding": "rotary"}
    for layer in (Attention(**options), Block(**options)):
        assert layer(x, mask=masks.causal(), need_weights=True)[1].shape == shape
    for model in (Decoder(11, layers=3, **options), Encoder(11, layers=3, **options)):
        weights_of_layers = model(ids, need_weights=True)[1]
        assert type(weights_of_layers) is tuple and [weights.shape for weights in weights_of_layers] == [shape] * 3
    cross_weights = Block(**options, cross=True, cross_encoding="none")(x, memory=x, need_weights=True)[1]
    weights_of_layers = EncoderDecoder(11, layers=3, **options)(ids, ids, need_weights=True)[1]
    assert type(weights_of_layers) is tuple and len(weights_of_layers) == 3
    for of_layer in (cross_weights, *weights_of_layers):
        assert {name: weights.shape for name, weights in of_layer.items()} == {"self": shape, "cross": shape}
