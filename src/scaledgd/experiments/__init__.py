"""The monograph's numbers, from this library."""
