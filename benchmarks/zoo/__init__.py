"""Models from many fields, with reference posteriors to judge filters and smoothers by: `python -m benchmarks.zoo`."""
