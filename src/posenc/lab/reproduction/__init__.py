"""Reproduce published claims and judge them."""
