"""8. What is kept: one SQLite file, one transaction per trial."""
