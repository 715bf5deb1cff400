"""`posenc inspect`: read the positions of a checkpoint, and show them in sentences and pictures."""
