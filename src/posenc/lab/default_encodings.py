"""The encodings of the default comparison, where the command line finds them without importing torch."""

ENCODINGS = ("none", "sinusoidal", "learned", "rotary", "alibi", "t5_bias", "shaw")
