"""Texts to train on: found, read, split into what is trained on and what is held out, cut into tokens."""
