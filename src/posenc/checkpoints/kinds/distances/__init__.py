"""Position code that speaks of distances: buckets, slopes, sines that are projected, windows."""
