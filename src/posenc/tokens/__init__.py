"""Positions of tokens, and masks."""
