"""kvscope: why does an LLM need more memory, and answer more slowly, as the conversation gets longer?"""

__version__ = "0.1.0"
