"""transformers: each call of generate() begins with an empty cache, unless it is given the last one's."""

from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion

SOURCE = "transformers: generation/utils.py (generate makes a cache where none is passed as past_key_values)"


def reusable(question: ReuseQuestion) -> Reusable:
    """Nothing between two calls."""
    because = "generate() begins with an empty cache; pass past_key_values to go on with the last one"
    return Reusable(tokens=0, status="estimated", because=because, source=SOURCE)
