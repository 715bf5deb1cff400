"""A trained model asked: what it scores, and what its scores owe to the positions."""
