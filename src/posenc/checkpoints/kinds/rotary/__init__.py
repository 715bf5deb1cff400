"""RoPE (rotary): in the keys of configs, measured in modules, and in the modules and buffers of its tables."""
