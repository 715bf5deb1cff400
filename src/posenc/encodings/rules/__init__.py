"""Encodings that replace the attention rule: door 4."""
