"""A short fine-tune of a stretched model: which weights, at which positions, and how far it has come."""
