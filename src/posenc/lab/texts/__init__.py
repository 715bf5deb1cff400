"""Texts to train on: reading, the split into training and held-out text, and tokens."""
