"""One training run before it begins: its settings, its recipe, its model, and its tokens' positions."""
