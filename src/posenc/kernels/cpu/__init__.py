"""Attention in blocks, which never writes a whole matrix down; only the choice of kernels imports from here."""

from posenc.kernels.cpu.blocked import attend, ways, why_not

__all__ = ["attend", "ways", "why_not"]
