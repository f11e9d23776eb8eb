"""9. What it means: rows in, findings out."""
