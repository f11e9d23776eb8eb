"""Tokenizers that several modules of tests share: a large vocabulary takes seconds to load."""

from functools import cache

from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer


@cache
def loaded_tokenizer(source: str) -> Tokenizer:
    """``load_tokenizer`` of a packaged model, once."""
    return load_tokenizer(source)
