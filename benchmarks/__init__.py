"""scaledgd beside the libraries a user could pick instead: `python -m benchmarks`."""
