"""Readers: tables, tensors and long files in every supported format."""
