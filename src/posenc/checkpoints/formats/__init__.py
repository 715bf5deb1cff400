"""Formats other than transformers' own: Meta's params.json and the metadata of GGUF files."""
