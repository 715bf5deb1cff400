"""Temperatures, which scale queries: door 2."""
