"""Small transformers with any positional encoding: decoder (a mini-GPT), encoder, and encoder-decoder.

Attention weights come back in one shape, beside the output: an attention gives a tensor [B, heads, rows, S], a block
gives its attention's, and a model a tuple with one entry for each layer that was asked for, in that order. A layer that
attends to two sequences tells them apart by name: {"self": ..., "cross": ...}.
"""
