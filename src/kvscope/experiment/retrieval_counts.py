"""Tokens of a study's documents: of a text by itself, and of each way's longest prompt, before anything runs."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from kvscope.engine.base import ChatRequest, Engine
from kvscope.experiment.design import Design
from kvscope.experiment.own_count import OwnCounter
from kvscope.experiment.retrieval_asked import GIVEN, RetrievalAsked
from kvscope.experiment.retrieval_prompts import AskedPrompt, RetrievalPrompts, question_language
from kvscope.experiment.retrieval_ways import way_named
from kvscope.experiment.subject import Subject
from kvscope.prompt.conversation import Message

# Where nobody can count a text without computing it: so many characters a token, of Hangul about one.
CHARACTERS_PER_TOKEN = 4
_KEPT_COUNTS = 100_000
# Between passages, and of what stands around a text beyond what stands around none: at most about so many.
JOINING_TOKENS = 4
FRAME_TOKENS = 48


def by_characters(text: str) -> int:
    """About how many tokens a text has, of which no tokenizer is known."""
    hangul = sum("가" <= character <= "힣" for character in text)
    return hangul + -(-(len(text) - hangul) // CHARACTERS_PER_TOKEN)


def text_counter(engine: Engine | None, counter: OwnCounter | None) -> Callable[[str], int]:
    """Who counts a text by itself: the model's files, else the engine where it can without computing, else nobody
    (``by_characters``). What was counted once is kept."""
    if counter is not None and counter.text_tokens("a") is not None:
        return lru_cache(_KEPT_COUNTS)(lambda text: counter.text_tokens(text) or 0)
    if engine is None or not engine.capabilities.counts_prompt_tokens or engine.capabilities.counts_by_requests:
        return by_characters

    def of_engine(text: str) -> int:
        return engine.count_prompt_tokens((Message(role="user", content=text),))

    empty = of_engine("")
    return lru_cache(_KEPT_COUNTS)(lambda text: max(0, of_engine(text) - empty))


def with_counts(design: Design, subject: Subject) -> Design:
    """A design of ways to give documents, with the tokens of each way's longest prompt by the model's files, so that
    what it needs is predicted and its context limit is no larger; any other design, and one of a model whose files do
    not tell, as it is. Raises as ``RetrievalPrompts.of_way``."""
    asked = design.held.retrieval
    if asked is None or subject.counter is None or design.factor.name != GIVEN:
        return design
    ways = [str(level) for level in design.factor.levels]
    longest = {name: _longest(asked, subject.counter, name) for name in ways}
    known = {name: tokens for name, tokens in longest.items() if tokens is not None}
    is_free = not any("n_ctx" in (*factor.settings, *design.held.settings) for factor in design.factors)
    sets_context = subject.choice.name == "llama.cpp" and subject.choice.takes_settings and is_free
    return replace(
        design, held=replace(design.held, retrieval=replace(asked, longest_tokens=known, sets_context=sets_context))
    )


def documents_preview(design: Design) -> dict[str, object] | None:
    """What will be asked, before anything runs: the questions by their language, what was left out or is doubtful, and
    of each way that was counted (``with_counts``) the tokens of its longest prompt. None where no documents are
    held."""
    asked = design.held.retrieval
    if asked is None:
        return None
    languages = Counter(question_language(each) for each in asked.questions)
    return {
        "languages": dict(languages),
        "remarks": [{"slug": each.slug, "text": each.text} for each in asked.remarks],
        "longest_tokens": dict(asked.longest_tokens),
    }


def _longest(asked: RetrievalAsked, counter: OwnCounter, name: str) -> int | None:
    """Tokens of the longest prompt of one way; None where the files do not give those of all."""
    if asked.method in ("dense", "hybrid") and way_named(name).gives == "passages":
        return _most(asked, counter, name)
    prompts = RetrievalPrompts(asked, text_counter(None, counter)).of_way(way_named(name))
    return _most_tokens(_candidates(prompts, counter), counter)


def _candidates(prompts: Sequence[AskedPrompt], counter: OwnCounter) -> Sequence[tuple[Message, ...]]:
    """The prompts of which one is the longest. Where all are of one text, only that with the longest question: a large
    text is then counted once, and not with every question."""
    given = {prompt.given for prompt in prompts}
    if given == {""} or len(given) != 1:
        return [prompt.messages for prompt in prompts]
    around = [prompt.messages[-1].content.replace(prompt.given, "") for prompt in prompts]
    asked = [counter.text_tokens(text) or 0 for text in around]
    return [prompts[asked.index(max(asked))].messages]


def _most_tokens(prompts: Sequence[tuple[Message, ...]], counter: OwnCounter) -> int | None:
    counts = counter.count([ChatRequest(messages=messages, max_output_tokens=1) for messages in prompts])
    return None if None in counts else max((each.tokens for each in counts if each is not None), default=0)


def _most(asked: RetrievalAsked, counter: OwnCounter, name: str) -> int | None:
    """The most that a prompt of passages can have, where which ones they are is known only when vectors are made."""
    way, alone = way_named(name), _longest(asked, counter, "nothing")
    given = RetrievalPrompts(asked, text_counter(None, counter)).most_given_tokens(way)
    return None if alone is None else alone + FRAME_TOKENS + given + way.passages * JOINING_TOKENS
