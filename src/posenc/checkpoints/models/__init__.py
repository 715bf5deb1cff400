"""What a configuration of transformers says of positions, held to the modules that are built from it."""
