"""The quality of the estimators' answers with default settings, on real and random data."""
