"""The files of checkpoints: opened without running anything, read in pieces, written whole or not at all."""
