"""Sources of observations: files, pipes, arrays and tables. Nothing here needs JAX."""
