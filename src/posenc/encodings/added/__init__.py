"""Encodings that are added to the embeddings: door 1."""
