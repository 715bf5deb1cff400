"""The rotation of channel pairs: in C, in Triton and in PyTorch's own operators."""
