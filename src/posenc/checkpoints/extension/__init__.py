"""`posenc extend`: methods that reach further, measured on a text, and the best one written."""
