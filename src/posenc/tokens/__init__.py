"""Where tokens are, and who may see whom."""
