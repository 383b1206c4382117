"""The default family of version 0.1, kept for the experiments that were made with it."""
