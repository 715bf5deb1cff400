"""Other rules than attention's own: door 4."""
