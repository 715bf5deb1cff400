"""One interactive page of encodings and a run."""
