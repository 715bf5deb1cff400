"""All promises, in one file for each subject."""
