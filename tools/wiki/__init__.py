"""How the bundled wiki is made of the texts that lie beside this: read by tools/make_wiki.py."""
