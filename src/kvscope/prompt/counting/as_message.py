"""Texts sent as one message of the user: the prompt that really is made of them, template and BOS included.

Templates trim texts, and names of control tokens in a text are read as such in a prompt, so what a template adds is no
constant. Texts of up to ``MOST_BYTES`` are rendered, one after another as ``cat`` joins them. Of longer ones only about
how many tokens is said: the texts' own, and what the template adds to a short one.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kvscope.errors import ChatTemplateError, UsageError
from kvscope.prompt.chat_template.template import ChatTemplate, Clock
from kvscope.prompt.conversation import Conversation, Message
from kvscope.prompt.counting.text_sources import STDIN, Source, Unreadable, read_source, read_stream
from kvscope.prompt.counting.texts_result import TextCounts
from kvscope.prompt.tokenizers.base import Tokenizer

MOST_BYTES = 1 << 20  # of the texts in UTF-8
_MOST_KEPT = 4 * MOST_BYTES + 4  # the same text in UTF-32, with its mark
# What an estimate may be off by: a hundredth, and what a template trims or adds.
_UNSURE_PART, _UNSURE_LEAST = 100, 64
_SHORT = "a"


@dataclass(frozen=True, slots=True, kw_only=True)
class AsMessage:
    """``tokens`` of the whole prompt; ``unsure_tokens``: by how many that may be off, 0 where it is exact."""

    tokens: int
    unsure_tokens: int = 0


class KeptStream(io.RawIOBase):
    """A stream that remembers what was read from it, as long as that is little; ``kept`` None: it was more."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self.kept: bytes | None = b""

    def read(self, size: int = -1) -> bytes:
        """The next bytes of the stream."""
        block = self._stream.read(size)
        if self.kept is not None:
            self.kept = self.kept + block if len(self.kept) + len(block) <= _MOST_KEPT else None
        return block


def count_as_message(
    texts: TextCounts, template: ChatTemplate, tokenizer: Tokenizer, clock: Clock, stdin: bytes | None
) -> AsMessage | None:
    """``texts`` as one message of the user. ``stdin``: the bytes of the text called "-". None where the template
    refuses it. Raises ChatTemplateError for a template that was stopped, and what the tokenizer raises."""
    text = _joined(texts, stdin)
    if text is not None:
        try:
            exact = _tokens_if_taken(text, template, tokenizer, clock)
            return None if exact is None else AsMessage(tokens=exact)
        except ChatTemplateError:
            pass  # stopped at a limit: for the text's length, else it will be stopped again
    short = _tokens_if_taken(_SHORT, template, tokenizer, clock)
    if short is None:
        return None
    tokens = texts.total.tokens[0] + short - tokenizer.count(_SHORT)
    return AsMessage(tokens=tokens, unsure_tokens=max(tokens // _UNSURE_PART, _UNSURE_LEAST))


def _tokens_if_taken(text: str, template: ChatTemplate, tokenizer: Tokenizer, clock: Clock) -> int | None:
    try:
        return _tokens(text, template, tokenizer, clock)
    except ChatTemplateError as error:
        if error.kind == "stopped":
            raise
        return None
    except UsageError:
        return None  # a vocabulary that does not say how names of control tokens are read


def _tokens(text: str, template: ChatTemplate, tokenizer: Tokenizer, clock: Clock) -> int:
    prompt = template.render(Conversation(messages=(Message(role="user", content=text),)), clock=clock)
    # As prompt_ids, without the places of the tokens, which take most of the time.
    ids = tokenizer.encode(prompt, parse_special=True)
    return len(ids) + (tokenizer.adds_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id])


def _joined(texts: TextCounts, stdin: bytes | None) -> str | None:
    """All texts one after another; None where they are too large, or not what they were when they were counted."""
    if texts.total.bytes > MOST_BYTES:
        return None
    pieces: list[str] = []
    try:
        for file in texts.files:
            pieces += _pieces(file.path, stdin)
    except Unreadable:
        return None
    text = "".join(pieces)
    return text if len(text) == texts.total.characters else None


def _pieces(path: str, stdin: bytes | None) -> Sequence[str]:
    if path == STDIN and stdin is not None:
        return [text for text, _ in read_stream(io.BytesIO(stdin))]
    return [text for text, _ in read_source(Source(path=Path(path), num_bytes=0))]
