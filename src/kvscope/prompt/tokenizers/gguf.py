"""The vocabulary inside a GGUF file, as a tokenizer that gives the ids llama.cpp gives.

llama.cpp keeps its rules in its own code; a file only names them (``tokenizer.ggml.model`` and, for byte-level BPE,
``tokenizer.ggml.pre``). Only rules that the tests hold against the running engine are followed. Any other file is
refused by the name that it states, for a guess would count wrongly without a sign of it.

Source of the rules: llama.cpp, src/llama-vocab.cpp.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvscope.errors import MalformedFile, MissingField, UnsupportedArchitecture
from kvscope.model.gguf_header import MetaValue, read_header
from kvscope.prompt.tokenizers.base import starts_in, writable
from kvscope.prompt.tokenizers.gguf_pre import PROVEN_PRE_TOKENIZERS

if TYPE_CHECKING:
    import tokenizers

_PREFIX = "tokenizer.ggml."
BYTE_LEVEL, SENTENCEPIECE = "gpt2", "llama"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
# Where the file does not say: byte-level BPE, then SentencePiece.
_DEFAULT_BOS = {BYTE_LEVEL: 11, SENTENCEPIECE: 1}
_LONGEST_TOKEN = 1024  # characters: several times what vocabularies have; more would take hours to take apart
_RULES_DECIDING_KEYS = ("model", "pre", "add_space_prefix", "tokens", "token_type", "scores", "merges")
OTHER_DOOR = (
    "Count with the running engine instead: pass the address of a llama.cpp server that has this model "
    "(http://127.0.0.1:8080)."
)
# What llama.cpp takes for control tokens by their name alone, whatever type the file gives them. Of each kind of the
# second, one name: where a file has two of a kind, or states the kind's token itself, it is another matter.
_ENDS_BY_NAME = frozenset(
    "</s> <eos> <EOT> _<EOT> [EOT] <end_of_turn> <end_of_utterance> <|call|> <|calls|> <|end_of_text|> <|endoftext|> "
    "<|eom_id|> <|eot_id|> <|flush|> <|im_end|> <|return|> <｜end▁of▁sentence｜>".split()
)
_INFILL_BY_NAME = (
    frozenset("<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE> <|code_prefix|>".split()),
    frozenset("<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF> <|code_suffix|>".split()),
    frozenset("<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID> <|code_middle|>".split()),
    frozenset("<|fim_pad|> <fim-pad> <fim_pad> <PAD>".split()),
    frozenset("<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>".split()),
    frozenset(["<|file_sep|>"]),
)
_INFILL_KEYS = ("fim_", "prefix_token_id", "suffix_token_id", "middle_token_id")
# It depends on which others are there, in a way that is not proven here.
_SOMETIMES_BY_NAME = "<|end|>"

_STRIPPING_NAMES = ("phi-3", "phi3")


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufVocabulary:
    """What a GGUF states of its tokenizer. ``scores`` and ``merges`` are empty where the model kind has none."""

    path: str
    model: str
    pre: str | None
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    scores: tuple[float, ...]
    merges: tuple[str, ...]
    add_space_prefix: bool
    bos_id: int | None
    adds_bos: bool
    fingerprint: str

    def texts_of(self, *types: int) -> list[str]:
        """The tokens of these types, in the order of their ids."""
        return [text for text, kind in zip(self.tokens, self.types, strict=True) if kind in types]


def load_gguf_tokenizer(path: Path, *, source: str) -> "GgufTokenizer":
    """The tokenizer of a GGUF file. Raises ModelNotFound, MalformedFile, MissingField, MissingDependency and, for rules
    that are not proven here, UnsupportedArchitecture."""
    return GgufTokenizer(source=source, vocabulary=read_vocabulary(path))


def read_vocabulary(path: Path) -> GgufVocabulary:
    """What the file states. Raises as ``load_gguf_tokenizer``."""
    metadata = read_header(path, with_arrays=True).metadata
    model = _kind(metadata, path)
    byte_level = model == BYTE_LEVEL
    pre = _optional(metadata, path, "pre", str, None) if byte_level else None
    known_pre = PROVEN_PRE_TOKENIZERS.get(pre or "")
    bos_unless_said = known_pre is not None and known_pre.adds_bos if byte_level else True
    tokens = _array(metadata, path, "tokens", str)
    vocabulary = GgufVocabulary(
        path=str(path),
        model=model,
        pre=pre,
        tokens=tokens,
        types=_types(metadata, path, tokens),
        scores=() if byte_level else _array(metadata, path, "scores", float),
        merges=_array(metadata, path, "merges", str) if byte_level else (),
        add_space_prefix=_optional(metadata, path, "add_space_prefix", bool, not byte_level),
        bos_id=_token_id(metadata, path, "bos_token_id", _DEFAULT_BOS[model], len(tokens)),
        adds_bos=_optional(metadata, path, "add_bos_token", bool, bos_unless_said),
        fingerprint=_fingerprint(metadata),
    )
    _check(vocabulary)
    return vocabulary


def _kind(metadata: Mapping[str, MetaValue], path: Path) -> str:
    """``tokenizer.ggml.model``, where it is a kind that is followed."""
    model = metadata.get(_PREFIX + "model")
    if not isinstance(model, str):
        raise MissingField("its tokenizer", [f"{path}: {_PREFIX}model"])
    if model not in (BYTE_LEVEL, SENTENCEPIECE):
        raise UnsupportedArchitecture(
            f"{path}: a tokenizer of the kind {model!r} is not one whose ids kvscope is known to get right "
            f"({_PREFIX}model; known: {BYTE_LEVEL}, {SENTENCEPIECE}).",
            hint=OTHER_DOOR,
        )
    name = str(metadata.get("general.name", "")).lower()
    if any(each in name for each in _STRIPPING_NAMES):
        raise UnsupportedArchitecture(
            f"{path}: llama.cpp drops the spaces behind control tokens of a model called {name!r}; how is not proven "
            "here.",
            hint=OTHER_DOOR,
        )
    return model


def _array(metadata: Mapping[str, MetaValue], path: Path, name: str, kind: type) -> tuple[Any, ...]:
    value = metadata.get(_PREFIX + name)
    if value is None:
        raise MissingField(f"its tokenizer's {name}", [f"{path}: {_PREFIX}{name}"])
    if not isinstance(value, tuple) or not all(type(element) is kind for element in value):
        raise MalformedFile(path, _PREFIX + name, f"an array of {kind.__name__} was expected")
    return value


def _optional(metadata: Mapping[str, MetaValue], path: Path, name: str, kind: type, default: Any) -> Any:
    value = metadata.get(_PREFIX + name, default)
    if value is not default and type(value) is not kind:
        raise MalformedFile(path, _PREFIX + name, f"{value!r} stands where {kind.__name__} was expected")
    return value


def _token_id(metadata: Mapping[str, MetaValue], path: Path, name: str, default: int, num_tokens: int) -> int | None:
    value: int = _optional(metadata, path, name, int, default)
    return value if 0 <= value < num_tokens else None


def _types(metadata: Mapping[str, MetaValue], path: Path, tokens: tuple[str, ...]) -> tuple[int, ...]:
    """The type of each token, as llama.cpp changes what the file states."""
    types = list(_array(metadata, path, "token_type", int))
    if len(types) != len(tokens):
        raise MalformedFile(path, _PREFIX + "token_type", f"{len(types)} elements for {len(tokens)} tokens")
    others = {text: index for index, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind != CONTROL}
    doubtful = [_SOMETIMES_BY_NAME] if _SOMETIMES_BY_NAME in others else []
    stated = any(key.removeprefix(_PREFIX).startswith(_INFILL_KEYS) for key in metadata)
    promoted = [*_ENDS_BY_NAME & others.keys()]
    for names in _INFILL_BY_NAME:
        found = names & others.keys()
        sure = not stated and len(names.intersection(tokens)) == 1
        (promoted if sure else doubtful).extend(found)
    if doubtful:
        raise UnsupportedArchitecture(
            f"{path}: llama.cpp makes control tokens of some by their name, against the file; for {doubtful[0]!r} here "
            "that is not proven.",
            hint=OTHER_DOOR,
        )
    for text in promoted:
        types[others[text]] = CONTROL
    return tuple(types)


def _check(vocabulary: GgufVocabulary) -> None:
    """That the arrays are of one length, and that nothing in them makes the rules ambiguous."""
    path, tokens = vocabulary.path, vocabulary.tokens
    if not tokens:
        raise MalformedFile(path, _PREFIX + "tokens", "a vocabulary without tokens")
    if vocabulary.scores and len(vocabulary.scores) != len(tokens):
        raise MalformedFile(path, _PREFIX + "scores", f"{len(vocabulary.scores)} elements for {len(tokens)} tokens")
    if len(set(tokens)) != len(tokens) or "" in tokens:
        raise UnsupportedArchitecture(f"{path}: two tokens have one text, or one has none.", hint=OTHER_DOOR)
    _check_names(vocabulary)


def _check_names(vocabulary: GgufVocabulary) -> None:
    """That what is cut out of a text first is certain."""
    path = vocabulary.path
    longest = max(map(len, vocabulary.tokens))
    if longest > _LONGEST_TOKEN:
        raise UnsupportedArchitecture(
            f"{path}: a token of {longest} characters; at most {_LONGEST_TOKEN} were expected.", hint=OTHER_DOOR
        )
    if crossed := overlaps(vocabulary.texts_of(UNKNOWN, CONTROL, USER_DEFINED)):
        raise UnsupportedArchitecture(
            f"{path}: names of tokens overlap ({crossed[0]!r}); which comes first is not proven here.", hint=OTHER_DOOR
        )


def _fingerprint(metadata: Mapping[str, MetaValue]) -> str:
    digest = hashlib.sha256()
    for name in _RULES_DECIDING_KEYS:
        digest.update(repr((name, metadata.get(_PREFIX + name))).encode())
    return digest.hexdigest()


def overlaps(texts: Iterable[str]) -> list[str]:
    """Texts in which two of ``texts`` claim the same characters and the one that begins later is the longer: there
    llama.cpp takes the longer, and a search from the left the first. A text and itself, and repeats of one character,
    are left out: there the two ways end alike."""
    names = list(texts)
    by_beginning: dict[str, list[str]] = {}
    for name in names:
        for end in range(1, len(name)):
            by_beginning.setdefault(name[:end], []).append(name)
    found = []
    for first in names:
        for start in range(1, len(first)):
            for second in by_beginning.get(first[start:], ()):
                same = second == first or len(set(first + second)) == 1
                if len(second.encode()) >= len(first.encode()) and not same:
                    found.append(first[:start] + second)
    return found


class GgufTokenizer:
    """See ``load_gguf_tokenizer``."""

    kind = "gguf"

    def __init__(self, *, source: str, vocabulary: GgufVocabulary) -> None:
        self.source = source
        self.vocabulary = vocabulary
        self.fingerprint = vocabulary.fingerprint
        self.bos_id = vocabulary.bos_id
        self.adds_bos = vocabulary.adds_bos
        self._num_tokens = len(vocabulary.tokens)
        # By parse_special. The second is made when it is asked for: a large vocabulary takes seconds.
        self._inner = {False: self._build(False)}
        self._has_stand_ins = self._inner[False].get_vocab_size() > self._num_tokens

    def _build(self, parse_special: bool) -> "tokenizers.Tokenizer":
        from kvscope.prompt.tokenizers.gguf_rules import build_tokenizer

        cut_out = (UNKNOWN, CONTROL, USER_DEFINED) if parse_special else (USER_DEFINED,)
        return build_tokenizer(self.vocabulary, self.vocabulary.texts_of(*cut_out))

    def _rules(self, parse_special: bool) -> "tokenizers.Tokenizer":
        if parse_special not in self._inner:
            self._inner[parse_special] = self._build(parse_special)
        return self._inner[parse_special]

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """The ids llama.cpp's ``/tokenize`` gives with ``add_special`` off."""
        return self._known(self._rules(parse_special).encode(writable(text), add_special_tokens=False).ids)

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        """The ids of ``encode`` and where each begins."""
        written = writable(text)
        found = self._rules(parse_special).encode(written, add_special_tokens=False)
        pairs = [(i, start) for i, (start, _) in zip(found.ids, found.offsets, strict=True) if i < self._num_tokens]
        return [i for i, _ in pairs], starts_in(text, written, [start for _, start in pairs])

    def encode_batch(self, texts: Sequence[str], *, parse_special: bool = False) -> list[list[int]]:
        """``encode`` of each text, on all cores."""
        rules = self._rules(parse_special)
        found = rules.encode_batch_fast([writable(text) for text in texts], add_special_tokens=False)
        return [self._known(each.ids) for each in found]

    def count(self, text: str) -> int:
        """How many ids ``encode(text)`` has."""
        return len(self.encode(text))

    def count_batch(self, texts: Sequence[str]) -> list[int]:
        """``count`` of each text, on all cores."""
        if self._has_stand_ins:
            return [len(ids) for ids in self.encode_batch(texts)]
        found = self.library.encode_batch_fast([writable(text) for text in texts], add_special_tokens=False)
        return [len(each) for each in found]

    @property
    def library(self) -> "tokenizers.Tokenizer":
        """The rules in the library's terms, names of control tokens being text."""
        return self._inner[False]

    def _known(self, ids: list[int]) -> list[int]:
        """Without the stand-ins for bytes that the vocabulary lacks: llama.cpp leaves those out."""
        if not self._has_stand_ins or max(ids, default=0) < self._num_tokens:
            return ids
        return [each for each in ids if each < self._num_tokens]
