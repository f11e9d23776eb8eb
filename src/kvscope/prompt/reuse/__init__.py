"""What the next turn reuses of the one before, and what broke it. See ``compare.py`` for the door."""
