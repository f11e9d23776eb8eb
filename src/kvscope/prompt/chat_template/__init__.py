"""The model's own chat template, rendered as each engine does it. See ``template.py`` for the door."""
