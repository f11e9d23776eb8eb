"""A trial's questions for the answers' sake: asked when all that the trial measures has been measured, one after
another, many on one document, so that each document is read once.

Nothing of it counts for a time or a memory. A question that fails is a row; so is one whose prompt was cut, which is
never a wrong answer.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from kvscope.engine.base import ChatRequest, Engine, Generation
from kvscope.errors import BadDesign, KvscopeError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.design import Condition
from kvscope.experiment.own_count import FROM_ENGINE, OwnCount
from kvscope.experiment.quality_asked import QualityAsked
from kvscope.experiment.quality_form import TextCount, chosen_form, text_count
from kvscope.experiment.quality_judge import judged_rows
from kvscope.experiment.quality_rows import AskedItem, answer_rows
from kvscope.experiment.request_counts import RequestCounts
from kvscope.experiment.trial_scores import (
    EVERY_PASS,
    FIDELITY,
    Scored,
    ScorePasses,
    score_document,
    score_floor,
)
from kvscope.experiment.trial_scores import FATAL as FATAL
from kvscope.experiment.trial_scores import MOST_FAILED as MOST_FAILED
from kvscope.prompt.conversation import Message
from kvscope.quality.markers import marker_questions
from kvscope.quality.task import Document, DocumentRequest, Form, Question, Task, prompt_text
from kvscope.quality.tasks import task_named
from kvscope.record.rows import QUALITY, AnswerRow, RequestRow, TokenRow

# The markers of so many documents are asked for: whether the server cuts prompts is not a matter of the document.
MARKED_DOCUMENTS = 8
# A text without a template goes on for ever; what is read of it is its first sentence.
CUE_STOP = ("\n", ". ")


@dataclass(slots=True, kw_only=True)
class QualityTrial:
    """``seed``: the study's; with the task, the language and the length it decides what is asked, so that all levels
    and repeats are asked the same. ``now``: the trial's clock. ``passes``: what of a scored task this trial does."""

    engine: Engine
    rows: AttemptRows
    condition: Condition
    asked: QualityAsked
    counts: RequestCounts
    now: Callable[[], float]
    seed: int
    passes: ScorePasses = EVERY_PASS
    items: list[AskedItem] = field(default_factory=list)
    failed_in_a_row: int = 0

    def run(self) -> None:
        """Ask everything that can be asked, and add the rows, whatever ends it. Raises what ends the engine, and
        KeyboardInterrupt."""
        task = task_named(self.asked.task)
        if self.language not in task.languages:
            self._unknown(f"The task {task.name} has no questions in {self.language}.")
            return
        read: list[AnswerRow] = []
        try:
            self._ask(task)
        finally:
            read = answer_rows(self.items, self.rows, first_index=len(self.rows.answers), engine=self.engine.name)
            self.rows.answers += read
        self._note_thinking_cut(read)
        if read:
            self.rows.answers[-len(read) :] = judged_rows(read, self.items, self.asked, self.rows)

    @property
    def language(self) -> str:
        """Of the questions: the prompts' own; English beside code."""
        return self.condition.language if self.condition.language in ("en", "ko") else "en"

    def _ask(self, task: Task) -> None:
        is_scored = task.family == "fidelity"
        if is_scored and not self.passes.scores:
            return
        if is_scored and not self.engine.capabilities.scores_tokens:
            self._unknown(f"{self.engine.name} states no log-probabilities, which the task {task.name} needs.")
            return
        try:
            form: Form = "cue" if is_scored else chosen_form(self.asked.form, self.engine, self.counts)
            longest = (self.condition.prompt_tokens, self.asked.room_tokens)
            count = text_count(form, self.engine, self.counts, longest)
            documents = self._documents(task, form, count)
            if is_scored:
                self._score(task, documents)
            else:
                self._ask_all(form, documents, count)
        except FATAL:
            raise
        except KvscopeError as error:  # of building or counting: what was measured before stands
            self._unknown(f"{error.message}", error.hint)

    def _note_thinking_cut(self, read: Sequence[AnswerRow]) -> None:
        """Say that a model was still thinking when its limit came, and how to give it more."""
        cut = [row for row in read if row.reading == "cut_output" and row.facts.get("had_thinking")]
        if not cut:
            return
        limit = max(self.asked.limit_of(item.question.max_output_tokens) for item in self.items)
        self.rows.warn(
            "quality-thinking-cut",
            f"{len(cut)} of {len(read)} answers were cut at their limit (at most {limit:,} tokens) while the model "
            "thought, or after it had: they are in no share.",
            f"Raise the limit: --quality-output-tokens {max(1024, 4 * limit)}.",
        )

    def _unknown(self, why: str, hint: str | None = None) -> None:
        self.rows.warn(
            "quality-unknown",
            f"Answers were not asked for: {why}",
            hint or "Times and memory stand. Ask another task, another form (--quality-form), or another engine.",
        )

    # --- documents ------------------------------------------------------------------------------------------------

    def _documents(self, task: Task, form: Form, count: TextCount) -> list[tuple[Document, Document | None]]:
        """The task's documents with their twins; none where they do not fit this length."""
        found: list[tuple[Document, Document | None]] = []
        try:
            for number in range(self.asked.num_documents):
                request = DocumentRequest(
                    seed=self.seed,
                    number=number,
                    language="ko" if self.language == "ko" else "en",
                    prompt_tokens=self.condition.prompt_tokens,
                    count=count,
                    form=form,
                )
                found.append(task.build(request))
        except BadDesign as error:
            self.rows.warn(
                "quality-no-room",
                f"The task {task.name} was not asked: {error.message}",
                error.hint or "Use longer prompts (--input-tokens), or a task that needs less.",
            )
            return []
        return found

    # --- likelihoods ----------------------------------------------------------------------------------------------

    def _score(self, task: Task, documents: Sequence[tuple[Document, Document | None]]) -> None:
        for document, twin in documents:
            first, failed = len(self.rows.answers), self.failed_in_a_row
            self._keep(score_document(self.engine, document, twin, first_index=first, failed_before=failed))
        if self.failed_in_a_row >= MOST_FAILED:
            self._give_up("texts could not be scored", "scored", "answers")
        if task.name == FIDELITY and documents and self.passes.floor:
            own = [document for document, _ in documents]
            self._keep(score_floor(self.engine, own, first_index=len(self.rows.answers)))

    def _keep(self, scored: Scored) -> None:
        """Its rows; what failed of it is said once a document."""
        self.rows.answers += scored.answers
        self.rows.scored_tokens += scored.scored_tokens
        self.failed_in_a_row = scored.failed_at_end
        failed = [row for row in scored.answers if row.reading == "failed"]
        if failed:
            self.rows.warn(
                "quality-failed",
                f"{len(failed)} of {len(scored.answers)} texts could not be scored ({failed[0].item}, for one): "
                f"{failed[0].facts['error_message']}",
                "Times, memory and what was scored stand. Of these texts nothing is known at this level.",
            )

    def _give_up(self, what: str, done: str, rows: str) -> None:
        self.rows.warn(
            "quality-given-up",
            f"{MOST_FAILED} {what} one after another; the rest was not {done}.",
            f"Times and memory stand. The errors are in the rows (kvscope export --rows {rows}).",
        )

    # --- questions ------------------------------------------------------------------------------------------------

    def _ask_all(self, form: Form, documents: Sequence[tuple[Document, Document | None]], count: TextCount) -> None:
        asked = [
            AskedItem(document=document, question=question, form=form, text=prompt_text(document, question, form))
            for document, question in _questions(documents)
        ]
        self._ask_each(asked, count)

    def ask_marks(self, asked: Sequence[AskedItem]) -> list[AnswerRow]:
        """Ask for the marks of prompts that were made elsewhere, as messages. What they were read as: no answers of the
        trial. Raises what ends the engine."""
        self._ask_each(asked, lambda text: 0)
        return answer_rows(self.items, self.rows, engine=self.engine.name)

    def _ask_each(self, asked: Sequence[AskedItem], count: TextCount) -> None:
        requests = [self._request(item) for item in asked]
        for item, request, counted in zip(asked, requests, self._counted(requests, count), strict=True):
            if self.failed_in_a_row >= MOST_FAILED:
                self._give_up("questions failed", "asked", "requests")
                return
            self._ask_one(item, request, counted)

    def _request(self, item: AskedItem) -> ChatRequest:
        is_cue, question = item.form == "cue", item.question
        return ChatRequest(
            messages=() if is_cue else (Message(role="user", content=item.text),),
            text=item.text if is_cue else None,
            stop=CUE_STOP if is_cue else (),
            tools=() if is_cue else question.tools,
            max_output_tokens=self.asked.limit_of(question.max_output_tokens),
            ignore_end=False,
            reuse_prefix=True,
            seed=self.seed,
        )

    def _ask_one(self, item: AskedItem, request: ChatRequest, counted: OwnCount | None) -> None:
        sent = self._row(request, counted)
        answer: Generation | None = None
        try:
            self.counts.check_fit(counted, request)
            answer = self.engine.generate(request)
        except BaseException as error:
            self._note_failed(sent, error)
            if isinstance(error, FATAL) or not isinstance(error, KvscopeError):
                raise
        finally:
            self.items.append(replace(item, answer=answer, request_index=sent.index))
        if answer is not None:
            self.failed_in_a_row = 0
            self._note_answered(sent, answer)

    def _counted(self, requests: Sequence[ChatRequest], count: TextCount) -> Sequence[OwnCount | None]:
        """Our count of each prompt, those by the model's files all at once; None where only the server counts, by being
        sent it."""
        if any(request.text is not None for request in requests):
            return [OwnCount(tokens=count(request.text or ""), counted_by=FROM_ENGINE) for request in requests]
        can = self.engine.capabilities
        by_engine: list[int | None] = [None] * len(requests)
        if self.counts.counter is None and can.counts_prompt_tokens and not can.counts_by_requests:
            by_engine = [self.engine.count_prompt_tokens(request.messages, request.tools) for request in requests]
        return self.counts.before_sending_all(requests, by_engine=by_engine, first_index=len(self.rows.requests))

    def _row(self, request: ChatRequest, counted: OwnCount | None) -> RequestRow:
        return RequestRow(
            index=len(self.rows.requests),
            role=QUALITY,
            sent_at_s=self.now(),
            completed_s=None,
            prompt_tokens_asked=None,
            prompt_tokens_ours=None if counted is None else counted.tokens,
            prompt_tokens_ours_from=None if counted is None else counted.counted_by,
            prompt_tokens_server=None,
            cached_tokens=None,
            output_tokens_limit=request.max_output_tokens,
            output_tokens=None,
            finish_reason=None,
        )

    def _note_failed(self, sent: RequestRow, error: BaseException) -> None:
        slug = error.slug if isinstance(error, KvscopeError) else "internal"
        slug = "interrupted" if isinstance(error, KeyboardInterrupt) else slug
        self.rows.requests.append(replace(sent, error_slug=slug))
        self.failed_in_a_row += 1
        if isinstance(error, KvscopeError) and not isinstance(error, FATAL):
            self.rows.warn(
                "quality-failed",
                f"A question that was asked for its answer alone failed: {error.message}",
                error.hint or "Times and memory stand. It counts as not asked.",
            )

    def _note_answered(self, sent: RequestRow, answer: Generation) -> None:
        """Its row and its text. How the client was, and when each piece was read, is kept of what is measured alone."""
        self.rows.requests.append(
            replace(
                sent,
                completed_s=answer.completed_s,
                prompt_tokens_server=answer.prompt_tokens,
                prompt_tokens_server_from=answer.prompt_tokens_from,
                cached_tokens=answer.cached_tokens,
                output_tokens=answer.output_tokens,
                finish_reason=answer.finish_reason,
                engine_timings=dict(answer.engine_timings),
            )
        )
        self.rows.tokens += [
            TokenRow(request_index=sent.index, index=number, at_s=event.at_s, text=event.text, kind=event.kind)
            for number, event in enumerate(answer.events)
        ]


def _questions(documents: Sequence[tuple[Document, Document | None]]) -> Iterator[tuple[Document, Question]]:
    """Those of one document together, so that it is read once, the first documents' markers behind them; then those of
    its twin."""
    for number, (document, twin) in enumerate(documents):
        markers = marker_questions(document) if number < MARKED_DOCUMENTS else ()
        yield from ((document, question) for question in (*document.questions, *markers))
        if twin is not None:
            yield from ((twin, question) for question in twin.questions)
