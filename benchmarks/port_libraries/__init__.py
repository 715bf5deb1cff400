"""What other libraries have of the test vectors: for each a function that imports it and yields its ports."""

from port_libraries.hugging_face import diffusers, timm, transformers
from port_libraries.keras import keras_hub
from port_libraries.lucidrains import rotary_embedding_torch, x_transformers
from port_libraries.others import attn_gym, litgpt, positional_encodings, torchtune

LIBRARIES = {
    "transformers": transformers, "timm": timm, "diffusers": diffusers, "x-transformers": x_transformers,
    "rotary-embedding-torch": rotary_embedding_torch, "litgpt": litgpt, "keras-hub": keras_hub,
    "torchtune": torchtune, "attn-gym": attn_gym, "positional-encodings": positional_encodings,
}  # fmt: skip
