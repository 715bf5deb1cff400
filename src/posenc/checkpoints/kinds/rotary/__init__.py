"""RoPE (rotary) in the keys of configs, measured in modules, and in modules and buffers of tables."""
