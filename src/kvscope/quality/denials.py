"""What an answer says for good: without what it denies, asks, compares with or calls untold.

By clauses: "not X", "X is not ...", "than X", "X이 아니다" take out X; a clause that refuses takes out itself and all
behind it up to a "but"; a sentence that ends in a question mark is none.
"""

import re

from kvscope.quality.answer_text import is_refusal, spelt_out

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
_BEHIND = rf"(?:\s+(?!{_COPULAS})\S+){{1,4}}"
_ANYONE_BUT = re.compile(rf"\b(?:any|every)(?:one|body|thing)\s+(?:but|except){_BEHIND}", re.I)
_DENIED = (
    re.compile(rf"\b(?:than|instead of|unlike|except(?: for)?|neither|nor|at (?:least|most)){_BEHIND}", re.I),
    re.compile(r"\b(?:over|below)\s+(?=\d)\S+", re.I),
    re.compile(r"\bnot\s+(?:think|believe|suppose|expect)\b.*", re.I | re.S),
)
# "It is not X": what stands before it is what is spoken of, "not" takes out the few words behind it.
_IS_NOT = re.compile(
    r"\A.*?\b(?:is|was|are|were|(?<!\bthat )(?<!\bwhich )(?<!\bwho )(?:does|did|do|has|have|can|could|would|will))"
    r"\s+not\b(?!\s+(?:only|just|merely|sure|certain))",
    re.I | re.S,
)
_NOT = re.compile(rf"\b(?:not|never)\b(?!\s+(?:only|just|merely|sure|certain)\b){_BEHIND}", re.I)
_WORD_KO = r"(?<![^\s,;.])[^\s,;.]{1,60}"
_DENIED_KO = (
    re.compile(rf"(?:{_WORD_KO}(?<![지고며])\s+)?{_WORD_KO}(?<!뿐)(?<!뿐만)\s+아(?:니|닌|닙|님)[가-힣]*"),
    re.compile(rf"{_WORD_KO}\s?(?:말고|대신|제외하고)(?![가-힣])"),
    re.compile(rf"{_WORD_KO}\s(?:이상|이하|미만|초과)[가-힣]*"),
)


def affirmed(text: str) -> str:
    """The text without what it does not say for good."""
    plain = spelt_out(text)
    return "".join(_kept(_ANYONE_BUT.sub(" ", plain)))


def _kept(text: str) -> list[str]:
    kept, is_untold = [], False
    for sentence in _SENTENCES.split(text):
        if sentence.rstrip(" \t\n\"'”)*").endswith("?"):
            continue
        for clause in _clauses(sentence):
            if _TURNS.match(clause):
                is_untold = False
            if is_refusal(clause) and not _ASIDE.match(clause):
                is_untold = True
            kept.append("\n" if is_untold else _without_denied(clause))
        kept.append(" ")
    return kept


def _clauses(sentence: str) -> list[str]:
    """Each with the word or mark that opens it."""
    parts = _CLAUSES.split(sentence)
    return [parts[0], *(opened + rest for opened, rest in zip(parts[1::2], parts[2::2], strict=True))]


def _without_denied(clause: str) -> str:
    for pattern in _DENIED:
        clause = pattern.sub(" ", clause)
    if _IS_NOT.match(clause):
        clause = _IS_NOT.sub("not", clause)
    clause = _NOT.sub(" ", clause)
    for pattern in _DENIED_KO:
        clause = pattern.sub(" ", clause)
    return clause
