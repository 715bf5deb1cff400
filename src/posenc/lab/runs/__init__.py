"""One run, from what was asked to what it leaves behind: training, checkpoints, records, settings."""
