"""The model's own chat template: from messages and tools to the text that the tokenizer is given.

Rendered as transformers renders it (transformers.utils.chat_template_utils), or as llama.cpp's server does, in a
process of its own with limits: a template is a program that came with the model.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from kvscope.errors import ChatTemplateError, KvscopeError, UnknownName, UsageError
from kvscope.prompt.chat_template import llama_cpp, transformers
from kvscope.prompt.chat_template.files import DEFAULT, LLAMA_CPP, TRANSFORMERS, find_templates, no_template
from kvscope.prompt.chat_template.render import DEFAULT_LIMITS, RenderLimits, render_in_child
from kvscope.prompt.conversation import Conversation

STYLES = (TRANSFORMERS, LLAMA_CPP)
TOOL_USE = "tool_use"
CHATML = "chatml"
# ChatML, which llama.cpp uses for a model that has no template of its own.
_CHATML_TEXT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# What a template takes does not depend on the day.
_ANY_DAY = datetime(2026, 1, 1)  # noqa: DTZ001  local, as templates show it
_OURS = ("messages", "tools", "add_generation_prompt")

Clock = Callable[[], datetime]


def local_time() -> datetime:
    """Now, on the machine's own clock and without a zone, as ``strftime_now`` means it in transformers."""
    return datetime.now()  # noqa: DTZ005 (templates show local time, as the library does)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """One text to be rendered. ``extra`` are further variables: documents, enable_thinking, builtin_tools ...

    ``continue_final_message``: the last message is left open, for the model to go on with it. None: as the engine does
    when nothing is said (llama.cpp continues a message of the assistant; transformers closes every message)."""

    conversation: Conversation
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Work:
    """Variables of one or more texts of the same template, and what is made of the texts."""

    variables: list[dict[str, Any]]
    join: Callable[[Sequence[str]], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """``name``: "default", the name it has in the model's files, or "chatml". ``variants``: the model's other
    templates by name; the one called tool_use is used where a conversation offers tools. ``special_tokens``: what the
    template finds as bos_token, eos_token ...; ``bos`` and ``eos`` are None where the files do not say them.
    ``style``: whose way of giving a conversation to the template is followed, one of STYLES;
    ``capabilities``: what a llama.cpp server says that the template takes, None to find it out as the server does."""

    text: str
    source: str
    name: str = DEFAULT
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)
    style: str = TRANSFORMERS
    capabilities: llama_cpp.Capabilities | None = None

    @property
    def bos(self) -> str | None:
        """The text of the token that begins a sequence."""
        return self.special_tokens.get("bos_token")

    @property
    def eos(self) -> str | None:
        """The text of the token that ends one."""
        return self.special_tokens.get("eos_token")

    def text_for(self, conversation: Conversation) -> str:
        """The template that this conversation is rendered with."""
        return self.variants.get(TOOL_USE, self.text) if conversation.tools else self.text

    def continues(self, conversation: Conversation, continue_final_message: bool | None) -> bool:
        """Whether the last message is left open (see ``Rendering``)."""
        if self.style == LLAMA_CPP:
            return llama_cpp.continues(conversation, continue_final_message)
        return bool(continue_final_message)

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool | None = None,
        clock: Clock = local_time,
        limits: RenderLimits = DEFAULT_LIMITS,
        extra: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> str:
        """The text of ``conversation``; ``extra`` and ``more`` are further variables of the template (enable_thinking
        ...).

        Raises ChatTemplateError when the template or the engine refuses it, it cannot be rendered, or was stopped at a
        limit; UsageError for an empty conversation or values that are not plain data.
        """
        rendering = Rendering(
            conversation=conversation,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            extra={**(extra or {}), **more},
        )
        answer = self.render_each([rendering], clock=clock, limits=limits)[0]
        if isinstance(answer, ChatTemplateError):
            raise answer
        return answer

    def render_each(
        self, renderings: Sequence[Rendering], *, clock: Clock = local_time, limits: RenderLimits = DEFAULT_LIMITS
    ) -> list[str | ChatTemplateError]:
        """Many at once, which costs one process for each template used instead of one for each text. An error stands
        in place of a text that the template refuses or cannot make; one that is stopped by a time limit is raised."""
        answers: dict[int, str | ChatTemplateError] = {}
        work: dict[str, dict[int, _Work]] = {}
        now = clock()
        for index, rendering in enumerate(renderings):
            text = self.text_for(rendering.conversation)
            try:
                work.setdefault(text, {})[index] = self._work(rendering, text, now, limits)
            except ChatTemplateError as error:
                if error.kind == "stopped":
                    raise
                answers[index] = error
        for text, jobs in work.items():
            variables = [each for job in jobs.values() for each in job.variables]
            texts = iter(render_in_child(text, variables, source=self.source, now=now, limits=limits))
            for index, job in jobs.items():
                answers[index] = _joined(job, [next(texts) for _ in job.variables])
        return [answers[index] for index in range(len(renderings))]

    def _work(self, rendering: Rendering, text: str, now: datetime, limits: RenderLimits) -> _Work:
        conversation = rendering.conversation
        if not conversation.messages:
            raise UsageError("A conversation without messages cannot be rendered.", hint="Give it one message or more.")
        taken = [name for name in _OURS if name in rendering.extra]
        if taken:
            raise UsageError(f"{taken[0]!r} cannot be given to a template as an extra value.", hint="It has its own.")
        if self.style == LLAMA_CPP:
            return self._llama_cpp_work(rendering, text, now, limits)
        is_continued = self.continues(conversation, rendering.continue_final_message)
        given = transformers.variables(conversation, is_continued=is_continued, text=text)
        variables = {"documents": None, **self.special_tokens, **rendering.extra, **given}
        # Where a message is continued, transformers lets nobody ask for a new one.
        variables["add_generation_prompt"] = rendering.add_generation_prompt and not is_continued
        return _Work([variables], lambda texts: transformers.cut(texts[0], conversation) if is_continued else texts[0])

    def _llama_cpp_work(self, rendering: Rendering, text: str, now: datetime, limits: RenderLimits) -> _Work:
        conversation = rendering.conversation
        extra = llama_cpp.numbers(dict(rendering.extra))
        capabilities = self.capabilities or _capabilities(
            text, self.source, tuple(sorted(self.special_tokens.items())), limits
        )

        def variables(of: Conversation, add_generation_prompt: bool) -> dict[str, Any]:
            given = llama_cpp.llama_cpp_variables(
                of, capabilities=capabilities, text=text, add_generation_prompt=add_generation_prompt, now=now
            )
            return {**self.special_tokens, **given, **extra}

        if not self.continues(conversation, rendering.continue_final_message):
            return _Work([variables(conversation, rendering.add_generation_prompt)], "".join)
        llama_cpp.check_continuation(conversation, text, self.source)
        before = Conversation(messages=conversation.messages[:-1], tools=conversation.tools)
        last = conversation.messages[-1]
        both = [variables(before, False), variables(before, True)]
        return _Work(both, lambda texts: llama_cpp.continued(texts[0], texts[1], last))


def _joined(work: _Work, texts: Sequence[str | ChatTemplateError]) -> str | ChatTemplateError:
    made = []
    for text in texts:
        if isinstance(text, ChatTemplateError):
            return text
        made.append(text)
    try:
        return work.join(made)
    except ChatTemplateError as error:
        return error


@functools.lru_cache(maxsize=32)
def _capabilities(
    text: str, source: str, special_tokens: tuple[tuple[str, str], ...], limits: RenderLimits
) -> llama_cpp.Capabilities:
    def render(trials: Sequence[Mapping[str, Any]]) -> list[str | ChatTemplateError]:
        variables = [{**dict(special_tokens), **trial} for trial in trials]
        return render_in_child(text, variables, source=source, now=_ANY_DAY, limits=limits)

    return llama_cpp.find_capabilities(render)


def load_other_template(source: str, model: str) -> ChatTemplate:
    """The chat template of ``source`` as the engine of ``model`` uses it: in the way that the model's own is used, with
    the model's special tokens. Raises what ``load_template`` raises of ``source``."""
    try:
        own = find_templates(model)
    except KvscopeError:
        return load_template(source)  # a tokenizer alone, of which no template is known
    template = load_template(source, style=own.style)
    return replace(template, special_tokens={**template.special_tokens, **own.special_tokens})


def load_template(
    source: str, *, name: str | None = None, or_chatml: bool = False, style: str | None = None
) -> ChatTemplate:
    """The chat template of ``source``: a model folder, a .gguf file, ``pkg:NAME``, tokenizer_config.json,
    chat_template.jinja, chat_template.json, or the http:// address of a running llama.cpp server.

    ``name`` picks one of several. ``or_chatml``: where the model has none, take ChatML, as llama.cpp does. ``style``:
    the engine whose way of using it is followed; None: llama.cpp for a GGUF or a server, transformers for other files.
    Raises MissingField where there is none, UnknownName for another name or style, ModelNotFound, MalformedFile; for a
    server ConnectionRefused, ConnectionLost, ServerError, EngineReplyError.
    """
    if style not in (None, *STYLES):
        raise UnknownName("way of using chat templates", str(style), STYLES)
    files = find_templates(source)
    if not files.texts and not (or_chatml and name in (None, CHATML)):
        raise no_template(source, files)
    texts = dict(files.texts) or {CHATML: _CHATML_TEXT}
    wanted = name or (DEFAULT if files.texts else CHATML)
    if wanted not in texts:
        raise UnknownName(f"chat template in {source}", wanted, texts)
    return ChatTemplate(
        text=texts.pop(wanted),
        source=source,
        name=wanted,
        special_tokens=files.special_tokens,
        # A template that was asked for by name is used whatever the conversation holds.
        variants=texts if name is None else {},
        style=style or files.style,
        capabilities=files.capabilities,
    )
