"""What the second of two requests reuses of the first, and what broke the common beginning where one did.

Both are rendered with the model's template and tokenized as the engine does it. The engine holds the ids of the first
prompt and those of the answer, which the second request has in its history. What both begin with can be reused, as far
as the engine's rule goes (``kvscope.prompt.reuse.rules``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from kvscope.errors import ChatTemplateError
from kvscope.model.spec import FullAttention, ModelSpec
from kvscope.prompt.chat_template.template import ChatTemplate, Clock, local_time
from kvscope.prompt.conversation import Image
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.prompt_text import as_read_by, ids_of_text
from kvscope.prompt.reuse.advice import ADVICE
from kvscope.prompt.reuse.breaks import Break, find_breaks, picture_break
from kvscope.prompt.reuse.changes import THOUGHT_ENDS
from kvscope.prompt.reuse.known_texts import KnownTexts
from kvscope.prompt.reuse.places import Places
from kvscope.prompt.reuse.render import Pair, Renderer, answer_index, body_of, rendering_of, time_unit
from kvscope.prompt.reuse.request_keys import LLAMA_CPP, allows_reuse, doubt_of, slot_asked_for
from kvscope.prompt.reuse.rules import Reusable, SentPrompt, reused_in_order
from kvscope.prompt.reuse.text_changes import common_length
from kvscope.prompt.reuse_engines.llama_cpp_turns import has_marks_of_its_own, places_of, user_marker_ids
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.scenario import SettingValue

SCHEMA = "kvscope.reuse/1"
_AT_EACH_TURN = ("second", "minute")
_BETWEEN_TURNS = timedelta(minutes=1)
CONTEXT_FULL = "context-full"
_END = -1  # an id that no prompt has
_CUT = "\ufffd"  # stands in an answer where a letter of several tokens was cut off
_OWN_MARKS = (
    "llama.cpp knows what marks a user's message for this family of models; that was not compared, and decides where "
    "checkpoints are made."
)
_PICTURES = "pictures take tokens that are not counted here, so what the engine sees is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reuse:
    """``common_prefix_tokens`` are the same in what the engine holds and in the second prompt. ``outcome``: appended
    (nothing broke), repeated (all of the second prompt is held) or broken. ``later``: what would break it next, once
    what comes before is mended. ``answer``: where the first request's answer was taken from (history, stated), or
    unknown: then more may be reused than is said. ``fits``: the second prompt into the engine's context, None where
    that is not known. ``answer_ids``: the answer's tokens that are held, as far as they are known."""

    first: str
    second: str
    engine: str
    engine_version: str | None
    first_prompt_tokens: int
    held_tokens: int
    prompt_tokens: int
    common_prefix_tokens: int
    reusable: Reusable
    outcome: str
    answer: str
    fits: bool | None = None
    broken: Break | None = None
    later: tuple[Break, ...] = ()
    notes: tuple[str, ...] = ()
    answer_ids: tuple[int, ...] = ()

    @property
    def recomputed_tokens(self) -> int | None:
        """Tokens of the second prompt that are computed anew; None where the rule does not decide it."""
        return None if self.reusable.tokens is None else self.prompt_tokens - self.reusable.tokens

    def to_dict(self) -> dict[str, Any]:
        """The JSON of ``kvscope reuse``."""
        return {
            "schema": SCHEMA,
            "first": {
                "source": self.first,
                "prompt_tokens": self.first_prompt_tokens,
                "held_tokens": self.held_tokens,
                "answer": self.answer,
            },
            "second": {"source": self.second, "prompt_tokens": self.prompt_tokens},
            "engine": self.engine,
            "engine_version": self.engine_version,
            "common_prefix_tokens": self.common_prefix_tokens,
            "reusable_tokens": self.reusable.tokens,
            "recomputed_tokens": self.recomputed_tokens,
            "status": self.reusable.status,
            "because": self.reusable.because,
            "source": self.reusable.source,
            "granularity_tokens": self.reusable.granularity_tokens,
            "minimum_prefix_tokens": self.reusable.minimum_prefix_tokens,
            "outcome": self.outcome,
            "fits": self.fits,
            **(self.broken.to_dict() if self.broken else self._unbroken()),
            "later": [each.to_dict() for each in self.later],
            "notes": list(dict.fromkeys((*self.reusable.notes, *self.notes))),
        }

    def _unbroken(self) -> dict[str, Any]:
        found: dict[str, Any] = dict.fromkeys(("broken_by", "broken_at", "what", "advice", "evidence", "excerpt"))
        if self.fits is False:
            found |= {"broken_by": CONTEXT_FULL, "what": self.reusable.because, "advice": ADVICE[CONTEXT_FULL]}
        return found


def compare_requests(
    first: LoadedRequest,
    second: LoadedRequest,
    *,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    engine: str,
    engine_version: str | None = None,
    model: ModelSpec | None = None,
    settings: Mapping[str, SettingValue] | None = None,
    answer: str | None = None,
    context_limit_tokens: int | None = None,
    clock: Clock = local_time,
) -> Reuse:
    """What ``second``, sent after ``first`` to the same engine, reuses.

    ``answer``: the text that the model wrote to ``first``; None: as ``second`` has it in its history.
    ``context_limit_tokens``: what the engine takes of one sequence, None where it is not known. One moment of ``clock``
    is used for both, unless the template writes minutes or seconds. Raises ChatTemplateError, UsageError, UnknownName
    for an engine without a rule, and what the tokenizer raises.
    """
    comparison = Comparison(
        template=template,
        tokenizer=tokenizer,
        engine=engine,
        engine_version=engine_version,
        model=model,
        settings=settings or {},
        context_limit_tokens=context_limit_tokens,
        now=clock(),
    )
    return comparison.of(first, second, answer=answer)


@dataclass(kw_only=True)
class Comparison:
    """As ``compare_requests``, for many pairs: what is found of a request is kept for its next pair."""

    template: ChatTemplate
    tokenizer: Tokenizer
    engine: str
    engine_version: str | None
    model: ModelSpec | None
    settings: Mapping[str, SettingValue]
    context_limit_tokens: int | None
    now: datetime
    _places: Places = field(init=False)
    _known: KnownTexts = field(init=False)
    _units: dict[str, str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._places = Places(template=self.template)
        self._known = KnownTexts(self.template)

    def prepare(self, requests: Sequence[LoadedRequest]) -> None:
        """Render some requests at once, which costs one process instead of several for each. Raises as ``of``."""
        self._known.of([rendering_of(each) for request in requests for each in (request, body_of(request))], self.now)

    def ids(self, request: LoadedRequest) -> tuple[int, ...]:
        """A request's prompt as the engine tokenizes it. Raises as ``of``."""
        (text,) = self._known.of([rendering_of(request)], self.now)
        if isinstance(text, ChatTemplateError):
            raise text
        return ids_of_text(text, tokenizer=self.tokenizer).ids

    def of(self, first: LoadedRequest, second: LoadedRequest, *, answer: str | None = None) -> Reuse:
        """What ``second`` reuses of ``first``. Raises as ``compare_requests``."""
        first, second = as_read_by(first, self.template), as_read_by(second, self.template)
        unit = self._time_unit(second)
        later = self.now + _BETWEEN_TURNS if unit in _AT_EACH_TURN else self.now
        renderer = Renderer(self.template, self.tokenizer, (self.now, later), self._known)
        pair = renderer.pair(first, second, answer)
        held, prompt, asked = renderer.held_ids(pair), renderer.ids(pair.text), renderer.ids(pair.prompt)
        breaks = list(find_breaks(renderer, pair, answer, self._places))
        pictures = picture_break(renderer, pair, self._places)
        if pictures is not None:
            breaks.insert(0, pictures)
        common = breaks[0].token if breaks else common_length(held.ids, prompt.ids)
        unbroken = "repeated" if common == len(prompt.ids) else "appended"
        outcome = "broken" if breaks else unbroken
        return Reuse(
            first=first.source,
            second=second.source,
            engine=self.engine,
            engine_version=self.engine_version,
            first_prompt_tokens=len(asked.ids),
            held_tokens=len(held.ids),
            prompt_tokens=len(prompt.ids),
            common_prefix_tokens=common,
            reusable=self._reusable(pair, asked.ids, held.ids, prompt.ids, answer),
            outcome=outcome,
            answer="unknown" if pair.answer is None else "history" if answer is None else "stated",
            fits=self.fits(len(prompt.ids)),
            broken=breaks[0] if breaks else None,
            later=tuple(breaks[1:]),
            answer_ids=held.ids[len(asked.ids) :],
            notes=tuple(self._notes(pair, unit, answer, appended=outcome == "appended")),
        )

    def _time_unit(self, request: LoadedRequest) -> str | None:
        text = self.template.text_for(request.conversation)
        if text not in self._units:
            self._units[text] = time_unit(self.template, request)
        return self._units[text]

    def fits(self, prompt_tokens: int) -> bool | None:
        """Whether a prompt fits into the engine's context; None where that is not known."""
        return None if self.context_limit_tokens is None else prompt_tokens <= self.context_limit_tokens

    def sent(
        self, request: LoadedRequest, ids: Sequence[int], answer_ids: Sequence[int], *, is_answer_sure: bool = True
    ) -> SentPrompt:
        """``request`` as the engine gets it. ``answer_ids``: the tokens that it holds of its answer."""
        limit = request.max_output_tokens
        return SentPrompt(
            ids=tuple(ids),
            # The token that ends an answer is made, and never read.
            answer_ids=(*answer_ids, _END),
            user_starts=self.user_starts(ids),
            reuse=allows_reuse(request, self.engine),
            slot=slot_asked_for(request, self.engine),
            fits=self.fits(len(ids)) is not False,
            is_answer_sure=is_answer_sure or (limit is not None and limit <= 1),
            doubt=self._doubt(request),
        )

    def _doubt(self, request: LoadedRequest) -> str | None:
        doubt = doubt_of(request, self.engine) or (_PICTURES if _has_pictures(request) else None)
        if doubt is None and self.engine == LLAMA_CPP and self._forgets:
            text = self.template.text_for(request.conversation)
            return _OWN_MARKS if has_marks_of_its_own(text) else None
        return doubt

    @property
    def _forgets(self) -> bool:
        return self.model is not None and any(not isinstance(each.cache, FullAttention) for each in self.model.layers)

    def _reusable(
        self, pair: Pair, asked: Sequence[int], held: Sequence[int], prompt: Sequence[int], answer: str | None
    ) -> Reusable:
        limit = self.context_limit_tokens
        if self.fits(len(prompt)) is False:
            because = f"The prompt of {len(prompt)} tokens does not fit into the context of {limit}."
            return Reusable(tokens=None, status="unknown", because=because, source="the engine's settings")
        if _has_pictures(pair.first) or _has_pictures(pair.second):
            return Reusable(tokens=None, status="unknown", because=_PICTURES, source="the requests")
        is_stated = answer is not None and _CUT not in answer
        return self.in_order(
            [
                self.sent(pair.first, asked, held[len(asked) :], is_answer_sure=is_stated),
                self.sent(pair.second, prompt, ()),
            ]
        )[-1]

    def in_order(self, prompts: Sequence[SentPrompt]) -> list[Reusable]:
        """What each reuses, sent to an engine that was just started. Raises as ``reused_in_order``."""
        return reused_in_order(
            prompts,
            engine=self.engine,
            engine_version=self.engine_version,
            model=self.model,
            settings=self.settings,
        )

    def user_starts(self, ids: Sequence[int]) -> tuple[int, ...] | None:
        """Where users' messages start in a prompt, which decides what a cache that forgets goes back to; None where
        they do not show, or the cache forgets nothing."""
        if not self._forgets:
            return None
        return None if self._marker is None else places_of(self._marker, ids)

    @cached_property
    def _marker(self) -> tuple[int, ...] | None:
        return user_marker_ids(self.template, self.tokenizer)

    def _notes(self, pair: Pair, unit: str | None, answer: str | None, *, appended: bool) -> Iterator[str]:
        if _has_pictures(pair.first) or _has_pictures(pair.second):
            yield "Pictures take tokens that are not counted here; behind the first of them, numbers are too small."
        if unit in ("hour", "day"):
            yield f"The template writes the time: when the {unit} changes, all behind it is computed anew."
        if pair.answer is None and appended:
            yield "What the model wrote to the first request is not known, so only its prompt counts as held."
        index = answer_index(pair.first, pair.second)
        if answer is None and index is not None and THOUGHT_ENDS in self.template.text_for(pair.first.conversation):
            message = pair.second.conversation.messages[index]
            if not message.reasoning and THOUGHT_ENDS not in message.content:
                yield (
                    "The model may think before it answers, and the history has none of it. If it did, less is reused: "
                    "give its whole answer (--answer)."
                )
        yield from dict.fromkeys((*pair.first.warnings, *pair.second.warnings))


def _has_pictures(request: LoadedRequest) -> bool:
    return any(isinstance(block, Image) for message in request.conversation.messages for block in message.blocks)
