"""Can this machine's client be believed? kvscope's client held against a server of known times.

``truth_server`` is the server (C where a compiler is there, else Python), ``cells`` what is run, ``compare`` what the
client says held against what the server noted, ``result`` what comes out of it.
"""
