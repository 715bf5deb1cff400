"""Temperatures: door 2, for queries alone."""
