"""Many runs: on all cores, and until the question is answered."""
