"""Data of a checkpoint's positions: a reading, the keys behind it, and specs."""
