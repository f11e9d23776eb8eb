"""The model's own chat template: from messages and tools to the text that the tokenizer is given.

Rendered as transformers renders it (transformers.utils.chat_template_utils), in a process of its own with limits: a
template is a program that came with the model.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from kvscope.errors import ChatTemplateError, UnknownName, UsageError
from kvscope.prompt.chat_template_files import DEFAULT, find_templates, no_template
from kvscope.prompt.chat_template_render import DEFAULT_LIMITS, RenderLimits, render_in_child
from kvscope.prompt.conversation import Conversation, Message

TOOL_USE = "tool_use"
CHATML = "chatml"
# ChatML, which llama.cpp uses for a model that has no template of its own.
_CHATML_TEXT = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_OURS = ("messages", "tools", "add_generation_prompt")

Clock = Callable[[], datetime]


def local_time() -> datetime:
    """Now, on the machine's own clock and without a zone, as ``strftime_now`` means it in transformers."""
    return datetime.now()  # noqa: DTZ005 (templates show local time, as the library does)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """One text to be rendered. ``extra`` are further variables: documents, enable_thinking, builtin_tools ..."""

    conversation: Conversation
    add_generation_prompt: bool = True
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """``name``: "default", the name it has in the model's files, or "chatml". ``variants``: the model's other
    templates by name; the one called tool_use is used where a conversation offers tools. ``special_tokens``: what the
    template finds as bos_token, eos_token ...; ``bos`` and ``eos`` are None where the files do not say them."""

    text: str
    source: str
    name: str = DEFAULT
    special_tokens: Mapping[str, str] = field(default_factory=dict)
    variants: Mapping[str, str] = field(default_factory=dict)

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

    def render(
        self,
        conversation: Conversation,
        *,
        add_generation_prompt: bool = True,
        clock: Clock = local_time,
        limits: RenderLimits = DEFAULT_LIMITS,
        **extra: Any,
    ) -> str:
        """The text of ``conversation``; ``extra`` are further variables of the template (enable_thinking ...).

        Raises ChatTemplateError when the template refuses it, cannot be rendered, or was stopped at a limit;
        UsageError for an empty conversation or values that are not plain data.
        """
        rendering = Rendering(conversation=conversation, add_generation_prompt=add_generation_prompt, extra=extra)
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
        by_text: dict[str, list[int]] = {}
        for index, rendering in enumerate(renderings):
            by_text.setdefault(self.text_for(rendering.conversation), []).append(index)
        now = clock()
        for text, indexes in by_text.items():
            variables = [self._variables(renderings[index]) for index in indexes]
            texts = render_in_child(text, variables, source=self.source, now=now, limits=limits)
            answers.update(zip(indexes, texts, strict=True))
        return [answers[index] for index in range(len(renderings))]

    def _variables(self, rendering: Rendering) -> dict[str, Any]:
        if not rendering.conversation.messages:
            raise UsageError("A conversation without messages cannot be rendered.", hint="Give it one message or more.")
        taken = [name for name in _OURS if name in rendering.extra]
        if taken:
            raise UsageError(f"{taken[0]!r} cannot be given to a template as an extra value.", hint="It has its own.")
        tools = rendering.conversation.tools
        return {
            "documents": None,
            **self.special_tokens,
            **rendering.extra,
            "messages": [template_message(message) for message in rendering.conversation.messages],
            "tools": list(tools) if tools else None,
            "add_generation_prompt": rendering.add_generation_prompt,
        }


def template_message(message: Message) -> dict[str, Any]:
    """``message`` as templates know it: what it does not have is left out, and its reasoning has both names in use."""
    found: dict[str, Any] = {} if message.reasoning is None else {"thinking": message.reasoning}
    found |= {"role": message.role, "content": message.content}
    if message.name is not None:
        found["name"] = message.name
    if message.tool_calls:
        found["tool_calls"] = list(message.tool_calls)
    if message.tool_call_id is not None:
        found["tool_call_id"] = message.tool_call_id
    if message.reasoning is not None:
        found["reasoning_content"] = message.reasoning
    return found


def load_template(source: str, *, name: str | None = None, or_chatml: bool = False) -> ChatTemplate:
    """The chat template of ``source``: a model folder, a .gguf file, ``pkg:NAME``, tokenizer_config.json,
    chat_template.jinja or chat_template.json.

    ``name`` picks one of several. ``or_chatml``: where the model has none, take ChatML, as llama.cpp does.
    Raises MissingField where there is none, UnknownName for another name, ModelNotFound, MalformedFile.
    """
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
    )
