"""What a configuration says of positions: of transformers, Meta's params.json, the metadata of GGUF files."""
