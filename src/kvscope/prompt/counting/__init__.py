"""Where tokens go: texts and requests, part by part, and whether they fit. See ``count.py`` for the door."""
