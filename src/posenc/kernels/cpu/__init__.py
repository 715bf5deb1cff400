"""Attention in blocks, which never writes a whole matrix down."""
