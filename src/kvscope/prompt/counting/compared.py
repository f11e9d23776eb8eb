"""The same texts and conversations with several tokenizers, side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kvscope.errors import ChatTemplateError, MissingField, ModelNotFound, UsageError
from kvscope.prompt.chat_template.template import ChatTemplate, Clock, load_template
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.counting.texts_result import TextCounts
from kvscope.prompt.counting.without_template import count_contents
from kvscope.prompt.prompt_text import prompt_ids
from kvscope.prompt.tokenizers.base import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The same texts with one tokenizer. ``content_tokens``: what was written, each text for itself; the same rule for
    every tokenizer. ``prompt_tokens``: of the conversations, with the template that comes with this tokenizer; None
    where none does or it refuses them."""

    tokenizer: Tokenizer
    content_tokens: int
    prompt_tokens: int | None

    def to_dict(self) -> dict[str, Any]:
        """Its fields in JSON."""
        return {
            **tokenizer_fields(self.tokenizer),
            "content_tokens": self.content_tokens,
            "prompt_tokens": self.prompt_tokens,
        }


def tokenizer_fields(tokenizer: Tokenizer) -> dict[str, Any]:
    """Which tokenizer it is, in JSON."""
    return {"source": tokenizer.source, "kind": tokenizer.kind, "fingerprint": tokenizer.fingerprint}


def template_of(model: str, tokenizer: Tokenizer) -> ChatTemplate | None:
    """The model's chat template; None where it has none."""
    try:
        return load_template(model, or_chatml=tokenizer.kind == "gguf")
    except (MissingField, ModelNotFound):
        return None


def compare(
    clock: Clock,
    use_template: bool,
    loaded: Sequence[LoadedRequest],
    texts: TextCounts | None,
    tokenizers: Sequence[Tokenizer],
) -> tuple[Compared, ...]:
    """What each of ``tokenizers`` counts, the first of which is the model's own. ``texts`` are counted with the same
    ones. Raises what tokenizers and templates raise when they are loaded."""
    found = []
    for index, tokenizer in enumerate(tokenizers):
        of_texts = 0 if texts is None else texts.total.tokens[index]
        contents = sum(count_contents(request, tokenizer=tokenizer).total_tokens for request in loaded)
        template = template_of(tokenizer.source, tokenizer) if use_template and loaded else None
        prompt = None if template is None else _prompt_tokens(loaded, template, tokenizer, clock)
        found.append(Compared(tokenizer=tokenizer, content_tokens=of_texts + contents, prompt_tokens=prompt))
    return tuple(found)


def _prompt_tokens(
    loaded: Sequence[LoadedRequest], template: ChatTemplate, tokenizer: Tokenizer, clock: Clock
) -> int | None:
    try:
        return sum(
            len(prompt_ids(request, template=template, tokenizer=tokenizer, clock=clock).ids) for request in loaded
        )
    except (ChatTemplateError, UsageError):
        return None
