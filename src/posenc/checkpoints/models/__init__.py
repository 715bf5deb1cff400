"""Models of transformers with meta weights, and traces of their dry runs."""
