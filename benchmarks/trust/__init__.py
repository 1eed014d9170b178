"""Whether answers can be trusted: random instances of every estimator and option."""
