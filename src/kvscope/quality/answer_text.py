"""What of a model's text is its answer: thinking taken out, a text that was gone on with cut where its sentence ends,
and refusals ("the text does not say") recognised."""

import re

# Thinking as models write it into their text where no server took it out. The end mark may be missing (cut by the
# limit: all behind is thinking), and so may the begin mark (chat templates put it into the prompt).
_THINKING = (
    (r"<think(?:ing)?>", r"</think(?:ing)?>"),
    (r"<(?:thought|reasoning|reflection|seed:think)>", r"</(?:thought|reasoning|reflection|seed:think)>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"◁think▷", r"◁/think▷"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|channel>thought\b", r"<channel\|>"),
    (r"<\|channel\|>(?:analysis|commentary)\b.*?<\|message\|>", r"<\|end\|>|(?=<\|channel\|>final)"),
    (r"\AHere is my thought process:", r"Here is my response:"),
    (r"\Aanalysis(?=\S.*assistantfinal)", r"assistantfinal"),
)
_SPANS = tuple(re.compile(f"{begin}.*?(?:{end}|\\Z)", re.DOTALL) for begin, end in _THINKING)
# Not of a mark that is a lookahead, nor of plain words.
_ENDS_ALONE = tuple(re.compile(f"\\A.*{end}", re.DOTALL) for _, end in _THINKING[:6])
# What remains of a frame around the answer itself.
_FRAME = re.compile(
    r"<\|(?:start\|>assistant|channel\|>final\s*(?:<\|constrain\|>\w*)?<\|message|return|end|im_end|eot_id)\|>"
    r"|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|<\|(?:begin|end)_of_solution\|>|</?(?:answer|response|final)>"
    r"|<(?:end_of_turn|/s|eos)>|\[/INST\]"
)
_START = re.compile(r"<\|start\|>assistant")

_SENTENCE_END = re.compile(r"[.!?…]['\"”’)\]]*(?=\s|\Z)|。")

_REFUSALS_EN = re.compile(
    r"\b(?:not|nowhere|never)(?: \w+){0,3}? (?:mention|stat|specif|provid|given?\b|contain|includ|found|indicat|listed|"
    r"available|clear\b|known\b)\w*"
    r"|(?:\bnot|n't|\bcannot|\bunable to)(?: \w+){0,2}? (?:mention|state|say|specify|provide|give|contain|include|find|"
    r"indicate|tell|appear|know|answer|determine)\b"
    r"|\bnot in the (?:text|document|passage|story)\b|\bno (?:information|mention|indication|such|answer|record|data)\b"
    r"|\A\W*(?:unknown|unclear|none|n/a)\b|\bthere is no\b"
    r"|\b(?:is|are|was|remains) (?:unknown|unclear)\b",
    re.IGNORECASE,
)
_REFUSALS_KO = re.compile(
    r"(?:나와|나타나|적혀|쓰여|언급되어|언급돼|포함되어|제시되어|명시되어)\s*있지\s*않|언급(?:되지|이|은|하지)|나오지\s*않"
    r"|찾을\s*수\s*(?:가\s*)?없|알\s*수\s*(?:가\s*)?없|확인할\s*수\s*(?:가\s*)?없|답할\s*수\s*(?:가\s*)?없|모르겠|모릅니다"
    r"|정보(?:가|는)?\s*없|내용(?:이|은)?\s*없|없습니다|존재하지\s*않"
)
_LONGEST = 20_000
_SHORTEST_CIRCLE, _LONGEST_CIRCLE = 4, 400


def without_thinking(text: str) -> tuple[str, bool]:
    """The answer behind, before and between what is thinking, and whether any was taken out."""
    text = text[:_LONGEST]
    kept = text
    for span in _SPANS:
        kept = span.sub("\n", kept)
    for ends in _ENDS_ALONE:
        kept = ends.sub("\n", kept, count=1)
    had_thinking = kept != text
    return _FRAME.sub("", _START.sub("", kept)).strip(), had_thinking


def first_sentence(text: str) -> tuple[str, bool]:
    """The first sentence of a text that a model went on with, on its first line that is not empty, and whether it is
    there to its end. What comes behind it is the model's next sentence, no part of the answer."""
    lines = text.strip().split("\n", 1)
    end = _SENTENCE_END.search(lines[0])
    if end is not None:
        return lines[0][: end.end()].strip(), True
    return lines[0].strip(), len(lines) > 1


def goes_round(text: str) -> bool:
    """Whether a text ends in circles: the same words three times over, the third perhaps not to their end. Such a
    text goes on so for ever; no larger limit would have brought an answer."""
    end = text.rstrip()
    periods = range(_SHORTEST_CIRCLE, min(_LONGEST_CIRCLE, len(end) // 3) + 1)
    return any(end[-2 * period :] == end[-3 * period : -period] for period in periods)


def is_refusal(text: str) -> bool:
    """Whether an answer says that the text does not hold what is asked for, or that it cannot be told."""
    return bool(_REFUSALS_EN.search(text) or _REFUSALS_KO.search(text))
