"""count_tokens(): the answer of ``kvscope count``: texts and conversations by part, whether they fit, their price."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvscope.errors import ChatTemplateError, KvscopeError, UsageError
from kvscope.prompt.chat_template.template import CHATML, ChatTemplate, Clock, load_other_template, local_time
from kvscope.prompt.conversation import RETRIEVED
from kvscope.prompt.conversation_file import LoadedRequest, RequestLog
from kvscope.prompt.counting.as_message import AsMessage, KeptStream, count_as_message
from kvscope.prompt.counting.compared import Compared, compare, template_of, tokenizer_fields
from kvscope.prompt.counting.context_fit import ContextFit, ContextLimit, Price, limit_of
from kvscope.prompt.counting.image_tokens import image_cost
from kvscope.prompt.counting.request import RequestTokens, count_request
from kvscope.prompt.counting.request_rows import Amount
from kvscope.prompt.counting.request_spans import PARTS, USER, NamedText
from kvscope.prompt.counting.text_sources import Source, Unreadable, read_source
from kvscope.prompt.counting.texts import Progress, count_texts
from kvscope.prompt.counting.texts_result import TextCounts, encodable
from kvscope.prompt.counting.without_template import count_contents
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer

SCHEMA = "kvscope.count/1"
_MOST_AT_ONCE = 8  # requests


@dataclass(frozen=True, slots=True, kw_only=True)
class CountedRequest:
    """A conversation with the output tokens that are to be left free for its answer."""

    counted: RequestTokens
    reserved_output_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCount:
    """Everything that was counted. ``requests`` are the conversations, ``texts`` the files beside them (None where
    there are none). ``as_message``: the texts sent as one message of the user; None where that is not known or there
    are conversations. ``reserved_output_tokens``: for texts alone."""

    tokenizer: Tokenizer
    template: ChatTemplate | None
    requests: tuple[CountedRequest, ...]
    texts: TextCounts | None
    limit: ContextLimit
    reserved_output_tokens: int = 0
    as_message: AsMessage | None = None
    compared: tuple[Compared, ...] = ()
    price: Price | None = None
    warnings: tuple[str, ...] = ()
    skipped: tuple[Mapping[str, str], ...] = ()

    @property
    def total_tokens(self) -> int:
        """All requests and all texts."""
        return sum(each.counted.total_tokens for each in self.requests) + self._text_amount().tokens

    def part(self, name: str) -> Amount:
        """One part of all requests; texts are the user's where they stand alone, else retrieved."""
        found = sum((each.counted.part(name) for each in self.requests), Amount())
        is_of_texts = name == (RETRIEVED if self.requests else USER)
        return found + self._text_amount() if is_of_texts else found

    def _text_amount(self) -> Amount:
        if self.texts is None:
            return Amount()
        total = self.texts.total
        return Amount(characters=total.characters, bytes=total.bytes, tokens=total.tokens[0])

    def fits(self) -> tuple[ContextFit, ...]:
        """One for each request with all texts beside it; without requests, one for all texts as one message."""
        beside = self._text_amount().tokens
        if not self.requests:
            sent = self.as_message
            return (
                ContextFit(
                    limit=self.limit,
                    prompt_tokens=beside if sent is None else sent.tokens,
                    reserved_output_tokens=self.reserved_output_tokens,
                    is_whole=not self._skipped_texts and (sent is not None or self.template is None),
                    unsure_tokens=0 if sent is None else sent.unsure_tokens,
                ),
            )
        return tuple(
            ContextFit(
                limit=self.limit,
                prompt_tokens=each.counted.total_tokens + beside,
                reserved_output_tokens=each.reserved_output_tokens,
                is_whole=each.counted.is_whole and not self._skipped_texts,
            )
            for each in self.requests
        )

    @property
    def _skipped_texts(self) -> bool:
        return self.texts is not None and bool(self.texts.skipped)

    @property
    def as_message_adds_tokens(self) -> int | None:
        """What chat template and BOS add to the texts, less what they trim and read as control tokens."""
        return None if self.as_message is None else self.as_message.tokens - self._text_amount().tokens

    def to_dict(self) -> dict[str, Any]:
        """What ``kvscope count --json`` prints. Names of files that are no UTF-8 are shown with U+FFFD."""
        found = self._fields()
        shown: dict[str, Any] = encodable(found)
        if shown != found:
            shown["warnings"].append("Bytes of names that are not UTF-8 are shown as \ufffd.")
        return shown

    def _fields(self) -> dict[str, Any]:
        fits = self.fits()
        answers = [fit.fits for fit in fits]
        largest = max(fits, key=lambda fit: fit.needed_tokens)
        characters = sum(self.part(name).characters for name in PARTS)
        template = self.template
        return {
            "schema": SCHEMA,
            "tokenizer": tokenizer_fields(self.tokenizer),
            "template": None if template is None else {"source": template.source, "name": template.name},
            "parts": [self._part_fields(name) for name in PARTS],
            "total_tokens": self.total_tokens,
            "tokens_per_character": self.total_tokens / characters if characters else None,
            **largest.to_dict(),
            "fits": False if False in answers else None if None in answers else True,
            "requests": [
                {**each.counted.to_dict(), **fit.to_dict(), "price": self._price([fit])}
                for each, fit in zip(self.requests, fits, strict=False)
            ],
            "texts": None if self.texts is None else self.texts.to_dict(),
            "as_message_adds_tokens": self.as_message_adds_tokens,
            "as_message_unsure_tokens": None if self.as_message is None else self.as_message.unsure_tokens,
            "compared": [each.to_dict() for each in self.compared],
            "price": self._price(fits),
            "warnings": list(self.warnings),
            "skipped": [dict(each) for each in self.skipped],
        }

    def _part_fields(self, name: str) -> dict[str, Any]:
        amount = self.part(name)
        return {"name": name, "characters": amount.characters, "bytes": amount.bytes, "tokens": amount.tokens}

    def _price(self, fits: Sequence[ContextFit]) -> dict[str, Any] | None:
        if self.price is None:
            return None
        return self.price.to_dict(
            sum(fit.prompt_tokens for fit in fits), sum(fit.reserved_output_tokens for fit in fits)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class CountQuestion:
    """What is to be counted, and how. ``paths``: files and folders of text; ``stdin`` is "-" among them. ``log``: the
    conversations. ``retrieved``: files whose text was looked up, to be found in the messages. ``tokenizers``: further
    ones to count with beside the model's. ``template``: where another chat template than the model's is.
    ``reserve_output`` None: what each request asks for itself. ``context`` None: what the model was trained for.
    ``on_request`` is called with how many requests are counted, and of how many."""

    model: str
    paths: Sequence[Path] = ()
    log: RequestLog | None = None
    retrieved: Sequence[Path] = ()
    tokenizers: Sequence[str] = ()
    use_template: bool = True
    template: str | None = None
    reserve_output: int | None = None
    context: int | None = None
    price: Price | None = None
    stdin: BinaryIO | None = None
    progress: Progress | None = None
    on_request: Callable[[int, int], None] | None = None
    clock: Clock = local_time


def count_tokens(question: CountQuestion) -> TokenCount:
    """The answer. Raises UsageError where nothing is to be counted, and what loading the model, its template, the
    tokenizers and the files raises."""
    if not question.paths and question.log is None:
        raise UsageError("Nothing is to be counted.", hint="Name files or folders, or --conversation FILE.")
    limit = limit_of(question.context, question.model)
    named = [_named_text(path) for path in question.retrieved]
    tokenizer = load_tokenizer(question.model)
    others = [load_tokenizer(source) for source in question.tokenizers]
    template = _template(question, tokenizer)
    texts = sent = None
    if question.paths:
        stdin = None if question.stdin is None else KeptStream(question.stdin)
        texts = count_texts(
            question.paths, [tokenizer, *others], progress=question.progress, stdin=cast("BinaryIO | None", stdin)
        )
        _check_some_text(question, texts)
        if template is not None and question.log is None:
            sent = count_as_message(texts, template, tokenizer, question.clock, None if stdin is None else stdin.kept)
    count = _counter(question.model, tokenizer, template, named, question.clock)
    requests, problems = _count_each(question, count)
    loaded = question.log.requests if question.log is not None else ()
    return TokenCount(
        tokenizer=tokenizer,
        template=template,
        requests=tuple(requests),
        texts=texts,
        limit=limit,
        reserved_output_tokens=question.reserve_output or 0,
        as_message=sent,
        compared=compare(question.clock, question.use_template, loaded, texts, [tokenizer, *others]) if others else (),
        price=question.price,
        warnings=(*_warnings(question, texts, template), *_text_warnings(texts, template, sent, question)),
        skipped=(*_skipped_texts(texts), *problems),
    )


def _check_some_text(question: CountQuestion, texts: TextCounts) -> None:
    """Nothing at all is no count of zero: a name may be mistyped."""
    if texts.files:
        return
    named = ", ".join(str(path) for path in question.paths)
    reason = f"{texts.skipped[0].path}: {texts.skipped[0].reason}" if texts.skipped else f"{named} holds no files"
    more = f" (and {len(texts.skipped) - 1:,} more)" if len(texts.skipped) > 1 else ""
    raise UsageError(f"No text was counted. {reason}{more}.", hint="Name files or folders of text, or - for stdin.")


def _named_text(path: Path) -> NamedText:
    try:
        text = "".join(piece for piece, _ in read_source(Source(path=path, num_bytes=0)))
    except Unreadable as error:
        raise UsageError(f"{path} is not counted: {error}.", hint="--retrieved takes files of text.") from None
    if not text.strip():
        raise UsageError(f"{path} holds no text.", hint="--retrieved takes files of text.")
    return NamedText(name=str(path), text=text)


def _template(question: CountQuestion, tokenizer: Tokenizer) -> ChatTemplate | None:
    if question.template is not None and not question.use_template:
        raise UsageError("A template is given, and none is to be used.", hint="Leave out one of the two.")
    if question.template is not None:
        return load_other_template(question.template, question.model)
    return template_of(question.model, tokenizer) if question.use_template else None


def _counter(
    model: str, tokenizer: Tokenizer, template: ChatTemplate | None, named: Sequence[NamedText], clock: Clock
) -> Callable[[LoadedRequest], RequestTokens]:
    if template is None:
        return partial(_contents, tokenizer=tokenizer)
    return partial(_with_template, template=template, tokenizer=tokenizer, named=named, model=model, clock=clock)


def _contents(request: LoadedRequest, *, tokenizer: Tokenizer) -> RequestTokens:
    return count_contents(request, tokenizer=tokenizer)


def _with_template(
    request: LoadedRequest,
    *,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    named: Sequence[NamedText],
    model: str,
    clock: Clock,
) -> RequestTokens:
    return count_request(
        request,
        template=template,
        tokenizer=tokenizer,
        retrieved=named,
        cost_of_image=lambda image: image_cost(image, model),
        clock=clock,
    )


def _count_each(
    question: CountQuestion, count: Callable[[LoadedRequest], RequestTokens]
) -> tuple[list[CountedRequest], list[dict[str, str]]]:
    """Each request, and those that cannot be counted with the reason. Raises the first reason where none can."""
    if question.log is None:
        return [], []
    requests: list[CountedRequest] = []
    skipped = [
        {"path": error.path, "reason": error.message.removeprefix(f"{error.path}: ")} for error in question.log.problems
    ]
    first: KvscopeError | None = None
    loaded = question.log.requests
    for index, (request, answer) in enumerate(zip(loaded, _answers(loaded, count), strict=True), start=1):
        if isinstance(answer, ChatTemplateError | UsageError):
            if isinstance(answer, ChatTemplateError) and answer.kind == "stopped":
                raise answer  # no template that is to be used again, whatever the next request is
            first = first or answer
            skipped.append({"path": request.source, "reason": answer.message})
        else:
            reserved = (request.max_output_tokens or 0) if question.reserve_output is None else question.reserve_output
            # A log may be large, and the texts of its prompts are not needed any more.
            requests.append(CountedRequest(counted=replace(answer, text=""), reserved_output_tokens=reserved))
        if question.on_request is not None:
            question.on_request(index, len(loaded))
    if first is not None and not requests:
        raise first
    return requests, skipped


def _answers(
    loaded: Sequence[LoadedRequest], count: Callable[[LoadedRequest], RequestTokens]
) -> Iterator[RequestTokens | ChatTemplateError | UsageError]:
    """The count of each, or why it has none, in order. Most of the time goes into the processes that templates
    are rendered in, so several requests are counted at once."""

    def answer(request: LoadedRequest) -> RequestTokens | ChatTemplateError | UsageError:
        try:
            return count(request)
        except (ChatTemplateError, UsageError) as error:
            return error

    # Alone, for what tokenizers make when they are first used.
    yield from map(answer, loaded[:1])
    pool = ThreadPoolExecutor(max_workers=min(_MOST_AT_ONCE, os.cpu_count() or 1))
    try:
        yield from pool.map(answer, loaded[1:])
    finally:
        pool.shutdown(cancel_futures=True)


def _skipped_texts(texts: TextCounts | None) -> list[dict[str, str]]:
    return [] if texts is None else [{"path": each.path, "reason": each.reason} for each in texts.skipped]


def _warnings(question: CountQuestion, texts: TextCounts | None, template: ChatTemplate | None) -> list[str]:
    warnings = []
    if question.use_template and template is None:
        warnings.append(f"{question.model} comes with no chat template.")
    if template is not None and template.name == CHATML:
        warnings.append(
            f"{question.model} has no chat template: ChatML is counted, which llama.cpp's server uses then."
        )
    if question.log is not None and texts is not None:
        warnings.append(
            "The files are counted each for itself, beside the conversation. Put into a message, they may take a token "
            "more or less where they meet other text."
        )
    if question.retrieved and template is None:
        warnings.append("--retrieved looks into a prompt with its chat template; without one it finds nothing.")
    return warnings


def _text_warnings(
    texts: TextCounts | None, template: ChatTemplate | None, sent: AsMessage | None, question: CountQuestion
) -> list[str]:
    """Why it is not known, or not exactly, whether the texts fit."""
    if texts is None:
        return []
    warnings = []
    if texts.skipped:
        warnings.append("Not all that was named is counted (see below), so whether all of it fits is not known.")
    if template is None or question.log is not None:
        return warnings
    if sent is None:
        warnings.append("The chat template does not take these texts as a message, so that prompt is not counted.")
    elif sent.unsure_tokens:
        warnings.append(
            f"As one message, this is about {sent.tokens:,} tokens: texts this long are not put into the template. "
            f"Whether they fit is said where {sent.unsure_tokens:,} tokens more or less do not decide it."
        )
    return warnings
