"""Position code that depends on distances: buckets, slopes, projected sines, windows."""
