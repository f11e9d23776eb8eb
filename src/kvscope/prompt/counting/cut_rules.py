"""The rules by which each kind of tokenizer lets a text be cut; see ``cut_points.py``.

Byte-level BPE first splits a text by an expression, from the left, and merges within the pieces. A cut is safe if the
whole has an end of a piece there and the left part, which ends there, is split as before: of all the expressions listed
here none looks further than one character behind a piece, and none looks back. Everything else a rule needs is said at
the rule. BPE without such an expression (SentencePiece's) merges the text whole: a cut is safe where no token of the
vocabulary has the two characters beside it next to each other.

Names of tokens that are cut out of the text before all that (*added tokens*) cross no cut whose two characters none of
them has next to each other.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from kvscope.prompt.counting.cut_points import Cut, Cuts
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.gguf_pre import PROVEN_PRE_TOKENIZERS

if TYPE_CHECKING:
    import tokenizers

# Letters without case that every version of Unicode has and that never join with the letter before them; and others.
_CASELESS = "가-힣一-龥ぁ-ゖァ-ヺא-תء-غف-يก-ฮअ-ह"
_LETTERS = f"A-Za-zа-яА-Я{_CASELESS}"
# No apostrophe (it begins "'re") and no slash (some expressions take it along behind line breaks).
_SIGNS = "!-&(-.:-@\\[-`{-~\U0001f300-\U0001f64f\U0001f680-\U0001f6c5\u200d"
_VISIBLE = f"!-.0-~{_LETTERS}"  # no slash
_SPACE = "\u2581"  # what SentencePiece writes a space as
_WINDOW = 400  # characters on each side of a cut inside of a piece, to see where tokens probably end
_HERE, _HERE_DROPPED = Cut(0), Cut(0, dropped=1)
_ALIGNED = 4096  # repeats of one character after which its tokens probably end, their lengths being powers of two


@dataclass(frozen=True, slots=True)
class _Splitting:
    r"""What matters of an expression. ``takes_lines``: it has ``\s*[\r\n]+``, and signs take the line breaks behind
    them. ``digits``: how many are one piece at most, 0 for any number."""

    takes_lines: bool
    digits: int


_GPT2 = _Splitting(takes_lines=False, digits=0)
_GPT2_DIGITS = _Splitting(takes_lines=False, digits=1)
_THREES = _Splitting(takes_lines=True, digits=3)
_ONES = _Splitting(takes_lines=True, digits=1)
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
_UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
_SLASHED = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*" + _SPACES
# The expressions, as files state them: of Llama 3, Qwen 2, gpt-oss, Mistral's tekken; tiktoken's; then llama.cpp's own.
_KNOWN: dict[tuple[str, ...], _Splitting] = {
    (_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,): _THREES,
    (_ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*" + _SPACES,): _ONES,
    (rf"{_LOWER}{_ENDINGS}?|{_UPPER}{_ENDINGS}?|\p{{N}}{{1,3}}{_SLASHED}",): _THREES,
    (rf"{_LOWER}|{_UPPER}|\p{{N}}{_SLASHED}",): _ONES,
    (
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s",
    ): _THREES,
    (r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",): _GPT2,
    PROVEN_PRE_TOKENIZERS["gpt-2"].expressions: _GPT2,
    PROVEN_PRE_TOKENIZERS["smollm"].expressions: _GPT2_DIGITS,
    PROVEN_PRE_TOKENIZERS["llama-bpe"].expressions: _THREES,
    PROVEN_PRE_TOKENIZERS["qwen2"].expressions: _ONES,
    PROVEN_PRE_TOKENIZERS["gpt-4o"].expressions: _THREES,
    PROVEN_PRE_TOKENIZERS["tekken"].expressions: _ONES,
}


def cuts_of(tokenizer: Tokenizer) -> Cuts | None:
    """The rules for ``tokenizer``; None where they are not known, and its texts can only be counted whole."""
    if tokenizer.kind == "bytes":
        return _ByteCuts()
    if tokenizer.kind == "gguf":
        return _gguf_cuts(tokenizer)
    if tokenizer.kind == "huggingface":
        return _library_cuts(tokenizer)
    return _tiktoken_cuts(tokenizer) if tokenizer.kind in ("tiktoken", "tekken") else None


def _tiktoken_cuts(tokenizer: Any) -> Cuts | None:
    splitting = _KNOWN.get((tokenizer.expression,))
    if splitting is None:
        return None
    return _PieceCuts(tokenizer, splitting, frozenset(), lambda: int(tokenizer.longest_token_bytes))


def _gguf_cuts(tokenizer: Any) -> Cuts | None:
    vocabulary = tokenizer.vocabulary
    added = _added(tokenizer.library)
    if vocabulary.scores:
        return _WholeCuts(tokenizer, lambda: vocabulary.tokens, added, puts_space=vocabulary.add_space_prefix)
    rules = PROVEN_PRE_TOKENIZERS[vocabulary.pre]
    splitting = _KNOWN.get(rules.expressions)
    if splitting is None or added is None:
        return None
    longest = (lambda: max(map(len, vocabulary.tokens))) if rules.whole_pieces else None
    return _PieceCuts(tokenizer, splitting, _neighbours(added), longest)


def _library_cuts(tokenizer: Any) -> Cuts | None:
    """Of a tokenizer.json: byte-level BPE with a known expression, or BPE of the whole text with spaces replaced."""
    library = tokenizer.library
    model, added = library.model, _added(library)
    if type(model).__name__ != "BPE" or added is None or model.dropout:
        return None
    if model.continuing_subword_prefix or model.end_of_word_suffix:
        return None
    normaliser, before = _state(library.normalizer), _state(library.pre_tokenizer)
    if _is_space_replaced(normaliser) and model.byte_fallback and not model.ignore_merges and _splits_spaces(before):
        return _WholeCuts(tokenizer, library.get_vocab, added, puts_space=False)
    if normaliser is not None and normaliser != {"type": "NFC"}:
        return None
    splitting = _splitting_of(before)
    if splitting is None:
        return None
    longest = (lambda: max(map(len, library.get_vocab()))) if model.ignore_merges else None
    return _PieceCuts(tokenizer, splitting, _neighbours(added), longest)


def _state(component: Any) -> Any:
    return None if component is None else json.loads(component.__getstate__())


def _is_space_replaced(normaliser: Any) -> bool:
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
    return normaliser in (replaced, {"type": "Sequence", "normalizers": [replaced]})


def _splits_spaces(before: Any) -> bool:
    """Whether nothing is split: there is no space left to split at."""
    return before is None or (before["type"] == "Split" and before["pattern"] == {"String": " "})


def _splitting_of(before: Any) -> _Splitting | None:
    if before is None:
        return None
    *splits, last = before["pretokenizers"] if before["type"] == "Sequence" else [before]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return None
    if last["use_regex"]:
        is_digits = [each["type"] == "Digits" and each["individual_digits"] for each in splits]
        return {(): _GPT2, (True,): _GPT2_DIGITS}.get(tuple(is_digits))
    if any(each["type"] != "Split" or each["behavior"] != "Isolated" or each["invert"] for each in splits):
        return None
    return _KNOWN.get(tuple(str(each["pattern"].get("Regex")) for each in splits))


def _added(library: "tokenizers.Tokenizer") -> list[str] | None:
    """The names that are cut out of a text first; None where they take spaces with them or depend on what is around."""
    tokens = [each for each in library.get_added_tokens_decoder().values() if not each.special]
    if any(each.lstrip or each.rstrip or each.single_word for each in tokens):
        return None
    return [each.content for each in tokens]


def _neighbours(texts: Iterable[str]) -> frozenset[str]:
    """Every two characters that stand next to each other in one of ``texts``."""
    return frozenset(text[index : index + 2] for text in texts for index in range(len(text) - 1))


class _ByteCuts:
    """One token a byte: every place is safe."""

    def certain(self, text: str, low: int, high: int) -> Iterator[Cut]:
        last = min(high, len(text) - 1)
        return map(Cut, sorted({max(low, 1), last} if max(low, 1) <= last else ()))

    def inside(self, text: str, high: int) -> Iterator[Cut]:
        return iter(())

    def between(self, left: str, right: str) -> Cut | None:
        return _HERE

    def one_piece(self, left: str, right: str) -> tuple[str, str]:
        return left, right


# A letter or a digit ends its piece before a space; so does a sign, if no line break follows that it might take.
_BEFORE_SPACE = rf"(?<=[{_LETTERS}0-9])(?=[ \t\r\n])|(?<=[{_SIGNS}])(?=[ \t])"
# Letters and digits are never in one piece.
_BEFORE_DIGIT = "(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
# Where line breaks are taken up to the last one, what follows begins a piece, and the left part ends alike.
_AFTER_LINES = rf"(?<=\n)(?=[{_VISIBLE}])"
# Elsewhere, "\s+(?!\S)" leaves the last space of several: only a single line break ends alike. Signs take none.
_AFTER_LINE = rf"(?<=[!-~{_LETTERS}]\n)(?=[{_VISIBLE}])|(?<=[{_SIGNS}])(?=[\r\n])"
_TAKING_LINES = re.compile(f"{_BEFORE_SPACE}|{_BEFORE_DIGIT}|{_AFTER_LINES}")
_LEAVING_LINES = re.compile(f"{_BEFORE_SPACE}|{_BEFORE_DIGIT}|{_AFTER_LINE}")
_LINES = re.compile(r"[\r\n]+")
# Runs that are one piece. Small letters have four before them, so that none is in "'re"; signs have two behind them,
# for one alone may be taken by the letters that follow it.
_RUNS = (
    (re.compile(rf"(?<=[{_CASELESS}]{{2}})(?=[{_CASELESS}]{{2}})"), re.compile(f"[{_CASELESS}]*")),
    (re.compile("(?<=[a-z]{4})(?=[a-z]{2})"), re.compile("[a-z]*")),
    (re.compile(rf"(?<=[{_SIGNS}])(?=[{_SIGNS}]{{2}})"), re.compile(f"[{_SIGNS}]*")),
    (re.compile("(?<=[0-9]{2})(?=[0-9]{2})"), re.compile("[0-9]*")),
    (re.compile("(?<=  )(?=  )"), re.compile(" *")),
    (re.compile("(?<=\n)(?=\n)"), re.compile("\n*")),
)


class _PieceCuts:
    """Byte-level BPE. ``crossed``: neighbours within added tokens. ``longest``: the length of the longest token, where
    a piece that is a token is taken without merging: then a cut inside leaves more than that on both sides."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        splitting: _Splitting,
        crossed: frozenset[str],
        longest: Callable[[], int] | None,
    ) -> None:
        self._tokenizer = tokenizer
        self._splitting = splitting
        self._crossed = crossed
        self._longest = longest
        self._margin: int | None = None if longest else 0
        self._certain = _TAKING_LINES if splitting.takes_lines else _LEAVING_LINES

    def certain(self, text: str, low: int, high: int) -> Iterator[Cut]:
        for match in self._certain.finditer(text, max(low, 1), min(high + 2, len(text))):
            position = match.start()
            if position <= high and text[position - 1 : position + 1] not in self._crossed:
                yield Cut(position)

    def between(self, left: str, right: str) -> Cut | None:
        beside = left[-8:] + right[:8]
        at = len(left[-8:])
        is_certain = at and self._certain.match(beside, at, min(at + 2, len(beside)))
        if is_certain and beside[at - 1 : at + 1] not in self._crossed:
            return _HERE
        # Signs take all line breaks behind them, and slashes; what follows begins a piece.
        lines = _LINES.match(right)
        if lines and self._splitting.takes_lines and re.match(f"[{_SIGNS}]", left[-1:]):
            end = lines.end()
            behind = right[end - 1 : end + 1]
            if len(behind) == 2 and behind[1] != "/" and not self._crossed & {behind, left[-1] + right[0]}:
                return Cut(end)
        return None

    def inside(self, text: str, high: int) -> Iterator[Cut]:
        yield from self._digits(text, high)
        run = high - len(text[:high].rstrip(text[high - 1 : high]))
        if run >= 2 * _ALIGNED and self._is_inside(text, at := high - run + run // _ALIGNED * _ALIGNED - _ALIGNED):
            yield Cut(at, is_certain=False)
        for at in _likely(self._tokenizer, text, high):
            if self._is_inside(text, at):
                yield Cut(at, is_certain=False)

    def one_piece(self, left: str, right: str) -> tuple[str, str]:
        for _, run in _RUNS:
            behind, before = run.match(right), run.match(left[::-1])
            if behind and before and behind[0] and before[0]:
                return before[0][::-1], behind[0]
        return "", ""

    def _digits(self, text: str, high: int) -> Iterator[Cut]:
        """A cut after so many digits of a run as are one piece at most. A run that begins where the text does has been
        cut so before, or begins there."""
        most = self._splitting.digits
        start = len(text[:high].rstrip("0123456789"))
        at = start + (high - start) // most * most if most else 0
        # What is before the run must be no digit of another script.
        known = start == 0 or re.match(f"[ \t\r\n!-/:-~{_LETTERS}]", text[start - 1])
        if start < at < len(text) and known and text[at].isascii() and text[at - 1 : at + 1] not in self._crossed:
            yield Cut(at)

    def _is_inside(self, text: str, at: int) -> bool:
        if not 0 < at < len(text) or text[at - 1 : at + 1] in self._crossed:
            return False
        for around, run in _RUNS:
            if around.match(text, at):
                return self._is_wide(text, at, run) and self._is_one_piece(text, at)
        return False

    def _is_wide(self, text: str, at: int, run: re.Pattern[str]) -> bool:
        if self._margin is None and self._longest is not None:
            self._margin = self._longest()
        margin = self._margin or 0
        return not margin or (at > margin and run.fullmatch(text, at - margin - 1, at + margin + 1) is not None)

    def _is_one_piece(self, text: str, at: int) -> bool:
        """Spaces are one piece from the first of them on if none before is a line break. Line breaks are, with spaces
        among them, if no sign took some of them."""
        if text[at] == " ":
            return _is_plain_before(text, len(text[:at].rstrip(" ")))
        if text[at] == "\n":
            return _is_plain_before(text, len(text[:at].rstrip(" \t\r\n")))
        return text[at] not in "0123456789" or not self._splitting.digits


def _is_plain_before(text: str, start: int) -> bool:
    """Whether a run of spaces that begins at ``start`` begins a piece there: behind a letter or a digit, or where the
    text does (which began there, or was cut by these rules)."""
    return start == 0 or re.match(f"[{_LETTERS}0-9]", text[start - 1]) is not None


def _likely(tokenizer: Tokenizer, text: str, high: int) -> list[int]:
    """Where tokens of the text around ``high`` begin, the middle ones first: most are tokens of the whole too."""
    middle = high - _WINDOW
    low = max(0, middle - _WINDOW)
    _, starts = tokenizer.encode_with_starts(text[low:high])
    places = {low + start for start in starts if abs(low + start - middle) <= _WINDOW // 2}
    return sorted(places, key=lambda at: abs(at - middle))


_BEFORE_WORD = re.compile(rf"(?<=[{_LETTERS}0-9])(?= [{_LETTERS}0-9])")
_AT_SPACE_OR_LINE = re.compile(r"(?<=\S)(?= )|(?<=[^\n])(?=\n)|(?<=\n)(?=[^\n])")


# Of each tokenizer that is in use: a large vocabulary takes long to look through.
_before_space: WeakKeyDictionary[Tokenizer, frozenset[str]] = WeakKeyDictionary()


def _characters_before_space(tokens: Iterable[str]) -> frozenset[str]:
    """Characters before a space inside of a token."""
    spaced = [token for token in tokens if token.rfind(_SPACE) > 0]
    return frozenset(token[at - 1] for token in spaced for at in range(1, len(token)) if token[at] == _SPACE)


class _WholeCuts:
    """BPE of the whole text, spaces replaced. ``puts_space``: one is put before every text, so that a part has to begin
    behind one."""

    def __init__(
        self, tokenizer: Tokenizer, tokens: Callable[[], Iterable[str]], added: list[str] | None, *, puts_space: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._puts_space = puts_space
        self._known = added is not None
        names = added or []
        self._crossed = _neighbours(names)
        self._ends = {name[0] for name in names} | {name[-1] for name in names}
        if tokenizer not in _before_space:
            _before_space[tokenizer] = _characters_before_space(tokens())
        self._before_space = _before_space[tokenizer]
        lines = [len(name) for name in names if set(name) == {"\n"}]
        # Line breaks are cut out before anything else, if one alone is.
        self._lines = max(lines) if 1 in lines and sorted(lines) == list(range(1, max(lines) + 1)) else 0
        self._pattern = _BEFORE_WORD if puts_space else _AT_SPACE_OR_LINE

    def certain(self, text: str, low: int, high: int) -> Iterator[Cut]:
        if not self._known:
            return
        for match in self._pattern.finditer(text, max(low, 1), min(high + 3, len(text))):
            position = match.start()
            if position <= high and self._is_certain(text[position - 1 : position + 2]):
                yield Cut(position, dropped=int(self._puts_space))

    def _is_certain(self, beside: str) -> bool:
        if beside[:2] in self._crossed:
            return False
        if beside[1] != " ":
            return self._lines > 0
        if self._puts_space and (beside[1:] in self._crossed or not self._ends.isdisjoint(beside)):
            return False  # a stretch of text would begin or end here, and have a space put before it, or not
        return beside[0] not in self._before_space and beside[0] != _SPACE

    def between(self, left: str, right: str) -> Cut | None:
        if not (self._known and left and right):
            return None
        beside = left[-1] + right[:2]
        if self._pattern.match(beside, 1) and self._is_certain(beside):
            return _HERE_DROPPED if self._puts_space else _HERE
        return None

    def inside(self, text: str, high: int) -> Iterator[Cut]:
        if self._puts_space or not self._known:
            return
        last = text[high - 1 : high]
        start = len(text[:high].rstrip(last))
        if last == "\n":
            # A run is taken apart from its beginning, as many at a time as the longest name has.
            at = start + (high - start) // self._lines * self._lines if self._lines else 0
            if start < at < len(text) and (start == 0 or text[start - 1 : start + 1] not in self._crossed):
                yield Cut(at)
        if high - start >= 2 * _ALIGNED and last + last not in self._crossed:
            yield Cut(start + (high - start) // _ALIGNED * _ALIGNED - _ALIGNED, is_certain=False)
        for at in _likely(self._tokenizer, text, high):
            if 0 < at < len(text) and text[at - 1 : at + 1] not in self._crossed:
                yield Cut(at, is_certain=False)

    def one_piece(self, left: str, right: str) -> tuple[str, str]:
        return left, right
