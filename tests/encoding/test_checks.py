"""A wrong argument gets one sentence: what was expected, what came, and what to do."""

import importlib.util
import inspect
import math

import numpy
import pytest
import torch

from posenc import (
    DAPE,
    ALiBi,
    Attention,
    AxialRotary,
    Block,
    Cache,
    Decoder,
    Encoder,
    EncoderDecoder,
    Positions,
    ReRoPE,
    Rotary,
    Shape,
    Shaw,
    Sinusoidal,
    TokenPositionEmbedding,
    TransformerXL,
    build,
    checks,
    masks,
    preset,
    scaled_dot_product_attention,
)
from posenc.cache import GrowingCache
from posenc.catalogue import names
from posenc.coordinate_maps import Randomised, RandomisedContinuous
from posenc.encodings.distance_biases.grid_bias import GridBias
from posenc.model.parts import FeedForward
from posenc.schedules import YaRN
from posenc.tokens.masks import Mask

NAN, INF = math.nan, math.inf
X, IDS = torch.randn(2, 5, 16), torch.randint(11, (2, 5))
LAYER = Attention(16, 2, encoding="rotary")
MODEL = Decoder(vocab=11, dim=16, heads=2, layers=1)
Q = torch.randn(2, 2, 5, 8)


def filled_cache() -> Cache:
    cache = MODEL.cache()
    MODEL(IDS, cache=cache)
    return cache


def with_nan(size: int, value: float = NAN) -> torch.Tensor:
    return torch.zeros(size, size).index_put_((torch.tensor(1), torch.tensor(0)), torch.tensor(value))


BLOCK = Block(16, 2, cross=True, encoding="rotary", cross_encoding="none")
TRANSLATOR = EncoderDecoder(vocab=11, dim=16, heads=2, layers=1)

ATTENTION = {
    r"learned \+ alibi adds to embeddings, and attention": lambda: Attention(16, 2, encoding="learned + alibi"),
    "query must be a tensor, got None": lambda: LAYER(None),
    "takes the cache of one layer, got .*Cache.*; make one": lambda: LAYER(X, cache=Cache(1)),
    "bias must be True or False or a tuple, got 'no'": lambda: Attention(16, 2, bias="no"),
    "causal must be True or False, got 1": lambda: Attention(16, 2, causal=1),
    "no kernel named 'fast'": lambda: Attention(16, 2, kernel="fast"),
    "positions start at 0 or later, got start=-1": lambda: LAYER(X, positions=-1),
    "positions must be a tensor, got True": lambda: LAYER(X, positions=True),
    "positions must be integer, float32 or float64": lambda: LAYER(X, positions=torch.ones(5, dtype=torch.complex64)),
    "query is torch.float64, and the layer torch.float32; cast": lambda: LAYER(X.double()),
    "query is torch.bfloat16, and the layer torch.float32": lambda: LAYER(X.bfloat16()),
    "query is torch.int64, and the layer": lambda: LAYER(X.long()),
    "key is torch.float64, and the layer": lambda: LAYER(X, X.double()),
    "query is on 'meta', the layer on 'cpu'; move": lambda: LAYER(X.to("meta")),
    r"query must have shape \[batch, tokens, 16\], got \[2, 5, 15\]": lambda: LAYER(X[..., 1:]),
    "query must be a tensor, got .*; make one with torch.as_tensor": lambda: LAYER(X.tolist()),
    "a mask is a Mask such as .* words causal, bidirectional; got 'casual'": lambda: LAYER(X, mask="casual"),
    "a mask is a Mask such as .* got 3": lambda: LAYER(X, mask=3),
    "nan or inf in one; -inf hides a key": lambda: LAYER(X, mask=with_nan(5)),
    "added to the logits, got nan or inf": lambda: LAYER(X, mask=Mask(causal=True, tensor=with_nan(5, INF))),
    "encoding of a call is an Encoding, got 'alibi'": lambda: LAYER(X, encoding="alibi"),
    "need_weights is True or False, got 'x'; posenc.chosen_weights gives some": lambda: LAYER(X, need_weights="x"),
    r"positions must be a tensor, got \[0, 1, 2, 3, 4\]; make one": lambda: LAYER(X, positions=[0, 1, 2, 3, 4]),
    r"positions must be a tensor, got .*ndarray": lambda: LAYER(X, positions=numpy.arange(5)),
    "positions must be finite numbers": lambda: LAYER(X, positions=torch.tensor([0, 1, NAN, 3, 4])),
    "expected a spec, such as": lambda: Attention(16, 2, encoding=3),
    "heads must be a whole number, got '2'": lambda: Attention(16, "2"),
    "dim must be a whole number, got '16'": lambda: Attention("16", 2),
    "heads must be a whole number, got 2.0": lambda: Attention(16, 2.0),
    "kv_heads must be a whole number, got 1.0": lambda: Attention(16, 2, kv_heads=1.0),
    "head_dim must be a whole number, got 8.5": lambda: Attention(16, 2, head_dim=8.5),
    "max_len must be a whole number, got 'x'": lambda: Attention(16, 2, max_len="x"),
    "scale must be a finite number, got nan": lambda: Attention(16, 2, scale=NAN),
    "scale must be a number, got '1'": lambda: Attention(16, 2, scale="1"),
    "dropout must be a finite number, got nan": lambda: Attention(16, 2, dropout=NAN),
    r"kernel must be a word, got \['sdpa'\]": lambda: Attention(16, 2, kernel=["sdpa"]),
}

POSITIONS = {
    "positions must be a tensor, got .*1.*; make one": lambda: Positions.of([1]),
    "positions must be finite numbers, got nan": lambda: Positions.of(torch.tensor([0.0, NAN])),
    "positions must be finite numbers, got nan or inf": lambda: Positions.of(torch.tensor([[0.0, -INF]])),
    "must be finite numbers": lambda: Positions.count(2).with_coords(torch.tensor([[NAN, 1.0]])),
    "the declared horizon must be .* got 'x'": lambda: Positions.of(torch.arange(3), horizon="x"),
    "the declared horizon must be .*1 or more, got -1": lambda: Positions.of(torch.arange(3), horizon=-1),
    "the declared horizon must be .* got True": lambda: Positions.count(3).with_horizon(True),
    "number of tokens must be a whole number, got 1.5": lambda: Positions.count(1.5),
    "start, or an offset, must be a whole number, got 0.5": lambda: Positions.count(2, 0.5),
    "size of a grid must be a whole number, got 1.5": lambda: Positions.grid(1.5),
    r"lengths are a list or a tensor \[n\] .* segment ids a tensor \[B, T\]": lambda: Positions.packed(2),
    "length of a document must be a whole number, got 2.5": lambda: Positions.packed([2.5]),
    "a padding mask must be a tensor": lambda: Positions.padded([[1, 1]]),
    "order must be whole numbers, got torch.float32": lambda: Positions.of(torch.arange(2), order=torch.zeros(1, 2)),
    "have one batch size, .* got coords of 2, order of 1, document of 3": lambda: Positions(
        torch.zeros(2, 4, 1), torch.arange(4)[None], torch.zeros(3, 4)
    ),
    "coords must be a tensor, got None": lambda: Positions.count(2).with_coords(None),
    "the declared horizon must be a tensor, got 9": lambda: Positions(
        torch.zeros(1, 1, 1), torch.zeros(1, 1, dtype=torch.long), horizon=9
    ),
    r"the declared horizon must have shape \[batch or 1\], got \[1, 1\]": lambda: Positions.count(3).with_horizon(
        torch.ones(1, 1)
    ),
    "the declared horizon must be a number of positions, got torch.bool": lambda: Positions.count(3).with_horizon(
        torch.ones(1, dtype=torch.bool)
    ),
    "have one batch size, .* got coords of 2, order of 1, horizon of 3": lambda: Positions.of(
        torch.zeros(2, 4), horizon=torch.ones(3)
    ),
    "number of tokens must be a whole number, got .*float32": lambda: Positions.count(2).next(numpy.float32(1.5)),
    "a sequence needs at least one token, got 0": lambda: Positions.count(2).next(0),
    "coords must be a tensor": lambda: Positions([[[0]]], torch.zeros(1, 1, dtype=torch.long)),
}

MASKS = {
    "window must be a whole number, got None": lambda: masks.window(None),
    "causal must be True or False, got 'no'": lambda: masks.window(3, causal="no"),
    "causal must be True or False, got None": lambda: Mask(causal=None),
    "window must be a whole number, got 1.5": lambda: masks.window(1.5),
    "window must be a whole number, got nan": lambda: masks.window(NAN),
    "prefix must be a whole number, got 1.5": lambda: masks.prefix(1.5),
    "the tensor of a mask must be a tensor": lambda: Mask(tensor=[[True]]),
}

MODELS = {
    "a model takes the cache that its .* got .*GrowingCache": lambda: MODEL(IDS, cache=GrowingCache()),
    "need_weights is True or False, got a tensor": lambda: MODEL(IDS, need_weights=torch.ones(2)),
    r"only says which tokens by a slice, such as slice\(-1, None\), or a tensor of indices, got 3": lambda: MODEL(
        IDS, only=3
    ),
    "padding must be a tensor, got 1": lambda: MODEL.generate(IDS, 2, padding=1),
    "padding must have the shape of the ids": lambda: MODEL.generate(IDS, 2, padding=torch.ones(2, 1)),
    "memory is the pair that encode gives": lambda: TRANSLATOR(IDS, IDS, memory=X),
    r"memory is the pair that encode gives, .* got \(\)": lambda: TRANSLATOR(IDS, IDS, memory=()),
    "memory says where the source is": lambda: TRANSLATOR(
        IDS, IDS, memory=TRANSLATOR.encode(IDS), source_padding=torch.ones_like(IDS)
    ),
    "expected a spec, such as .* got None": lambda: EncoderDecoder(11, 16, 2, 1, None),
    "intermediate_size must be a whole number, got 1.5": lambda: Block(16, 2, intermediate_size=1.5),
    "intermediate_size must be a whole number of 1 or more, got -1": lambda: Decoder(
        11, 16, 2, 1, intermediate_size=-1
    ),
    "norm must be a word, got None": lambda: Block(16, 2, norm=None),
    "norm must be one of layer, rms, got 'middle'": lambda: Encoder(11, 16, 2, 1, norm="middle"),
    "cross must be True or False, got 1": lambda: Block(16, 2, cross=1),
    "dim must be a whole number, got '16'": lambda: TokenPositionEmbedding(11, "16"),
    "dim must be a whole number of 1 or more, got 0": lambda: TokenPositionEmbedding(11, 0),
    "dropout must be at least 0 and below 1, got 1": lambda: TokenPositionEmbedding(11, 16, dropout=1),
    "dropout must be a finite number, got nan": lambda: FeedForward(16, 32, NAN),
    "scale must be True or False, got 2": lambda: TokenPositionEmbedding(11, 16, scale=2),
    "tie_output must be True or False, got 'yes'": lambda: Decoder(11, 16, 2, 1, tie_output="yes"),
    "hints must be a dictionary, got 3": lambda: Decoder(11, 16, 2, 1, hints=3),
    "layers must be a whole number, got None": lambda: Cache(None),
    "layers must be a whole number of 1 or more, got 0": lambda: Cache(0),
    "rolling must be True or False, got 1": lambda: Cache(1, slots=3, rolling=1),
    "crop to 0 or more tokens, .* got 1.5": lambda: filled_cache().crop(1.5),
    "crop to 0 or more tokens, .* got 'x'": lambda: filled_cache().crop("x"),
    r"choose rows .* of shape \[rows\], got \[1, 2\]": lambda: filled_cache().rows([1, 2]),
    "number of tokens must be a whole number, got None": lambda: filled_cache().next(None),
    "token ids must be a tensor": lambda: MODEL([[1, 2]]),
    "token ids must be a tensor, got .*ndarray": lambda: MODEL(IDS.numpy()),
    "token ids are whole numbers, got torch.float32": lambda: MODEL(IDS.float()),
    "a mask is a Mask such as": lambda: MODEL(IDS, mask="windowed"),
    "padding must be a tensor": lambda: MODEL(IDS, padding=[[1] * 5] * 2),
    "need_weights is True or False, got 'all'": lambda: MODEL(IDS, need_weights="all"),
    "eos_token_id is the id of a token, from 0 to 10, got -1": lambda: MODEL.generate(IDS, 2, eos_token_id=-1),
    "eos_token_id is the id of a token, from 0 to 10, got 11": lambda: MODEL.generate(IDS, 2, eos_token_id=11),
    "temperature must be a finite number of 0 or more, got nan": lambda: MODEL.generate(IDS, 2, temperature=NAN),
    "temperature must be a finite number of 0 or more, got inf": lambda: MODEL.generate(IDS, 2, temperature=INF),
    "max_new_tokens must be a whole number of 1 or more, got 2.5": lambda: MODEL.generate(IDS, 2.5),
    "top_k must be a whole number of 1 or more, got 1.5": lambda: MODEL.generate(IDS, 2, top_k=1.5),
    "seed must be a whole number of 0 or more, got -1": lambda: MODEL.generate(IDS, 2, seed=-1),
    "vocab must be a whole number, got 1.5": lambda: Decoder(1.5, 16, 2, 1),
    "layers must be a whole number, got 1.5": lambda: Decoder(11, 16, 2, 1.5),
    "window must be a whole number or a tuple, got 1.5": lambda: Decoder(11, 16, 2, 1, window=1.5),
    "slots must be a whole number, got 1.5": lambda: Cache(1, slots=1.5),
    "no preset for None": lambda: preset(None),
}

ENCODINGS = {
    "x must be a tensor, got None": lambda: Rotary(8)(None, Q),
    r"k must have as many axes as x, got \[5, 8\]": lambda: Rotary(8)(Q, Q[0, 0]),
    r"x must have shape \[batch, tokens, dim\], got \[5, 16\]": lambda: Sinusoidal(16)(X[0]),
    "alibi is built for 4 heads, got 2; build it with heads=2": lambda: (ALiBi(4) + Shaw(8, values=False)).bias(5, q=Q),
    r"grid_bias\(window=\(4, 4\)\) reads 2 axes, got positions with 1 axis": lambda: GridBias(2, window=(4, 4)).bias(5),
    "got positions of 3 rows for a batch of 2": lambda: TokenPositionEmbedding(11, 16, "learned")(
        IDS, positions=torch.zeros(3, 5).long()
    ),
    "q must be a tensor, got 3": lambda: ALiBi(2).bias(5, q=3),
    r"q must have shape \[batch, heads, tokens, head_dim\], got \[5, 8\]": lambda: ALiBi(2).bias(5, q=Q[0, 0]),
    "q must be a tensor, got None": lambda: scaled_dot_product_attention(None, Q, Q),
    "Compose: parts must be of type Encoding, got 3": lambda: ALiBi(2) + 3,
    "DAPE: encoding must be of type Encoding, got 'kerple'": lambda: DAPE("kerple", 2),
    "ReRoPE: encoding must be of type Encoding, got None": lambda: ReRoPE(None),
    "AxialRotary: split must be a tuple, got 4": lambda: AxialRotary(8, split=4),
    "max_distance must be a finite number, got inf": lambda: TransformerXL(16, 2, 8, max_distance=INF),
    "randomised: longest must be a whole number of 1 or more, got a tensor of shape": lambda: Randomised(
        longest=torch.ones(5, 5)
    ),
    "randomised_continuous: even must be True or False, got 'no'": lambda: RandomisedContinuous(longest=9, even="no"),
    "yarn: factor must be a finite number, got a tensor of shape": lambda: YaRN(factor=torch.ones(2)),
    "causal must be True or False, got 'no'": lambda: Shape(16, 2, 8, 32, "no"),
    "start, or an offset, must be a whole number, got 1.5": lambda: Rotary(8)(Q, Q, offset=1.5),
    "number of tokens must be a whole number, got 1.5": lambda: ALiBi(2).bias(1.5),
    r"number of tokens must be a whole number, got \[1, 2\]": lambda: ALiBi(2).bias([1, 2]),
    "x must be floating, got torch.int64": lambda: Rotary(8)(Q.long(), Q.long()),
    "k must be a tensor": lambda: Rotary(8)(Q, Q.tolist()),
    "x must be a tensor": lambda: Sinusoidal(16)(X.tolist()),
    "ALiBi: heads must be a whole number, got 1.5": lambda: ALiBi(1.5),
    "ALiBi: heads must be a whole number, got True": lambda: ALiBi(True),
    "ALiBi: learned must be True or False, got 'no'": lambda: ALiBi(2, learned="no"),
    "Rotary: head_dim must be a whole number, got '8'": lambda: Rotary("8"),
    "Rotary: base must be a number, got '10'": lambda: Rotary(8, base="10"),
    "Sinusoidal: layout must be a word, got 3": lambda: Sinusoidal(8, layout=3),
    "an encoding is built for a Shape, got {'dim': 16}": lambda: build("rotary", {"dim": 16}),
    "an encoding is built for a Shape, got None": lambda: build("rotary", None),
    "expected a spec": lambda: build(3, Shape.of(16, 2, 32)),
    "dim must be a whole number": lambda: Shape.of("16", 2, 32),
}


TENSORS = {
    "query must be dense, got a torch.sparse_coo tensor": lambda: LAYER(X.to_sparse()),
    "query must be dense, got a nested tensor": lambda: LAYER(
        torch.nested.nested_tensor([X[0], X[1, :3]], layout=torch.jagged)
    ),
    "x must be dense, got a torch.sparse_coo tensor": lambda: Rotary(8)(Q.to_sparse(), Q),
    "the tensor of a mask must be dense": lambda: LAYER(X, mask=torch.ones(5, 5).to_sparse()),
    "one device, got x on 'cpu', k on 'meta'": lambda: Rotary(8)(Q, Q.to("meta")),
    "one device, got q on 'cpu', k on 'meta', v on": lambda: scaled_dot_product_attention(Q, Q.to("meta"), Q),
    "q and k must have one dtype, got torch.float32 and": lambda: scaled_dot_product_attention(Q, Q.double(), Q),
    "one device, got mask on 'meta', positions on": lambda: LAYER(X, mask=torch.ones(5, 5, device="meta").bool()),
    "positions are on 'meta', which holds no numbers": lambda: LAYER(X, positions=torch.ones(5, device="meta")),
    "dtype must be a floating dtype such as torch.float32, got torch.int64": lambda: Decoder(11, dtype=torch.int64),
    "dtype must be a floating dtype .* got 'float32'": lambda: Attention(16, 2, dtype="float32"),
    "device must be a device or a word, got 3.5": lambda: Decoder(11, device=3.5),
    "dtype must be a floating dtype .* got torch.int32": lambda: ALiBi(2).bias(3, dtype=torch.int32),
    "causal must be True or False, got 1": lambda: ALiBi(2).bias(3, causal=1),
    "ids are whole numbers, got torch.int16; give them as torch.int64": lambda: MODEL(IDS.short()),
    "zeros and ones; if 1 means .* give mask.bool": lambda: LAYER(X, mask=torch.ones(5, 5).tril()),
    "one of zeros and ones; ": lambda: scaled_dot_product_attention(Q, Q, Q, torch.ones(5, 5).tril()),
    "got nan or inf in one; -inf hides": lambda: scaled_dot_product_attention(Q, Q, Q, with_nan(5)),
    "a mask is a Mask such as .* got 3": lambda: masks.with_tensor(3, torch.ones(5, 5).bool()),
    "padding mask is true or 1 where a token is, .* got other": lambda: MODEL(IDS, padding=with_nan(5, -INF)[:2]),
    "a padding mask is true or 1": lambda: Positions.padded(torch.tensor([[0.5, 1.0]])),
    "document must be whole": lambda: Positions(torch.zeros(1, 3, 1), torch.arange(3)[None], torch.zeros(1, 3)),
    "coords must be whole or floating": lambda: Positions(torch.zeros(1, 3, 1).bool(), torch.arange(3)[None]),
    "horizon must be 1 or more, got -1": lambda: Positions.count(3).with_horizon(torch.tensor([5, -1])),
}


@pytest.mark.parametrize(
    "call, words",
    [
        pytest.param(call, words, id=words[:50])
        for group in (ATTENTION, POSITIONS, MASKS, MODELS, ENCODINGS, TENSORS)
        for words, call in group.items()
    ],
)
def test_a_wrong_argument_is_refused_in_a_sentence(call, words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        call()
    assert len(str(error.value)) < 400


def test_causal_and_bidirectional_may_be_said_as_words() -> None:
    assert torch.equal(LAYER(X, mask="causal"), LAYER(X, mask=masks.causal()))
    assert torch.equal(LAYER(X, mask="bidirectional"), LAYER(X))
    assert torch.equal(MODEL(IDS, mask="causal"), MODEL(IDS))
    assert torch.equal(MODEL(IDS, mask=masks.window(2, causal=False)), MODEL(IDS, mask=masks.window(2)))
    assert torch.equal(ALiBi(2).bias(3, mask="causal"), ALiBi(2).bias(3, causal=True))


def test_a_model_takes_a_tensor_as_its_mask() -> None:
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    torch.testing.assert_close(MODEL(IDS, mask=mask), MODEL(IDS))
    model = Decoder(vocab=11, dim=16, heads=2, layers=1, window=2)
    torch.testing.assert_close(model(IDS, mask=mask), model(IDS))


def test_a_temperature_that_is_hardly_above_zero_takes_the_likeliest() -> None:
    expected = MODEL.generate(IDS, 3)
    for temperature in (1e-320, 1e-39, 1e-37, 1e-20):
        assert torch.equal(MODEL.generate(IDS, 3, temperature=temperature), expected)


def test_under_autocast_another_floating_dtype_is_taken() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert LAYER(X.bfloat16()).shape == X.shape
        with pytest.raises(ValueError, match=r"query is torch\.int64"):
            LAYER(X.long())


def test_whole_numbers_of_numpy_are_whole_numbers() -> None:
    assert ALiBi(numpy.int64(2)).bias(numpy.int64(3)).shape == (1, 2, 3, 3)
    assert checks.is_number(numpy.float32(1.5)) and not checks.is_number(10**400) and not checks.is_whole(True)


@pytest.mark.parametrize("name", names())
def test_every_encoding_refuses_numbers_of_another_kind(name: str) -> None:
    shape = Shape.of(16, 2, 32)
    cls = type(build(name, shape))
    for option, parameter in inspect.signature(cls.__init__).parameters.items():
        if parameter.annotation in (int, float, bool, str):
            with pytest.raises(ValueError, match=f"{option} must be"):
                cls(**{option: object()})


def test_a_stranger_whose_annotations_are_strings_has_its_options_checked(tmp_path) -> None:
    (tmp_path / "stranger.py").write_text(
        "from __future__ import annotations\n"
        "from posenc import Encoding\n"
        "class Stranger(Encoding):\n"
        "    def __init__(self, width: int, soft: bool = False, wide: tuple[int, ...] | None = None) -> None:\n"
        "        super().__init__()\n"
    )
    spec = importlib.util.spec_from_file_location("stranger", tmp_path / "stranger.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.Stranger(3, True, (1, 2))
    for options, words in (
        ({"width": "3"}, "width"),
        ({"width": 3, "soft": 1}, "soft"),
        ({"width": 3, "wide": 1}, "wide"),
    ):
        with pytest.raises(ValueError, match=f"Stranger: {words} must be"):
            module.Stranger(**options)


def test_a_number_as_positions_says_where_the_first_token_is() -> None:
    later = Positions.count(5, start=7)
    assert torch.equal(LAYER(X, positions=7, mask="causal"), LAYER(X, positions=later, mask="causal"))
    assert torch.equal(MODEL(IDS, positions=7), MODEL(IDS, positions=later))
    for rotated, expected in zip(Rotary(8)(Q, Q, positions=7), Rotary(8)(Q, Q, offset=7), strict=True):
        assert torch.equal(rotated, expected)
    with pytest.raises(ValueError, match="give positions or offset=3, not both"):
        Rotary(8)(Q, Q, positions=7, offset=3)
