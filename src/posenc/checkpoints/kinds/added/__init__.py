"""Position code that is added to embeddings: learned tables of tokens and of patches, and sine modules."""
