"""Retrieval: documents in, passages out of them, an index over those, and whether it finds what a question needs."""
