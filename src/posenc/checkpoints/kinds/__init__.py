"""Kinds of position code in released models: find it, measure it, read it as a spec, run it through posenc."""
