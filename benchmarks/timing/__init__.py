"""What `benchmarks/speed.py` times."""
