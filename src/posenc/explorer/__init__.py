"""One page that shows encodings and a run, and that people can touch."""
