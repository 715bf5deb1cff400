"""llama.cpp's GGUF: the position code of a file, and its model as transformers unpacks it."""
