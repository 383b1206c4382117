"""The loop that reads rows, learns from them and writes results, and the runs that it leaves."""
