"""The benchmark: what things cost beside the limit of the machine, and beside everybody else."""
