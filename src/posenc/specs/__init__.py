"""The names of encodings and what belongs to them, as texts."""
