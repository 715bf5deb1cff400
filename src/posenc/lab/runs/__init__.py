"""One run: its settings, training, checkpoints and record."""
