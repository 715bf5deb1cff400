"""`posenc inspect`: a path to a reading, in words and pictures."""
