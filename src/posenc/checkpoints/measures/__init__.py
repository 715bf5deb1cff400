"""What a model can still do at a length: one measure a file."""
