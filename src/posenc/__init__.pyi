"""The public names, each from its home; written by `.venv/bin/python tests/write_stub.py`."""

from posenc import attention as attention
from posenc import biases as biases
from posenc import cache as cache
from posenc import catalogue as catalogue
from posenc import channel_pairs as channel_pairs
from posenc import checkpoints as checkpoints
from posenc import checks as checks
from posenc import chosen_heads as chosen_heads
from posenc import cli as cli
from posenc import config as config
from posenc import coordinate_maps as coordinate_maps
from posenc import distance_maps as distance_maps
from posenc import embedding as embedding
from posenc import encoding as encoding
from posenc import encodings as encodings
from posenc import explorer as explorer
from posenc import export as export
from posenc import foreign as foreign
from posenc import generation as generation
from posenc import hand_outs as hand_outs
from posenc import inputs as inputs
from posenc import interpolation as interpolation
from posenc import kernels as kernels
from posenc import keys as keys
from posenc import lab as lab
from posenc import lessons as lessons
from posenc import masks as masks
from posenc import model as model
from posenc import parallel as parallel
from posenc import parts as parts
from posenc import plugins as plugins
from posenc import positions as positions
from posenc import precision as precision
from posenc import presets as presets
from posenc import published as published
from posenc import registry as registry
from posenc import rotations as rotations
from posenc import schedules as schedules
from posenc import score_mods as score_mods
from posenc import seeding as seeding
from posenc import shared_tables as shared_tables
from posenc import specs as specs
from posenc import spelling as spelling
from posenc import terminal as terminal
from posenc import testing as testing
from posenc import verdicts as verdicts
from posenc import watched as watched
from posenc import whole_files as whole_files
from posenc import words as words
from posenc.attention import Attention
from posenc.cache import Cache
from posenc.catalogue import build, names
from posenc.checkpoints.live.register import register
from posenc.chosen_heads import OnHeads
from posenc.config import Config
from posenc.embedding import TokenPositionEmbedding
from posenc.encoding import Compose, Encoding, Shape
from posenc.encodings.alibi import ALiBi
from posenc.encodings.axial_rotary import AxialRotary
from posenc.encodings.contextual import Contextual
from posenc.encodings.continuous_time import ContinuousTime
from posenc.encodings.dape import DAPE
from posenc.encodings.deberta import DeBERTa
from posenc.encodings.dual_chunk import DualChunk
from posenc.encodings.fire import Fire
from posenc.encodings.forgetting import Forgetting
from posenc.encodings.fourier_features import FourierFeatures
from posenc.encodings.fourier_rotary import FourierRotary
from posenc.encodings.grid_bias import GridBias
from posenc.encodings.image_rotary import ImageRotary
from posenc.encodings.inkling import Inkling
from posenc.encodings.kerple import Kerple
from posenc.encodings.learned import Learned
from posenc.encodings.learned_factorised import LearnedFactorised
from posenc.encodings.learned_grid import LearnedGrid
from posenc.encodings.learned_rotary import LearnedRotary
from posenc.encodings.log_grid_bias import LogGridBias
from posenc.encodings.log_temperature import LogTemperature
from posenc.encodings.mixed_rotary import MixedRotary
from posenc.encodings.mlp_bias import MLPBias
from posenc.encodings.multimodal_rotary import MultimodalRotary
from posenc.encodings.none import NoPE
from posenc.encodings.path import PaTH
from posenc.encodings.polar import Polar
from posenc.encodings.proportional_rotary import ProportionalRotary
from posenc.encodings.rerope import ReRoPE
from posenc.encodings.rotary import Rotary
from posenc.encodings.rotary_values import RotaryValues
from posenc.encodings.sandwich import Sandwich
from posenc.encodings.scalable_softmax import ScalableSoftmax
from posenc.encodings.selective_rotary import SelectiveRotary
from posenc.encodings.self_extend import SelfExtend
from posenc.encodings.shaw import Shaw
from posenc.encodings.sinusoidal import Sinusoidal
from posenc.encodings.step_temperature import StepTemperature
from posenc.encodings.stick_breaking import StickBreaking
from posenc.encodings.t5_bias import T5Bias
from posenc.encodings.transformer_xl import TransformerXL
from posenc.encodings.tupe import TUPE
from posenc.encodings.xpos import XPos
from posenc.hand_outs import hand_out
from posenc.kernels.chosen_weights import Chosen
from posenc.kernels.reference import scaled_dot_product_attention
from posenc.keys import Keys
from posenc.masks import Mask
from posenc.model import Block, Decoder, Encoder, EncoderDecoder
from posenc.positions import Positions
from posenc.presets import preset

__version__: str

__all__ = [
    "DAPE",
    "TUPE",
    "ALiBi",
    "Attention",
    "AxialRotary",
    "Block",
    "Cache",
    "Chosen",
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
    "coordinate_maps",
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
