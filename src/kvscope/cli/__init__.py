"""One command, one file, no logic."""
