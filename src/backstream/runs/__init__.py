"""A run on disk: its configuration, its model, checkpoints and results."""
