"""`posenc probe`: what a model as it is can do at each length, and which of its frequencies and heads carry it."""
