"""Where sentences end, in English and Korean: the places at which a text may be cut into passages.

A rule, no model: a wrong "no end" makes one passage a little shorter, which is harmless; a wrong "end" cuts a sentence
in two, which is not. So in doubt there is none.
"""

import re

# An end mark with what closes behind it, then a blank: "다." "요?" "he said.'" (the cut is made behind the blank).
_MARK = re.compile(r"""[.!?…][.!?…]*["'”’»)\]】」』*_`]*(?=\s)|[。！？][”’"'」』）)]*""")
# A paragraph, an item of a list, a row of a table, a line of code or a heading begins: the line before it has ended.
_BLOCK = re.compile(
    r"\n[ \t]*(?=\n)|\n(?=[ \t]{0,12}(?:[-*+•‣◦·▪–]|\(?\d{1,3}[.)]|[①-⑳]|[가-힣][.)])[ \t])|\n(?=[ \t]*[|#>`~<])"
)
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st sr jr rev gen col capt lt sgt hon vs etc cf al e.g i.e eg ie approx ca no nos vol fig figs "
    "eq eqs sec ch pp p ed eds est dept inc ltd co corp jan feb mar apr jun jul aug sep sept oct nov dec mt ft min max "
    "a.m p.m u.s u.k".split()
)
_ALWAYS_ENDS = frozenset("etc a.m p.m inc ltd co corp al jr sr".split())  # both inside and at an end
_WORD_BEFORE = re.compile(r"[\w.]*\Z")
# "..." 라고 말했다: the sentence goes on behind the quotation.
_GOES_ON = re.compile(r"(?:이?라고|이?라는|이?라며|이?란|하고|하며|고|며|는|라)(?![가-힣])")
# 3. 5. 에: the particle behind a date.
_DATE_GOES_ON = re.compile(r"(?:에|부터|까지|자로?|은|는|의|로)(?![가-힣]{2})")
_CLOSING = "\"'”’»)]】」』"
_LOOK_BACK = 24


def sentence_ends(text: str) -> list[int]:
    """Where sentences, lines of lists and paragraphs end, in characters, ascending: each behind the blanks that follow
    it, so that the stretches between are the whole text. The last is the text's length."""
    ends = {_behind_blanks(text, match.end()) for match in _MARK.finditer(text) if _is_end(text, match)}
    for match in _BLOCK.finditer(text):
        ends.add(_behind_empty_lines(text, match.start() + 1))
    ends.add(len(text))
    ends.discard(0)
    return sorted(ends)


def _behind_blanks(text: str, at: int) -> int:
    """Behind the blanks of this line, and its end; what indents the next line belongs to that one."""
    while at < len(text) and text[at].isspace():
        at += 1
        if text[at - 1] == "\n":
            return _behind_empty_lines(text, at)
    return at


_EMPTY_LINES = re.compile(r"(?:[ \t]*\n)*")


def _behind_empty_lines(text: str, at: int) -> int:
    found = _EMPTY_LINES.match(text, at)
    return found.end() if found else at


def _is_end(text: str, match: re.Match[str]) -> bool:
    mark = match.group()
    if mark[0] in "。！？":
        return mark[-1] not in _CLOSING or not "ぁ" <= text[match.end() : match.end() + 1] <= "ん"  # 「はい。」と言った
    following = _following(text, match.end())
    if not following:
        return True
    if mark[-1] in _CLOSING and _GOES_ON.match(following):
        return False
    if following[0].islower():  # an abbreviation, or "Stop!" she said
        return False
    return mark[0] != "." or _full_stop_ends(text, match, following)


def _following(text: str, at: int) -> str:
    """The next few characters behind blanks and opening quotes; "" at the end of a paragraph."""
    end = _behind_blanks(text, at)
    if "\n\n" in text[at:end]:
        return ""
    return text[end : end + 6].lstrip("\"'“‘«([【「『*_`")


def _full_stop_ends(text: str, match: re.Match[str], following: str) -> bool:
    found = _WORD_BEFORE.search(text[max(0, match.start() - _LOOK_BACK) : match.start()])
    word = found.group().lower() if found else ""
    if word.isdigit():
        # "3. 5." of a date, "1. First" of a list; but "in 1999. The" ends.
        if following[0].isdigit() or _DATE_GOES_ON.match(following):
            return False
        return not _begins_line(text, match.start() - len(word))
    if len(word) == 1 and text[match.start() - 1].isupper():
        return word == "i"  # else an initial: J. Smith
    if word in _ABBREVIATIONS:
        return word in _ALWAYS_ENDS and following[:1].isupper() and not following[:1].isdigit()
    return True


def _begins_line(text: str, at: int) -> bool:
    return not text[text.rfind("\n", 0, at) + 1 : at].strip(" \t>-*(")
