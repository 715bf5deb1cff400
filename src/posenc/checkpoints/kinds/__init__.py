"""Kinds of position code in released models: find, measure, read as a spec, run through posenc."""
