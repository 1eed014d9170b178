"""How good the answers of the estimators are with default settings, on data as they are."""
