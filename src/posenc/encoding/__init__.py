"""How position enters attention: the base class with its doors, biases, keys and formulas."""
