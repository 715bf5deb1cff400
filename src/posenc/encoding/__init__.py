"""The base class of encodings with its doors, biases, keys and formulas."""
