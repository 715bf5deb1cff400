"""Each kind of position code that released models have: found, measured, read as a spec, run through posenc."""
