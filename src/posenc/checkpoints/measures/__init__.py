"""Measures of what a model can still do at a length, one a file."""
