"""`posenc doctor`: which known defects of transformers hit a model."""
