"""Our own count of what a trial sends: by the tokenizer and the chat template in the model's files, where they are
known to be followed exactly; elsewhere the engine is asked before sending."""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.engine.base import ChatRequest
from kvscope.errors import KvscopeError
from kvscope.model.spec import ModelSpec
from kvscope.prompt.chat_template.template import CHATML, ChatTemplate, Rendering, load_template
from kvscope.prompt.conversation import Conversation, Image
from kvscope.prompt.counting.server_count import leading_bos
from kvscope.prompt.prompt_text import ids_of_text
from kvscope.prompt.reuse.rules import SentPrompt
from kvscope.prompt.reuse_engines.llama_cpp_turns import places_of, user_marker_ids
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer

FROM_FILES = "files"
FROM_ENGINE = "engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCount:
    """Prompt tokens as counted before sending, by whom, and how many times they begin with the BOS (None: not known,
    or the model has none)."""

    tokens: int
    counted_by: str
    leading_bos: int | None = None


class OwnCounter:
    """Counts requests with a model's own tokenizer and chat template, which are read when they are first needed."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._loaded: tuple[ChatTemplate, Tokenizer] | None = None
        self._failed = False

    def count(self, requests: Sequence[ChatRequest]) -> list[OwnCount | None]:
        """The count of each request; None where the files do not give it: their rules are not known to be followed
        exactly, a package is missing, the template refuses the conversation, or there is a picture in it, whose tokens
        are no text."""
        loaded = self._load()
        if loaded is None:
            return [None] * len(requests)
        template, tokenizer = loaded
        try:
            texts = _texts(template, requests)
            return [
                None if isinstance(text, KvscopeError) or _has_picture(request) else _counted(text, tokenizer)
                for request, text in zip(requests, texts, strict=True)
            ]
        except KvscopeError:
            return [None] * len(requests)

    def prompts(self, requests: Sequence[ChatRequest]) -> list[SentPrompt] | None:
        """The token ids of each request's prompt, as the engine sees them, without answers; None where the files do not
        give those of all."""
        loaded = self._load()
        if loaded is None or any(_has_picture(request) for request in requests):
            return None
        template, tokenizer = loaded
        try:
            marker = user_marker_ids(template, tokenizer)
            texts = _texts(template, requests)
            ids = [ids_of_text(text, tokenizer=tokenizer).ids for text in texts if isinstance(text, str)]
        except KvscopeError:
            return None
        if len(ids) < len(requests):
            return None
        return [
            SentPrompt(
                ids=each,
                answer_ids=(),
                user_starts=None if marker is None else places_of(marker, each),
                reuse=request.reuse_prefix,
            )
            for request, each in zip(requests, ids, strict=True)
        ]

    def text_tokens(self, text: str) -> int | None:
        """Tokens of a text that is sent by itself, with the token that begins a sequence where the model's own encoding
        has it; None where the files do not give them."""
        loaded = self._load()
        if loaded is None:
            return None
        try:
            return len(ids_of_text(text, tokenizer=loaded[1]).ids)
        except KvscopeError:
            return None

    def has_template(self) -> bool | None:
        """Whether the model's files bring a chat template; None where they cannot be read."""
        loaded = self._load()
        return None if loaded is None else loaded[0].name != CHATML

    def _load(self) -> tuple[ChatTemplate, Tokenizer] | None:
        if self._loaded is None and not self._failed:
            try:
                self._loaded = load_template(self._source, or_chatml=True), load_tokenizer(self._source)
            except KvscopeError:
                self._failed = True
        return self._loaded


def own_counter(model: ModelSpec) -> OwnCounter | None:
    """A counter for the model; None where it has no file of its own to read."""
    return None if model.file_path is None else OwnCounter(model.file_path)


def _has_picture(request: ChatRequest) -> bool:
    return any(isinstance(block, Image) for message in request.messages for block in message.blocks)


def _texts(template: ChatTemplate, requests: Sequence[ChatRequest]) -> list[str | KvscopeError]:
    """Each request's prompt: rendered together, but for those that are sent as a text."""
    rendered = iter(template.render_each([_rendering(request) for request in requests if request.text is None]))
    return [next(rendered) if request.text is None else request.text for request in requests]


def _rendering(request: ChatRequest) -> Rendering:
    conversation = Conversation(messages=request.messages, tools=request.tools)
    return Rendering(conversation=conversation, extra=request.template_variables)


def _counted(text: str, tokenizer: Tokenizer) -> OwnCount:
    ids = ids_of_text(text, tokenizer=tokenizer).ids
    return OwnCount(tokens=len(ids), counted_by=FROM_FILES, leading_bos=leading_bos(ids, tokenizer.bos_id))
