"""Biases of the signed distance alone: door 3, `by_distance`."""
