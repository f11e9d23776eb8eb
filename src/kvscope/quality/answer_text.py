"""What of a model's text is its answer: thinking taken out, a text that was gone on with cut where its sentence ends,
and refusals ("the text does not say") recognised."""

import re
import unicodedata

# Thinking as models write it into their text where no server took it out. The end mark may be missing (cut by the
# limit: all behind is thinking), and so may the begin mark (chat templates put it into the prompt).
_TAGS = "think|thinking|thought|reasoning|reflection|analysis|scratchpad|seed:think"
# A tag in quotation marks is spoken of.
_THINKING = (
    (rf"(?<![`\"'“‘])<(?:{_TAGS})>", rf"</(?:{_TAGS})>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"◁think▷", r"◁/think▷"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|thinking\|>", r"<\|/thinking\|>"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    (r"<unused94>", r"<unused95>"),
    (r"<\|channel>thought\b", r"<channel\|>"),
    # Not what is said to a tool.
    (
        r"<\|channel\|>(?:analysis|commentary)\b(?! to=).{0,200}?<\|message\|>",
        r"<\|end\|>|(?=<\|channel\|>(?:final|commentary to=))",
    ),
    (r"\AHere is my thought process:", r"Here is my response:"),
    (r"\AHere are my reasoning steps:", r"\[BEGIN FINAL RESPONSE\]"),
    (r"\Aanalysis(?=\S.*assistantfinal)", r"assistantfinal"),
)
_SPANS = tuple(re.compile(f"{begin}.*?(?:{end}|\\Z)", re.DOTALL | re.IGNORECASE) for begin, end in _THINKING)
# Not of a mark that is a lookahead, nor of plain words.
_ENDS_ALONE = tuple(re.compile(f"\\A.*{end}", re.DOTALL | re.IGNORECASE) for _, end in _THINKING[:9])
# What remains of a frame around the answer itself.
_FRAME = re.compile(
    r"<\|(?:start\|>assistant|channel\|>final\s*(?:<\|constrain\|>\w*)?<\|message|return|end|im_end|eot_id)\|>"
    r"|<\|(?:START|END)_(?:RESPONSE|TEXT)\|>|<\|(?:begin|end)_of_solution\|>|</?(?:answer|response|final)>"
    r"|<(?:end_of_turn|/s|eos)>|\[/INST\]|\[(?:BEGIN|END) FINAL RESPONSE\]"
)
_START = re.compile(r"<\|start\|>assistant")
_TO_TOOL = re.compile(r"<\|start\|>assistant to=(\S{1,80}?)<\|channel\|>commentary")

_SENTENCE_END = re.compile(r"[.!?…]['\"”’)\]]*(?=\s|\Z)|。")
# A point behind these, or behind nothing at all, ends no sentence.
_NO_END = re.compile(
    r"(?:\A[\W_]*|\b(?:mr|mrs|ms|dr|prof|st|approx|ca|e\.g|i\.e|cf|vs)|№)\.(?=\s)|\b(?:no|nr)\.(?=\s+\d)", re.IGNORECASE
)

_TOLD = (
    r"(?:mention|stat|specif|provid|giv|contain|includ|f(?:i|ou)nd|indicat|list|available|clear\b|known?\b|say|said|"
    r"tell|told|named?\b|numbered|appear|answer|determin|exist|locat|help|record|describ|written)"
)
# Words behind which a "not" denies something else.
_NO_FILLER = "other|else|more|further|only|the|an?|is|was|are|were|has|had|but"
_THINGS = r"(?:information|mention|indication|answer|data|reference|details?|idea|clue|way to (?:know|tell|say))"
_REFUSALS_EN = re.compile(
    rf"\b(?:not|nowhere|never)(?: (?!(?:{_NO_FILLER})\b)\w+){{0,3}}? {_TOLD}\w*"
    r"(?! (?:any )?(?:other|else|more|further|only|just)\b)"
    r"|\bnot in (?:the|this) (?:text|document|passage|story)\b"
    rf"|\bnot have (?:any |enough |the |that )?{_THINGS}\b|\bno {_THINGS}\b|\bno such (?!luck|thing as)"
    r"|\bthere(?:'s| is| are| was| were) no (?:record of|(?!doubt|question|need|other|more|longer|record)\w)"
    rf"|\bno (?!other\b|more\b)(?:\w+ ){{1,3}}(?:is|are|was|were) (?:\w+ )?{_TOLD}"
    r"|\b(?:says?|said|mentions?|states?|tells?) nothing\b|\bnothing (?:is|was) (?:said|told|stated|mentioned)\b"
    r"|\b(?:insufficient|not enough) (?:information|data|detail)|\bimpossible to (?:say|tell|know|determine|answer)\b"
    rf"|\bunable to (?:\w+ )?{_TOLD}|\A\W*(?:unknown|unclear|none|null|n/a|sorry,? no)\W*\Z|\A\W*(?:unknown|unclear)\b"
    r"|\b(?:is|are|was|remains) (?:unknown|unclear)\b",
    re.IGNORECASE,
)
_REFUSALS_KO = re.compile(
    r"(?:명시|언급|제공|확인|기재|기록|표시|제시|포함|서술|설명|공개)(?:되어|돼|되|하)?(?:\s*있)?지\s*(?:는\s*)?(?:않|못)"
    r"|언급(?:되지|이|은|하지)\s*(?:않|없)|(?:나와|나타나|적혀|쓰여|나오|찾|밝혀|알려)(?:져)?(?:\s*있)?지\s*(?:는\s*)?(?:않|못)"
    r"|(?<![가-힣])안\s*(?:나와|나온|나옵|적혀|쓰여)"
    r"|(?:찾을|알|확인할|답할|답변할|말할|판단할|대답할)\s*수(?:는|가|도)?\s*없|모르겠|모릅니다|모른다|모름(?![가-힣])|몰라요"
    r"|(?:정보|내용|언급|기록|설명|근거|자료)(?:가|이|은|는|도)?\s*(?:없|부족)|(?:그런|그러한|해당)\s+\S+\s*없|존재하지\s*않"
    r"|(?:본문|글|문서|지문|텍스트)에(?:는|도|서|서는)?\s*없|\A\W*없(?:음|습니다|다|어요)\W*\Z"
)
# What stands in commas as an aside says nothing of the answer.
_ASIDE = re.compile(r",\s*(?:which|who|whose|where)\b[^,.;]*(?:,|(?=[.;]|\Z))", re.IGNORECASE)
_LONGEST, _LONGEST_WITH_THINKING = 20_000, 1_000_000
_SHORTEST_CIRCLE, _LONGEST_CIRCLE = 4, 400


def without_thinking(text: str) -> tuple[str, bool]:
    """The answer behind, before and between what is thinking, and whether any was taken out."""
    text = _TO_TOOL.sub(r"<|channel|>commentary to=\1", text[-_LONGEST_WITH_THINKING:])
    kept = text
    for span in _SPANS:
        kept = span.sub("\n", kept)
    for ends in _ENDS_ALONE:
        kept = ends.sub("\n", kept, count=1)
    had_thinking = kept != text
    return _FRAME.sub("", _START.sub("", kept)).strip()[:_LONGEST], had_thinking


def first_sentence(text: str) -> tuple[str, bool]:
    """The first sentence of a text that a model went on with, on its first line that is not empty, and whether it is
    there to its end. What comes behind it is the model's next sentence, no part of the answer."""
    lines = text.strip().split("\n", 1)
    no_ends = {found.end() for found in _NO_END.finditer(lines[0])}
    for end in _SENTENCE_END.finditer(lines[0]):
        if end.end() not in no_ends:
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
    plain = _ASIDE.sub(",", spelt_out(text))
    return bool(_REFUSALS_EN.search(plain) or _REFUSALS_KO.search(plain))


def spelt_out(text: str) -> str:
    """The text (NFKC) with "n't" and "cannot" in two words, whatever its apostrophes."""
    plain = unicodedata.normalize("NFKC", text).replace("’", "'").replace("‘", "'")
    plain = re.sub(r"\bcan(?:'t|not)\b", "can not", plain, flags=re.IGNORECASE)
    return re.sub(r"n't\b", " not", plain, flags=re.IGNORECASE)
