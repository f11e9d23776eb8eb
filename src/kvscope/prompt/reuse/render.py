"""Two requests as the engine sees them one after the other: the texts, the ids, and what it holds of the first."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.marks import Marks
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering
from kvscope.prompt.conversation import Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.prompt_text import PromptIds, continuation, ids_of_text
from kvscope.prompt.reuse.changes import same_message, with_messages
from kvscope.prompt.reuse.known_texts import KnownTexts
from kvscope.prompt.reuse.text_changes import common_length
from kvscope.prompt.tokenizers.base import Tokenizer

# A function of transformers, and variables that llama.cpp's server gives.
_ASK_TIME = ("strftime_now", "date_string", "datetime")
# Any moment does on which no larger unit begins with the next second, minute or hour.
_SOME_MOMENT = datetime(2026, 3, 10, 14, 5, 6)  # noqa: DTZ001  # local, as templates show it
_UNITS = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two requests and their texts. ``prompt`` is the first request's; of it, ``body_length`` characters stand before
    the generation prompt. ``answer`` is the text that the model wrote behind it, None where it is not known."""

    first: LoadedRequest
    second: LoadedRequest
    prompt: str
    body_length: int
    answer: str | None
    text: str

    @property
    def held(self) -> str:
        """The text of what the engine holds after the first request."""
        return self.prompt + (self.answer or "")

    @property
    def common_characters(self) -> int:
        """Code points that what is held and the second text both begin with."""
        return common_length(self.held, self.text)


class Renderer:
    """Renders pairs. ``clocks``: the moments at which the two requests are made, as the template is told them."""

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        clocks: tuple[datetime, datetime],
        known: KnownTexts | None = None,
    ) -> None:
        self._known = known or KnownTexts(template)
        self.template = template
        self.tokenizer = tokenizer
        self.clocks = clocks

    def pair(self, first: LoadedRequest, second: LoadedRequest, answer: str | None) -> Pair:
        """``answer``: the text that the model wrote, None: as the second request has it. Raises ChatTemplateError."""
        (one,) = self.pairs([(first, second)], answer)
        if isinstance(one, ChatTemplateError):
            raise one
        return one

    def pairs(
        self, requests: Sequence[tuple[LoadedRequest, LoadedRequest]], answer: str | None, *, one_clock: bool = False
    ) -> list[Pair | ChatTemplateError]:
        """Many at once; an error in place of each that the template refuses."""
        firsts, seconds = [first for first, _ in requests], [second for _, second in requests]
        bodies = [body_of(first) for first in firsts]
        clocks = (self.clocks[0], self.clocks[0 if one_clock else 1])
        if clocks[0] == clocks[1]:  # in one process
            prompts = self.texts([*firsts, *bodies, *seconds], clocks[0])
            texts = prompts[2 * len(firsts) :]
        else:
            prompts, texts = self.texts([*firsts, *bodies], clocks[0]), self.texts(seconds, clocks[1])
        made: list[Pair | ChatTemplateError] = []
        for index, (first, second) in enumerate(requests):
            prompt, body, text = prompts[index], prompts[index + len(firsts)], texts[index]
            if isinstance(prompt, ChatTemplateError):
                made.append(prompt)
                continue
            if isinstance(text, ChatTemplateError):
                made.append(text)
                continue
            body_length = len(body) if isinstance(body, str) and prompt.startswith(body) else len(prompt)
            pair = Pair(
                first=first,
                second=second,
                prompt=prompt,
                body_length=body_length,
                answer=answer,
                text=text,
            )
            made.append(pair if answer is not None else replace(pair, answer=self._written_answer(pair)))
        return made

    def texts(self, requests: Sequence[LoadedRequest], now: datetime) -> list[str | ChatTemplateError]:
        """The text of each request at ``now``."""
        return self._known.of([rendering_of(request) for request in requests], now)

    def _written_answer(self, pair: Pair) -> str | None:
        """What the model wrote for the answer in the second request's history; None where that cannot be known."""
        index = answer_index(pair.first, pair.second)
        if index is None:
            return None
        answer = pair.second.conversation.messages[index]
        if not answer.reasoning and not answer.tool_calls:
            return answer.content
        marks = Marks.not_in(pair.prompt + pair.text)
        stand_in = Message(role=answer.role, content=marks.mark(0, "content"))
        endings = [
            body_of(with_messages(pair.first, [*pair.first.conversation.messages, last])) for last in (answer, stand_in)
        ]
        whole, marked = self.texts(endings, self.clocks[0])
        tail = None if isinstance(marked, ChatTemplateError) else marks.after_last(marked, 0)
        if tail is None or isinstance(whole, ChatTemplateError):
            return None
        if not whole.startswith(pair.prompt) or not whole.endswith(tail):
            return None
        written = whole[len(pair.prompt) : len(whole) - len(tail)]
        goes_on = pair.text.startswith(pair.prompt) and not pair.text.startswith(pair.prompt + written)
        # A template that writes a last answer in a way of its own does not show how the model wrote this one.
        return None if goes_on and not answer.reasoning else written

    def ids(self, text: str) -> PromptIds:
        """``text`` as the engine tokenizes a prompt."""
        return ids_of_text(text, tokenizer=self.tokenizer)

    def held_ids(self, pair: Pair) -> PromptIds:
        """What the engine holds: the prompt's ids, and the answer's as the model writes them, behind the prompt."""
        prompt = self.ids(pair.prompt)
        if not pair.answer:
            return prompt
        whole = self.ids(pair.held)
        ids, starts = whole.ids[len(prompt.ids) :], whole.starts[len(prompt.ids) :]
        if whole.ids[: len(prompt.ids)] != prompt.ids:  # the two would merge where they meet, but the prompt stands
            alone, places = self.tokenizer.encode_with_starts(pair.answer, parse_special=True)
            ids, starts = tuple(alone), tuple(len(pair.prompt) + place for place in places)
        fed = len(ids)
        limit = pair.first.max_output_tokens
        if limit is not None and fed >= limit:
            fed = max(0, limit - 1)  # ended by its limit: the last token is never fed back
        return PromptIds(
            ids=prompt.ids + ids[:fed], text=pair.held, starts=prompt.starts + starts[:fed], bos_added=prompt.bos_added
        )


def body_of(request: LoadedRequest) -> LoadedRequest:
    """``request`` without what asks for an answer, and closed."""
    return replace(request, add_generation_prompt=False, continue_final_message=False)


def rendering_of(request: LoadedRequest) -> Rendering:
    """How ``request`` is rendered."""
    return Rendering(
        conversation=request.conversation,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=continuation(request),
        extra=request.extra,
    )


def answer_index(first: LoadedRequest, second: LoadedRequest) -> int | None:
    """Which message of the second request answers the first request; None where there is none."""
    asked, messages = first.conversation.messages, second.conversation.messages
    after_same = [
        index + 1 for index in range(len(messages) - 1, -1, -1) if asked and same_message(messages[index], asked[-1])
    ]
    if len(asked) in after_same:
        after_same.insert(0, len(asked))
    for index in [*after_same, len(asked)]:
        if 0 < index < len(messages) and messages[index].role in ("assistant", "model"):
            return index
    return None


def time_unit(template: ChatTemplate, request: LoadedRequest) -> str | None:
    """The smallest of second, minute, hour and day with which the template's text of ``request`` changes; None where
    it does not ask for the time."""
    text = template.text_for(request.conversation)
    if not any(name in text for name in _ASK_TIME):
        return None
    moments = [_SOME_MOMENT, *(_SOME_MOMENT + step for step in _UNITS.values())]
    now, *later = (_text_at(template, request, moment) for moment in moments)
    return next((unit for unit, text in zip(_UNITS, later, strict=True) if text != now), None)


def _text_at(template: ChatTemplate, request: LoadedRequest, moment: datetime) -> str | ChatTemplateError:
    return template.render_each([rendering_of(request)], clock=lambda: moment)[0]
