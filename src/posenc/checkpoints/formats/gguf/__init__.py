"""llama.cpp's GGUF: which position code a file names, and its config and tensors as transformers has them."""
