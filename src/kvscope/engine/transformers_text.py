"""From a conversation to the token ids that transformers is given, and from its tokens back to text.

The model's own chat template and, where its tokenizer.json gives it, its tokenizer are read and used here, in kvscope's
process, so that the engine's holds the model alone. A tokenizer of another kind is transformers' own, in the worker. A
model that has none at all (a config alone) gets one token a byte.
"""

import codecs
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kvscope.errors import InvalidSettings, KvscopeError, ModelNotFound
from kvscope.prompt.chat_template.files import TRANSFORMERS
from kvscope.prompt.chat_template.template import CHATML, load_template
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.prompt_text import ids_of_text
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.bytes import BytesTokenizer
from kvscope.prompt.tokenizers.hf import HuggingFaceTokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer

BYTE_VALUES = 256
# Files of which transformers can make a tokenizer, besides the tokenizer.json that is read here.
_OTHER_TOKENIZERS = ("tokenizer_config.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
# Renderings that are kept, by template and by what was rendered: each costs a process, and the same messages are asked
# about again and again, by one trial after another.
_rendered: dict[tuple[str, str], str] = {}
_MOST_RENDERED = 128

Encode = Callable[[str], Sequence[int]]


class Pieces(Protocol):
    """Tokens of one answer, in order, to pieces of text."""

    def add(self, token_id: int) -> str:
        """What this token adds; "" while a character is not whole."""
        ...

    def rest(self) -> str:
        """What is left when no more come: characters that never became whole, as U+FFFD."""
        ...


class TransformersText:
    """``in_worker``: the tokenizer is transformers' own, and the engine is to be asked for ids and pieces. ``notes``:
    what was taken in place of files that are not there."""

    def __init__(self, folder: Path, *, vocab_size: int) -> None:
        self._template = load_template(str(folder), or_chatml=True, style=TRANSFORMERS)
        self.tokenizer, self.in_worker = _tokenizer(folder)
        self._vocab_size = vocab_size
        if isinstance(self.tokenizer, BytesTokenizer) and vocab_size < BYTE_VALUES:
            raise InvalidSettings(
                f"The model has no tokenizer, and with a vocabulary of {vocab_size} its tokens cannot stand for bytes.",
                hint=f"Put its tokenizer.json beside config.json, or use a vocab_size of {BYTE_VALUES} or more.",
            )

    @property
    def notes(self) -> tuple[str, ...]:
        """Plain sentences."""
        found = []
        if self._template.name == CHATML:
            found.append("The folder has no chat template; ChatML is used.")
        if isinstance(self.tokenizer, BytesTokenizer):
            found.append("The folder has no tokenizer; each byte of the prompt's UTF-8 is one token, its value the id.")
        if self.in_worker:
            found.append("The tokenizer is transformers' own, in the engine's process; its memory is counted there.")
        return tuple(found)

    def ids(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        template_variables: Mapping[str, Any],
        encode: Encode,
    ) -> tuple[int, ...]:
        """The prompt, its template included. ``encode`` is asked where the tokenizer is in the worker. Raises
        ChatTemplateError, InvalidSettings (ids that the model has no place for)."""
        return self.text_ids(self._rendered(messages, tools, template_variables), encode)

    def text_ids(self, text: str, encode: Encode, *, with_special: bool = True) -> tuple[int, ...]:
        """Ids of a text as a prompt, marks in it read as such. ``with_special``: BOS before it where the model wants
        one and ``encode``, where it is asked, adds it. Raises InvalidSettings as ``ids``."""
        if self.in_worker:
            found = tuple(encode(text))
        elif with_special:
            found = ids_of_text(text, tokenizer=self._own()).ids
        else:
            found = tuple(self._own().encode_with_starts(text, parse_special=True)[0])
        if found and max(found) >= self._vocab_size > 0:
            raise InvalidSettings(
                f"The tokenizer gives the id {max(found)}; the model's vocabulary has {self._vocab_size} tokens.",
                hint="The tokenizer beside config.json is another model's. Use its own.",
            )
        return found

    def pieces(self) -> Pieces:
        """For one answer. Not where the tokenizer is in the worker."""
        own = self._own()
        return _TokenizerPieces(own) if isinstance(own, HuggingFaceTokenizer) else _BytePieces()

    def _own(self) -> Tokenizer:
        assert self.tokenizer is not None
        return self.tokenizer

    def _rendered(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]
    ) -> str:
        conversation = Conversation(messages=tuple(messages), tools=tuple(tools))
        template = repr((self._template.text_for(conversation), sorted(self._template.special_tokens.items())))
        key = (template, repr((conversation, sorted(variables.items()))))
        if key not in _rendered:
            while len(_rendered) >= _MOST_RENDERED:
                _rendered.pop(next(iter(_rendered)))
            _rendered[key] = self._template.render(conversation, extra=variables)
        return _rendered[key]


def _tokenizer(folder: Path) -> tuple[Tokenizer | None, bool]:
    """(the tokenizer that is used here, whether transformers' own is used in its place)."""
    beside = folder if folder.is_dir() else folder.parent
    try:
        found = load_tokenizer(str(beside))
    except ModelNotFound:
        if any((beside / name).is_file() for name in _OTHER_TOKENIZERS):
            return None, True
        return BytesTokenizer(), False
    except KvscopeError:
        return None, True
    return (found, False) if isinstance(found, HuggingFaceTokenizer) else (None, True)


class _BytePieces:
    """Ids that are bytes; others by their number."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, token_id: int) -> str:
        if token_id < BYTE_VALUES:
            return self._decoder.decode(bytes([token_id]))
        return self.rest() + f"<{token_id}>"

    def rest(self) -> str:
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text


class _TokenizerPieces:
    """The tokenizers library's own stream: it holds a token back until its characters are whole."""

    def __init__(self, tokenizer: HuggingFaceTokenizer) -> None:
        from tokenizers.decoders import DecodeStream

        self._library = tokenizer.library
        self._stream = DecodeStream(skip_special_tokens=False)
        self._held = 0

    def add(self, token_id: int) -> str:
        text: str | None = self._stream.step(self._library, token_id)
        self._held = 0 if text else self._held + 1
        return text or ""

    def rest(self) -> str:
        return "\ufffd" if self._held else ""
