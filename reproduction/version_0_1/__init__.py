"""The default family of version 0.1, kept for the results that were made with it."""
