"""All promises, in files by what they are about."""
