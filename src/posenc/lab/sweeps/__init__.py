"""Many runs on all cores, resumable until a comparison is complete."""
