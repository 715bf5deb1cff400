"""What a configuration says of positions, by the format that it is in; and the models that are loaded from each."""
