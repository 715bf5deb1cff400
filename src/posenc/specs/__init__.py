"""Specs: the names of encodings and of their options, as text."""
