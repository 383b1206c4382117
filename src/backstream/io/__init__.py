"""The way in and out: sources of observations, checkpoints, results on disk."""
