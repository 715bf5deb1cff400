"""Evaluate a trained model: its scores, and what they owe to the positions."""
