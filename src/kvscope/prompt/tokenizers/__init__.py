"""Text → token ids, from each kind of file that a model's vocabulary comes in. See ``load.py`` for the door."""
