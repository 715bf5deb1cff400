"""llama.cpp's GGUF: which position code a file names, and its model as transformers unpacks it."""
