"""What a person asked to keep equal, as the condition that all trials of a design have."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.errors import BadDesign
from kvscope.experiment.asked import Asked
from kvscope.experiment.design import REQUEST_FACTORS, Arrival, Condition, Factor, Language
from kvscope.experiment.quality_asked import (
    FIDELITY,
    MOST_DOCUMENTS,
    TASK_FACTOR,
    AskedForm,
    QualityAsked,
    judge_address,
    with_task,
)
from kvscope.experiment.retrieval_asked import DEFAULT_METHOD, GIVEN, PASSAGE_TOKENS, read_material
from kvscope.prompt.exact_length.own_text import read_own_text
from kvscope.quality.retrieval.index import Method
from kvscope.scenario import SettingValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a person asked to keep equal. A field with several values is a second factor. ``text``: a file or folder of
    one's own that prompts are made of; ``key_percent``: how far down it the key sentence stands. ``arrival`` and
    ``rate_per_s``: an open loop, in which requests are sent on time whatever is under way (poisson where only the rate
    is given)."""

    input_tokens: tuple[int, ...] = ()
    output_tokens: tuple[int, ...] = ()
    requests: int | None = None
    reuse_prefix: bool | None = None
    language: Language = "en"
    text: str | Path | None = None
    key_percent: float | None = None
    concurrency: tuple[int, ...] = ()
    rate_per_s: tuple[float, ...] = ()
    arrival: Arrival | None = None
    shared_prefix_tokens: int | None = None
    quality: str | None = None
    quality_documents: int | None = None
    quality_form: AskedForm = "auto"
    quality_output_tokens: int | None = None
    quality_judge: str | None = None
    quality_judge_model: str | None = None
    documents: str | None = None
    questions: str | None = None
    retrieval_method: Method | None = None
    passage_tokens: int | None = None
    embeddings: str | None = None
    embeddings_model: str | None = None
    settings: Mapping[str, tuple[SettingValue, ...]] | None = None


_OF_DOCUMENTS = ("documents", "questions", "retrieval_method", "passage_tokens", "embeddings", "embeddings_model")


def held_of(asked: Asked) -> Held:
    """What is kept equal, of a whole study."""
    return Held(
        input_tokens=asked.input_tokens,
        output_tokens=asked.output_tokens,
        requests=asked.requests,
        reuse_prefix=asked.reuse_prefix,
        language=asked.language,
        text=asked.text,
        key_percent=asked.key_percent,
        concurrency=asked.concurrency,
        rate_per_s=asked.rate_per_s,
        arrival=asked.arrival,
        shared_prefix_tokens=asked.shared_prefix_tokens,
        quality=asked.quality,
        quality_documents=asked.quality_documents,
        quality_form=asked.quality_form,
        quality_output_tokens=asked.quality_output_tokens,
        quality_judge=asked.quality_judge,
        quality_judge_model=asked.quality_judge_model,
        documents=asked.documents,
        questions=asked.questions,
        retrieval_method=asked.retrieval_method,
        passage_tokens=asked.passage_tokens,
        embeddings=asked.embeddings,
        embeddings_model=asked.embeddings_model,
        settings=asked.settings,
    )


def hold(varied: Collection[str], condition: Condition, held: Held) -> tuple[Condition, list[Factor]]:
    """The condition with everything held set, and what turned out to vary as well. Raises BadDesign for what
    contradicts itself or the factor, UnknownName, and for a text of one's own what read_own_text raises."""
    asked: dict[str, tuple[SettingValue, ...]] = {
        "prompt_tokens": held.input_tokens,
        "output_tokens": held.output_tokens,
        "concurrency": held.concurrency,
        "rate_per_s": held.rate_per_s,
        **(held.settings or {}),
    }
    text = None if held.text is None else read_own_text(held.text, language=held.language)
    condition = replace(condition, language=held.language, text=text, key_percent=held.key_percent)
    if held.requests is not None:
        if held.requests < 1:
            raise BadDesign("A trial needs at least one request.", hint="Use --requests 1 or more.")
        if condition.is_conversation:
            raise BadDesign("The requests of this design are its turns.", hint="Give their number with --levels.")
        condition = replace(condition, requests=held.requests)
    if held.reuse_prefix is not None:
        condition = replace(condition, reuse_prefix=held.reuse_prefix)
    condition = _with_quality(varied, _with_load(varied, condition, held), held)
    condition = _with_documents(varied, condition, held)
    others = []
    for name, values in asked.items():
        if not values:
            continue
        if name in varied:
            raise BadDesign(f"{name} is what this design varies.", hint="Give its values with --levels.")
        if len(values) > 1:
            others.append(Factor(name=name, levels=tuple(value for value in values if value is not None)))
        elif name in REQUEST_FACTORS:
            condition = condition.with_level(name, values[0])
        else:
            condition = replace(condition, settings={**condition.settings, name: values[0]})
    return condition, others


def _with_load(varied: Collection[str], condition: Condition, held: Held) -> Condition:
    """The condition with what was asked of several requests at once. Raises BadDesign for what contradicts itself."""
    is_open = bool(held.rate_per_s) or "rate_per_s" in varied
    if is_open and (held.concurrency or "concurrency" in varied):
        raise BadDesign(
            "At a fixed rate, how many requests are under way at once is not set: it follows from the rate.",
            hint="Give --rate or --concurrency.",
        )
    if held.arrival is not None:
        if not is_open and condition.rate_per_s is None:
            raise BadDesign("An arrival needs a rate.", hint="Say how many requests a second with --rate.")
        condition = replace(condition, arrival=held.arrival)
    if held.shared_prefix_tokens is not None:
        if held.shared_prefix_tokens < 0:
            raise BadDesign("A shared beginning of less than nothing.", hint="Use --shared-prefix 0 or more.")
        reuses = condition.reuse_prefix if held.reuse_prefix is not None else held.shared_prefix_tokens > 0
        condition = replace(condition, shared_prefix_tokens=held.shared_prefix_tokens, reuse_prefix=reuses)
    return condition


def _with_quality(varied: Collection[str], condition: Condition, held: Held) -> Condition:
    """The condition with what was asked for the answers' sake. Raises BadDesign, UnknownName, UsageError."""
    is_varied = TASK_FACTOR in varied
    if held.quality_judge_model is not None and held.quality_judge is None:
        raise BadDesign("Where the judge is reached is not said.", hint="Give its address: --quality-judge URL.")
    if held.quality is not None and is_varied:
        raise BadDesign("The task is what this design varies.", hint="Give the tasks with --levels.")
    if held.quality is None and not is_varied:
        given = (held.quality_documents, held.quality_output_tokens, held.quality_judge)
        if held.quality_form != "auto" or any(value is not None for value in given):
            raise BadDesign(
                "Which questions are to be asked is not said.", hint="Name their task: --quality keys, for example."
            )
        return condition
    if (held.quality_documents or 0) > MOST_DOCUMENTS:
        raise BadDesign(
            f"{held.quality_documents:,} documents of a task in each trial are too many.",
            hint=f"Ask at most {MOST_DOCUMENTS:,}: --quality-documents 20, for example.",
        )
    asked = QualityAsked(
        task="",
        documents=held.quality_documents,
        form=held.quality_form,
        output_tokens=held.quality_output_tokens,
        judge=None if held.quality_judge is None else judge_address(held.quality_judge),
        judge_model=held.quality_judge_model,
    )
    return replace(condition, quality=asked if is_varied else with_task(asked, held.quality))


def check_moves(factors: Collection[Factor], quality: str | None) -> None:
    """Raises BadDesign for the task fidelity where nothing that varies can move the probabilities of a known text: of
    requests alone, all levels score the same texts in the same passes, or, of lengths, others that do not compare."""
    is_level = any(factor.name == TASK_FACTOR and FIDELITY in factor.levels for factor in factors)
    names = [factor.name for factor in factors]
    if (quality != FIDELITY and not is_level) or not all(name in REQUEST_FACTORS for name in names):
        return
    hint = "Vary a setting: kvscope measure kv_dtype --quality fidelity. Or score what the document adds: copy_gain."
    if "prompt_tokens" in names:
        raise BadDesign(
            "Each length has texts of its own, so there is nothing that fidelity could hold them against.",
            hint=f"{hint} In a grid of lengths and a setting each is held against its own length.",
        )
    raise BadDesign(
        f"Fidelity would score the same texts in the same way at every level of {' and '.join(names)}.", hint=hint
    )


def _with_documents(varied: Collection[str], condition: Condition, held: Held) -> Condition:
    """The condition with documents and questions, where the way that they are given is what varies. Raises BadDesign
    for what contradicts that, and as ``read_material``."""
    if GIVEN not in varied:
        if any(getattr(held, name) is not None for name in _OF_DOCUMENTS):
            raise BadDesign(
                "Documents and questions are what the design retrieval asks about.",
                hint="Use: kvscope measure retrieval.",
            )
        return condition
    contradictions = {
        "--quality": condition.quality is not None,
        "--concurrency or --rate": condition.is_load
        or bool(held.rate_per_s)
        or any(each != 1 for each in held.concurrency),
        "--text": condition.text is not None,
        "--input-tokens": bool(held.input_tokens),
        "--no-reuse-prefix": not condition.reuse_prefix,
    }
    for option, is_asked in contradictions.items():
        if is_asked:
            raise BadDesign(
                f"Here questions on documents are asked, and {option} contradicts that.", hint="Leave it out."
            )
    asked = read_material(
        held.documents,
        held.questions,
        method=held.retrieval_method or DEFAULT_METHOD,
        passage_tokens=PASSAGE_TOKENS if held.passage_tokens is None else held.passage_tokens,
        embeddings=held.embeddings,
        embeddings_model=held.embeddings_model,
        most_questions=held.requests,
        language=held.language,
    )
    return replace(condition, retrieval=asked, requests=len(asked.questions))
