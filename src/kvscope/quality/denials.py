"""What an answer says for good: without what it denies, asks, compares with or calls untold.

By clauses: "not X", "X is not ...", "than X", "X이 아니다" take out X; a clause that refuses takes out itself and all
behind it up to a "but"; a sentence that ends in a question mark is none.
"""

import re
from collections.abc import Sequence

from kvscope.quality.answer_text import is_refusal, spelt_out
from kvscope.quality.number_words import NUMBER_WORD

_SENTENCES = re.compile(r"(?<=[.!?;。\n])(?=\s|\Z)|(?<=\n)")
_CLAUSES = re.compile(
    r"((?:[,;:—–](?=\s)|\n|\s-\s|\b(?:but|while|whereas|because|since|as|so|therefore)\b|\band(?=\s+(?:is|was|it|not)\b)"
    r"|(?:지만|는데|므로|니까)(?=[\s,])))",
    re.IGNORECASE,
)
_TURNS = re.compile(
    r"\W*(?:but|however|though|yet|still|so|therefore|thus|hence|instead|nevertheless|the (?:\w+ )?answer is"
    r"|그러나|하지만|그렇지만|다만|그래도|그런데|따라서|지만|는데|므로|정답은|답은)(?![\w가-힣])",
    re.IGNORECASE,
)
_ASIDE = re.compile(r"\W*(?:which|who|whose|where|although|though|while|whereas|even if)\b", re.IGNORECASE)
_COPULAS = r"(?:is|was|are|were|has|had|but)\b"
_FILLER = (
    r"(?:be|been|have|the|an?|its?|numbers?|names?|values?|words?|called|named|numbered|actually|really|crate|answer)"
)
# What is denied: two words, and up to four before them that say no more than "the number called".
_BEHIND = rf"(?:\s+{_FILLER}(?=\s)){{0,4}}(?:\s+(?!{_COPULAS})\S+){{1,2}}"
_ANYONE_BUT = re.compile(rf"\b(?:any|every)(?:one|body|thing)\s+(?:but|except){_BEHIND}", re.I)
_COUNTED = rf"(?=\s+(?:\d|{NUMBER_WORD}))"
_DENIED = (
    re.compile(rf"\b(?:(?:rather|other)\s+than|instead of|unlike|neither|nor){_BEHIND}", re.I),
    re.compile(rf"\bthan\b(?!{_COUNTED}){_BEHIND}", re.I),
    re.compile(r"\bnot\s+(?:think|believe|suppose|expect)\b.*", re.I | re.S),
)
# A limit is no count; but of "30 minutes" it may be what is asked for.
_LIMITS = (
    re.compile(rf"\b(?:than|at least|at most){_COUNTED}{_BEHIND}", re.I),
    re.compile(r"\b(?:over|below)\s+(?=\d)\S+", re.I),
)
# "X is not it": takes out what stands before it.
_IS_NOT = re.compile(
    r"\A.*?\b(?:is|was|are|were)\s+not\b(?=\s+(?:the|it|him|her|right|correct|true|that|this|what|who)\b|\W*\Z)",
    re.I | re.S,
)
_NOT = re.compile(rf"\b(?:not|never)\b(?!\s+(?:only|just|merely|sure|certain)\b){_BEHIND}", re.I)
_WORD_KO = r"(?<![^\s,;.])[^\s,;.]{1,60}"
_DENIED_KO = (
    re.compile(rf"(?:{_WORD_KO}(?<![지고며])\s+)?{_WORD_KO}(?<!뿐)(?<!뿐만)\s+아(?:니|닌|닙|님)[가-힣]*"),
    re.compile(rf"{_WORD_KO}\s?(?:말고|대신|제외하고)(?![가-힣])"),
)
_LIMITS_KO = (re.compile(rf"{_WORD_KO}\s(?:이상|이하|미만|초과)[가-힣]*"),)
# A value that says no itself, or a question that asks what is not: there a "not" denies nothing.
_SAYS_NO = re.compile(r"\b(?:not|no|none|never|nothing|neither)\b|아니|없|않", re.IGNORECASE)


def says_no(text: str) -> bool:
    """Whether a right answer, or a question, itself says no or that nothing is known."""
    return is_refusal(text) or bool(_SAYS_NO.search(spelt_out(text)))


def affirmed(text: str, *, is_count: bool = False) -> str:
    """The text without what it does not say for good. ``is_count``: a number is asked for, which a limit ("at least
    3") is not."""
    denials = (*_DENIED, *_DENIED_KO, *((*_LIMITS, *_LIMITS_KO) if is_count else ()))
    kept, is_untold = [], False
    for sentence in _SENTENCES.split(_ANYONE_BUT.sub(" ", spelt_out(text))):
        if sentence.rstrip(" \t\n\"'”)*").endswith("?"):
            continue
        for clause in _clauses(sentence):
            is_untold = is_untold and _TURNS.match(clause) is None
            is_untold = is_untold or (is_refusal(clause) and _ASIDE.match(clause) is None)
            kept.append("\n" if is_untold else _without_denied(clause, denials))
        kept.append(" ")
    return "".join(kept)


def _clauses(sentence: str) -> list[str]:
    """Each with the word or mark that opens it."""
    parts = _CLAUSES.split(sentence)
    return [parts[0], *(opened + rest for opened, rest in zip(parts[1::2], parts[2::2], strict=True))]


def _without_denied(clause: str, denials: Sequence[re.Pattern[str]]) -> str:
    for pattern in denials:
        clause = pattern.sub(" ", clause)
    return _NOT.sub(" ", _IS_NOT.sub("not", clause))
