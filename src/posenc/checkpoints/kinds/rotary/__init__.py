"""Rotary: as keys say it, as modules do it, and the modules and buffers that hand it out."""
