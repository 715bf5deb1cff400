"""Biases that read more than a distance: door 3, `biases`."""
