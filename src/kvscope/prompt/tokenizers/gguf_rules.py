"""llama.cpp's tokenizing rules, stated in the terms of the ``tokenizers`` library.

Byte-level BPE: names of tokens are cut out of the text first, the rest is split by the pre-tokenizer's expressions, and
each piece is merged by rank. SentencePiece: the rest is merged whole, always the pair whose union has the highest
score; what ends as no token becomes its bytes.
"""

from typing import TYPE_CHECKING

from kvscope.errors import MalformedFile, MissingDependency, UnsupportedArchitecture
from kvscope.prompt.tokenizers.gguf import BYTE_LEVEL, NORMAL, OTHER_DOOR, USER_DEFINED, GgufVocabulary
from kvscope.prompt.tokenizers.gguf_pre import PROVEN_PRE_TOKENIZERS, as_llama_cpp_knows_letters

if TYPE_CHECKING:
    import tokenizers

_SPACE = "\u2581"  # what SentencePiece writes a space as


def build_tokenizer(vocabulary: GgufVocabulary, names: list[str]) -> "tokenizers.Tokenizer":
    """The rules of ``vocabulary``; ``names`` are the tokens whose text is cut out first."""
    try:
        import tokenizers
    except ImportError:
        raise MissingDependency("Reading the tokenizer of a GGUF", "tokenizers", "tokenizers") from None
    built = _byte_level(vocabulary) if vocabulary.model == BYTE_LEVEL else _sentencepiece(vocabulary)
    built.add_tokens([tokenizers.AddedToken(name, normalized=False, special=False) for name in names])
    return built


def _byte_level(vocabulary: GgufVocabulary) -> "tokenizers.Tokenizer":
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    rules = PROVEN_PRE_TOKENIZERS.get(vocabulary.pre or "")
    if rules is None:
        raise UnsupportedArchitecture(
            f"{vocabulary.path}: the pre-tokenizer {vocabulary.pre!r} is not one whose ids kvscope is known to get "
            f"right (tokenizer.ggml.pre; known: {', '.join(sorted(PROVEN_PRE_TOKENIZERS))}).",
            hint=OTHER_DOOR,
        )
    ids = {text: index for index, text in enumerate(vocabulary.tokens)}
    # A byte that the vocabulary lacks gets an id behind the others, which is taken out of the result: without one the
    # library would merge what stands on its two sides.
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        ids.setdefault(letter, len(ids))
    built = Tokenizer(models.BPE(vocab=ids, merges=_pairs(vocabulary, ids), ignore_merges=rules.whole_pieces))
    splits = [pre_tokenizers.Split(Regex(as_llama_cpp_knows_letters(each)), "isolated") for each in rules.expressions]
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    return built


def _pairs(vocabulary: GgufVocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    pairs = []
    for merge in vocabulary.merges:
        left, _, right = merge.partition(" ")
        if left not in ids or right not in ids or left + right not in ids:
            raise MalformedFile(vocabulary.path, "tokenizer.ggml.merges", f"{merge!r} merges what are no tokens")
        pairs.append((left, right))
    return pairs


def _sentencepiece(vocabulary: GgufVocabulary) -> "tokenizers.Tokenizer":
    from tokenizers import Tokenizer, models, normalizers

    ids = {text: index for index, text in enumerate(vocabulary.tokens)}
    _check_letters(vocabulary, ids)
    built = Tokenizer(models.BPE(vocab=ids, merges=_unions(vocabulary, ids), byte_fallback=True))
    # Each stretch of text between names is prefixed, as llama.cpp does it.
    prefix = [normalizers.Prepend(" ")] if vocabulary.add_space_prefix else []
    built.normalizer = normalizers.Sequence([*prefix, normalizers.Replace(" ", _SPACE)])
    return built


def _check_letters(vocabulary: GgufVocabulary, ids: dict[str, int]) -> None:
    """That every byte has a token, and every letter of a longer token: the library cannot follow llama.cpp without."""
    absent = [f"<0x{byte:02X}>" for byte in range(256) if f"<0x{byte:02X}>" not in ids]
    absent += sorted({letter for text in vocabulary.texts_of(NORMAL) for letter in text} - ids.keys())
    if absent:
        raise UnsupportedArchitecture(
            f"{vocabulary.path}: the vocabulary has no token for {absent[0]!r} ({len(absent)} such); what follows from "
            "it is not proven here.",
            hint=OTHER_DOOR,
        )


def _unions(vocabulary: GgufVocabulary, ids: dict[str, int]) -> list[tuple[str, str]]:
    """Every pair of tokens whose union is a token, best first."""
    pairs: list[tuple[str, str]] = []
    last: float | None = None
    for index in sorted(range(len(vocabulary.tokens)), key=lambda index: -vocabulary.scores[index]):
        text = vocabulary.tokens[index]
        if vocabulary.types[index] == USER_DEFINED and _SPACE not in text:
            continue  # it is cut out before: no text that comes this far has it
        cuts = [cut for cut in range(1, len(text)) if text[:cut] in ids and text[cut:] in ids]
        if cuts and vocabulary.scores[index] == last:
            raise UnsupportedArchitecture(
                f"{vocabulary.path}: {text!r} and another token that is merged from two have one score; which comes "
                "first is not proven here.",
                hint=OTHER_DOOR,
            )
        last = vocabulary.scores[index] if cuts else last
        pairs += [(text[:cut], text[cut:]) for cut in cuts]
    return pairs
