"""One page that shows encodings, a run and a checkpoint, and that people can touch."""
