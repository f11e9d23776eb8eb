"""Needed becomes allocated: one engine per file."""
