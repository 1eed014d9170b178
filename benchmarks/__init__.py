"""Compare scaledgd with other libraries (`python -m benchmarks`), and check its own claims."""
