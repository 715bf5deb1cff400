"""Small transformers with any positional encoding: decoder (a mini-GPT), encoder, and encoder-decoder.

Attention weights have one form, beside the output: an attention returns a tensor [B, heads, rows, S], a block that of
its attention, and a model a tuple with one entry for each chosen layer, in that order. A layer that attends to two
sequences returns a dictionary: {"self": ..., "cross": ...}.
"""
