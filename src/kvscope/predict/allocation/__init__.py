"""Needed → allocated: what each engine reserves for what the tokens need. One engine per file."""
