"""The laboratory: what to try, and what happened."""

ENCODINGS = ("none", "sinusoidal", "learned", "rotary", "alibi", "t5_bias", "shaw")
"""The encodings of the default comparison; here, where the command line finds them without importing torch."""
