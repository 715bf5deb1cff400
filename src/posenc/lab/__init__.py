"""The laboratory: what to try, and what happened."""
