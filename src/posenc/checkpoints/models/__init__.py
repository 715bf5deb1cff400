"""A model of transformers without its numbers, and what a dry run of it shows of positions."""
