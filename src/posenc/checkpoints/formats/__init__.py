"""Read the positions of a configuration in each format, and load models from it."""
