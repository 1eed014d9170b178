"""Writers: tables, tensors, long files, outliers and report pages."""
