"""What was said of reuse, held against the engine: requests are sent in order to an engine that was just loaded, and
each prediction, made before its request is sent, is compared with the cached tokens that the engine states."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kvscope.engine.base import ChatRequest, Engine, Generation
from kvscope.errors import ChatTemplateError, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.prompt_text import as_read_by, continuation, ids_of_text
from kvscope.prompt.reuse.request_keys import allows_reuse, doubt_of
from kvscope.prompt.reuse.rules import Reusable, SentPrompt, reused_in_order
from kvscope.prompt.reuse_engines.llama_cpp_turns import places_of, user_marker_ids
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.scenario import SettingValue


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedReuse:
    """One request. ``prompt_tokens_ours`` and ``_server``: where they differ, the engine saw another prompt than the
    one that was compared. None: the server does not state it, or the rule does not decide it. ``ttft_s``: seconds to
    the first token."""

    source: str
    prompt_tokens_ours: int
    prompt_tokens_server: int | None
    predicted_tokens: int | None
    cached_tokens: int | None
    status: str
    because: str
    ttft_s: float | None = None

    @property
    def is_equal(self) -> bool | None:
        """Whether the engine reused what was predicted; None where one of the two is not known."""
        if self.predicted_tokens is None or self.cached_tokens is None:
            return None
        return self.predicted_tokens == self.cached_tokens

    def to_dict(self) -> dict[str, Any]:
        """The fields and ``is_equal``, for JSON."""
        return {**asdict(self), "is_equal": self.is_equal}


def confirm(
    engine: Engine,
    requests: Sequence[LoadedRequest],
    prompts: Sequence[SentPrompt],
    *,
    predict: Callable[[Sequence[SentPrompt]], Reusable],
    ids_of_text: Callable[[str], Sequence[int]],
    output_tokens: int = 1,
) -> list[ConfirmedReuse]:
    """Send ``requests`` in order to ``engine``, which is loaded and has answered nothing yet.

    ``prompts``: the requests' prompts (their ``answer_ids`` are not looked at). ``predict``: what the last of several
    prompts reuses of those before it. ``ids_of_text``: an answer's ids. ``output_tokens``: how long every answer is; it
    adds all but its last token to what the engine holds, so that with 1 the prompts alone are held.

    A request that forbids reuse (cache_prompt) is sent so. Raises UsageError for one without a generation prompt or
    with a slot of its own (id_slot), EngineError as the engine does.
    """
    chats = [
        _chat(request, output_tokens, reuse=prompt.reuse is not False)
        for request, prompt in zip(requests, prompts, strict=True)
    ]
    sent: list[SentPrompt] = []
    rows = []
    for request, prompt, chat in zip(requests, prompts, chats, strict=True):
        predicted = predict([*sent, prompt])
        answer = engine.generate(chat)
        text = "".join(event.text for event in answer.events)
        ids = tuple(ids_of_text(text)) if output_tokens > 1 else ()
        # A single token is never read again, whatever it is.
        sent.append(replace(prompt, answer_ids=ids or (0,)))
        rows.append(_confirmed(request, prompt, predicted, answer))
    return rows


def _confirmed(request: LoadedRequest, prompt: SentPrompt, predicted: Reusable, answer: Generation) -> ConfirmedReuse:
    return ConfirmedReuse(
        source=request.source,
        prompt_tokens_ours=len(prompt.ids),
        prompt_tokens_server=answer.prompt_tokens,
        predicted_tokens=predicted.tokens,
        cached_tokens=answer.cached_tokens,
        status=predicted.status,
        because=predicted.because,
        ttft_s=next((event.at_s for event in answer.events if event.text), None),
    )


def confirm_requests(
    engine: Engine,
    requests: Sequence[LoadedRequest],
    *,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    model: ModelSpec | None,
    engine_version: str | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    output_tokens: int = 1,
) -> list[ConfirmedReuse]:
    """As ``confirm``, with the engine's own rule; ``settings`` None: those of ``engine``. Raises as ``confirm``, as the
    rule, and what the template and the tokenizer raise."""
    requests = [as_read_by(request, template) for request in requests]
    effective = engine.settings if settings is None else settings

    def predict(prompts: Sequence[SentPrompt]) -> Reusable:
        return reused_in_order(
            prompts, engine=engine.name, engine_version=engine_version, model=model, settings=effective
        )[-1]

    by_default = effective.get("cache_prompt") is not False
    prompts = []
    for request, prompt in zip(requests, sent_prompts(requests, template=template, tokenizer=tokenizer), strict=True):
        stated = allows_reuse(request, engine.name)
        reuse = by_default if stated is None else stated
        prompts.append(replace(prompt, reuse=reuse, doubt=doubt_of(request, engine.name)))
    return confirm(
        engine, requests, prompts, predict=predict, ids_of_text=tokenizer.encode, output_tokens=output_tokens
    )


def sent_prompts(
    requests: Sequence[LoadedRequest], *, template: ChatTemplate, tokenizer: Tokenizer
) -> list[SentPrompt]:
    """The prompts of ``requests`` as llama.cpp sees them, all rendered at once. Raises ChatTemplateError for one that
    the template refuses, and what the tokenizer raises."""
    requests = [as_read_by(request, template) for request in requests]
    renderings = [
        Rendering(
            conversation=request.conversation,
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=continuation(request),
            extra=request.extra,
        )
        for request in requests
    ]
    marker = user_marker_ids(template, tokenizer)
    prompts = []
    for text in template.render_each(renderings):
        if isinstance(text, ChatTemplateError):
            raise text
        ids = ids_of_text(text, tokenizer=tokenizer).ids
        starts = None if marker is None else places_of(marker, ids)
        prompts.append(SentPrompt(ids=ids, answer_ids=(), user_starts=starts))
    return prompts


def _chat(request: LoadedRequest, output_tokens: int, *, reuse: bool) -> ChatRequest:
    if request.body.get("id_slot") not in (None, -1):
        raise UsageError(
            f"{request.source} asks for a slot (id_slot), which is not sent here.",
            hint="Leave id_slot out to confirm, or leave out --confirm.",
        )
    if not request.add_generation_prompt:
        raise UsageError(
            f"{request.source} asks for no answer (add_generation_prompt is false).",
            hint="Leave add_generation_prompt out: a request is confirmed by having it answered.",
        )
    return ChatRequest(
        messages=request.conversation.messages,
        tools=request.conversation.tools,
        template_variables=request.extra,
        max_output_tokens=output_tokens,
        reuse_prefix=reuse,
    )
