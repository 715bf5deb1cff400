"""The public names, each from its home; written by `.venv/bin/python tests/write_stub.py`."""

from posenc import cache as cache
from posenc import catalogue as catalogue
from posenc import checkpoints as checkpoints
from posenc import checks as checks
from posenc import cli as cli
from posenc import coordinate_maps as coordinate_maps
from posenc import encoding as encoding
from posenc import encodings as encodings
from posenc import explorer as explorer
from posenc import export as export
from posenc import foreign as foreign
from posenc import hand_outs as hand_outs
from posenc import kernels as kernels
from posenc import lab as lab
from posenc import lessons as lessons
from posenc import model as model
from posenc import parallel as parallel
from posenc import schedules as schedules
from posenc import specs as specs
from posenc import standalone as standalone
from posenc import testing as testing
from posenc import tokens as tokens
from posenc import vectors as vectors
from posenc import verdicts as verdicts
from posenc.cache import Cache
from posenc.catalogue import build, names
from posenc.checkpoints.live.register import register
from posenc.encoding.base import Compose, Encoding, Shape
from posenc.encoding.chosen_heads import OnHeads
from posenc.encoding.keys import Keys
from posenc.encodings.added.continuous_time import ContinuousTime
from posenc.encodings.added.fourier_features import FourierFeatures
from posenc.encodings.added.learned import Learned
from posenc.encodings.added.learned_factorised import LearnedFactorised
from posenc.encodings.added.learned_grid import LearnedGrid
from posenc.encodings.added.sinusoidal import Sinusoidal
from posenc.encodings.content_biases.contextual import Contextual
from posenc.encodings.content_biases.deberta import DeBERTa
from posenc.encodings.content_biases.fire import Fire
from posenc.encodings.content_biases.forgetting import Forgetting
from posenc.encodings.content_biases.inkling import Inkling
from posenc.encodings.content_biases.shaw import Shaw
from posenc.encodings.content_biases.transformer_xl import TransformerXL
from posenc.encodings.content_biases.tupe import TUPE
from posenc.encodings.distance_biases.alibi import ALiBi
from posenc.encodings.distance_biases.grid_bias import GridBias
from posenc.encodings.distance_biases.kerple import Kerple
from posenc.encodings.distance_biases.log_grid_bias import LogGridBias
from posenc.encodings.distance_biases.mlp_bias import MLPBias
from posenc.encodings.distance_biases.sandwich import Sandwich
from posenc.encodings.distance_biases.t5_bias import T5Bias
from posenc.encodings.none import NoPE
from posenc.encodings.rotations.axial_rotary import AxialRotary
from posenc.encodings.rotations.fourier_rotary import FourierRotary
from posenc.encodings.rotations.image_rotary import ImageRotary
from posenc.encodings.rotations.learned_rotary import LearnedRotary
from posenc.encodings.rotations.mixed_rotary import MixedRotary
from posenc.encodings.rotations.multimodal_rotary import MultimodalRotary
from posenc.encodings.rotations.polar import Polar
from posenc.encodings.rotations.proportional_rotary import ProportionalRotary
from posenc.encodings.rotations.rotary import Rotary
from posenc.encodings.rotations.xpos import XPos
from posenc.encodings.rules.path import PaTH
from posenc.encodings.rules.rotary_values import RotaryValues
from posenc.encodings.rules.selective_rotary import SelectiveRotary
from posenc.encodings.rules.stick_breaking import StickBreaking
from posenc.encodings.temperatures.log_temperature import LogTemperature
from posenc.encodings.temperatures.scalable_softmax import ScalableSoftmax
from posenc.encodings.temperatures.step_temperature import StepTemperature
from posenc.encodings.wrappers.dape import DAPE
from posenc.encodings.wrappers.dual_chunk import DualChunk
from posenc.encodings.wrappers.rerope import ReRoPE
from posenc.encodings.wrappers.self_extend import SelfExtend
from posenc.hand_outs import hand_out
from posenc.kernels.reference import scaled_dot_product_attention
from posenc.model.attention import Attention
from posenc.model.block import Block
from posenc.model.chosen_weights import chosen_weights
from posenc.model.config import Config
from posenc.model.decoder import Decoder
from posenc.model.embedding import TokenPositionEmbedding
from posenc.model.encoder import Encoder
from posenc.model.encoder_decoder import EncoderDecoder
from posenc.specs import presets as presets
from posenc.specs.presets import preset
from posenc.standalone import eject
from posenc.tokens import masks as masks
from posenc.tokens.masks import Mask
from posenc.tokens.positions import Positions

__version__: str

__all__ = [
    "DAPE",
    "TUPE",
    "ALiBi",
    "Attention",
    "AxialRotary",
    "Block",
    "Cache",
    "Compose",
    "Config",
    "Contextual",
    "ContinuousTime",
    "DeBERTa",
    "Decoder",
    "DualChunk",
    "Encoder",
    "EncoderDecoder",
    "Encoding",
    "Fire",
    "Forgetting",
    "FourierFeatures",
    "FourierRotary",
    "GridBias",
    "ImageRotary",
    "Inkling",
    "Kerple",
    "Keys",
    "Learned",
    "LearnedFactorised",
    "LearnedGrid",
    "LearnedRotary",
    "LogGridBias",
    "LogTemperature",
    "MLPBias",
    "Mask",
    "MixedRotary",
    "MultimodalRotary",
    "NoPE",
    "OnHeads",
    "PaTH",
    "Polar",
    "Positions",
    "ProportionalRotary",
    "ReRoPE",
    "Rotary",
    "RotaryValues",
    "Sandwich",
    "ScalableSoftmax",
    "SelectiveRotary",
    "SelfExtend",
    "Shape",
    "Shaw",
    "Sinusoidal",
    "StepTemperature",
    "StickBreaking",
    "T5Bias",
    "TokenPositionEmbedding",
    "TransformerXL",
    "XPos",
    "build",
    "chosen_weights",
    "coordinate_maps",
    "eject",
    "hand_out",
    "hand_outs",
    "masks",
    "names",
    "parallel",
    "preset",
    "presets",
    "register",
    "scaled_dot_product_attention",
    "schedules",
    "testing",
]
