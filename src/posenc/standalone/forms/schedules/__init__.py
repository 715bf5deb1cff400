"""The readable form of each schedule of rotary (RoPE): `frequencies(dim, base)`, some with `horizon` (tokens)."""
