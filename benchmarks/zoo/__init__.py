"""Models from many fields, each with a reference posterior, to judge filters and smoothers: `python -m benchmarks.zoo`."""
