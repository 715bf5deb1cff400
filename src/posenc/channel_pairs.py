"""Which two channels of a head form a pair: what rotary-like encodings turn together."""

LAYOUTS = ("half", "interleaved")


def channels_of_pair(pair: int, pairs: int, layout: str) -> tuple[int, int]:
    """The two channels of one of so many pairs."""
    return (pair, pair + pairs) if layout == "half" else (2 * pair, 2 * pair + 1)
