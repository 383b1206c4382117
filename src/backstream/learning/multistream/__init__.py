"""Many streams that are learned together."""
