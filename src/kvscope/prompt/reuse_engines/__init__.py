"""What an engine can use again of what it holds. One engine per file; ``kvscope.prompt.reuse.rules`` is the door."""
