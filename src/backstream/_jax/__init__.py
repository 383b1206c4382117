"""Small pieces of JAX that the rest is built with: compiling, choices, sums."""
