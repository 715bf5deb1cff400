"""`posenc convert`: a checkpoint to a checkpoint."""
