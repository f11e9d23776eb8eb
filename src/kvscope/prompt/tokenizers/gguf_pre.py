"""The pre-tokenizers of byte-level BPE that a GGUF may name (``tokenizer.ggml.pre``): how each splits a text.

Each name here is held against the running engine by the tests; no other is followed.

Source of the expressions: llama.cpp, src/llama-vocab.cpp. Source of its letters: the engine, asked for every character.
"""

from dataclasses import dataclass

# Letters and digits of Unicode 16, which the library knows and llama.cpp's own tables do not.
_NEWER = (
    "1c89-1c8a a7cb-a7cd a7da-a7dc 105c0-105f3 10d40-10d65 10d6f-10d85 10ec2-10ec4 11380-11389 1138b 1138e "
    "11390-113b5 113b7 113d1 113d3 116d0-116e3 11bc0-11be0 11bf0-11bf9 13460-143fa 16100-1611d 16133 16138 "
    "16d40-16d6c 16d73 16d78 18cff 1ccf0-1ccf9 1e5d0-1e5ed 1e5f0 1e5f3 1e5f8"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreTokenizer:
    """``expressions`` split in turn; what none matches is a piece of its own. ``whole_pieces``: a piece that is a token
    is taken as it is, without merging. ``adds_bos``: where the file does not say."""

    expressions: tuple[str, ...]
    whole_pieces: bool = False
    adds_bos: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_ENDINGS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_OTHERS = r"| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES
_OTHERS_AND_SLASHES = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
_LLAMA3 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _OTHERS
_QWEN2 = _ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _OTHERS
# Words by case: some capitals and then small letters, or some capitals and then perhaps small ones.
_LOWER_ENDS = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))*((?=[\p{L}])([^A-Z]))+"
_UPPER_BEGINS = r"[^\r\n\p{L}\p{N}]?((?=[\p{L}])([^a-z]))+((?=[\p{L}])([^A-Z]))*"
_GPT4O = rf"{_LOWER_ENDS}{_ENDINGS}?|{_UPPER_BEGINS}{_ENDINGS}?|\p{{N}}{{1,3}}{_OTHERS_AND_SLASHES}"
_TEKKEN = rf"{_LOWER_ENDS}|{_UPPER_BEGINS}|\p{{N}}{_OTHERS_AND_SLASHES}"

_DIGIT_BY_DIGIT = PreTokenizer(expressions=(r"\p{N}", _GPT2))
_LIKE_GPT2 = PreTokenizer(expressions=(_GPT2,))
_LIKE_QWEN2 = PreTokenizer(expressions=(_QWEN2,))
_LIKE_LLAMA3 = PreTokenizer(expressions=(_LLAMA3,), whole_pieces=True, adds_bos=True)

_LIKE_GPT4O = PreTokenizer(expressions=(_GPT4O,))
_LIKE_DBRX = PreTokenizer(expressions=(_LLAMA3,))

PROVEN_PRE_TOKENIZERS = {
    **dict.fromkeys(("smollm", "starcoder", "refact", "command-r", "exaone"), _DIGIT_BY_DIGIT),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo"), _LIKE_GPT2),
    **dict.fromkeys(("llama-bpe", "falcon3", "lfm2"), _LIKE_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _LIKE_DBRX),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "hunyuan", "stablelm2"), _LIKE_QWEN2),
    **dict.fromkeys(("gpt-4o", "llama4"), _LIKE_GPT4O),
    "tekken": PreTokenizer(expressions=(_TEKKEN,), whole_pieces=True, adds_bos=True),
}


def as_llama_cpp_knows_letters(expression: str) -> str:
    r"""``expression`` with ``\p{L}`` and ``\p{N}`` narrowed to what llama.cpp's tables hold."""
    ranges = [part.partition("-") for part in _NEWER.split()]
    newer = "".join(rf"\x{{{first}}}-\x{{{last or first}}}" for first, _, last in ranges)
    for kind in (r"\p{L}", r"\p{N}"):
        expression = expression.replace(kind, f"[{kind}&&[^{newer}]]")
    return expression
