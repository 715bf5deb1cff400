"""What is added to embeddings: learned tables of tokens and of patches, and modules of sines."""
