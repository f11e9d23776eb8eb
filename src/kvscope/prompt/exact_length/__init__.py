"""Prompts of exactly so many tokens, and the texts they are made of. See ``build.py`` for the door."""
