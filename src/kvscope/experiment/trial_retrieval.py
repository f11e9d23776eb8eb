"""The measured part of a trial of ``given``: every question on the documents, one after another, in one way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from kvscope.engine.base import ChatRequest, Engine, Generation, Message
from kvscope.errors import BadDesign, KvscopeError
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.design import Condition
from kvscope.experiment.embeddings import embedder_of
from kvscope.experiment.request_counts import RequestCounts
from kvscope.experiment.retrieval_answers import answer_row, failed_row
from kvscope.experiment.retrieval_asked import RetrievalAsked
from kvscope.experiment.retrieval_counts import by_characters, text_counter
from kvscope.experiment.retrieval_marks import needs_marks
from kvscope.experiment.retrieval_prompts import AskedPrompt, RetrievalPrompts
from kvscope.experiment.retrieval_rivals import standing_answers
from kvscope.experiment.retrieval_whole import WholeCheck
from kvscope.experiment.reuse_prediction import NotPredicted, SentBefore
from kvscope.experiment.trial_memory import TrialMemory
from kvscope.experiment.trial_prefix import Predict, prompts_salt
from kvscope.experiment.trial_quality import FATAL, MOST_FAILED

# A warm-up trial asks so many: the first, which reads everything, and one after it.
WARMUP_QUESTIONS = 2


class Ask(Protocol):
    """As the trial asks: one request, with its row."""

    def __call__(self, request: ChatRequest, *, role: str, asked: int | None, ours: int | None) -> Generation: ...


@dataclass(slots=True, kw_only=True)
class RetrievalTrial:
    """``sent``: all that the engine has answered in this trial, which grows as it does. ``ask``: sends a request and
    keeps its row. ``note_kept``: notes what the engine keeps of earlier prompts. ``predict`` None: nothing is known of
    what the engine will reuse. ``is_warmup``: only the first questions are asked. ``marks``: words planted in the
    prompts, in ``language``, once these are made."""

    engine: Engine
    rows: AttemptRows
    condition: Condition
    counts: RequestCounts
    memory: TrialMemory
    sent: Sequence[SentBefore]
    ask: Ask
    note_kept: Callable[[], None]
    predict: Predict | None
    seed: int
    is_warmup: bool = False
    marks: tuple[str, ...] = field(init=False, default=())
    language: str = field(init=False, default="en")

    @property
    def _asked(self) -> RetrievalAsked:
        assert self.condition.retrieval is not None
        return self.condition.retrieval

    def prompts(self, trial_id: str) -> tuple[AskedPrompt, ...]:
        """What is asked, in order. What was doubtful of the documents, the questions and the search becomes a warning
        of the trial. Raises as ``RetrievalPrompts.of_way``, and BadDesign where nothing is to be asked."""
        asked = self._asked
        count = text_counter(self.engine, self.counts.counter)
        if count is by_characters:
            self.rows.warn(
                "passages-by-characters",
                "Nobody says how many tokens a text has without computing it: passages were cut by characters, "
                "four to a token (of Hangul, one).",
                "Give the model's own file with --model, and they are cut by its tokens.",
            )
        # Where the engine was started for this trial, it holds nothing of another one.
        salt = "" if self.engine.capabilities.owns_process else f"({prompts_salt(trial_id, self.engine)[-8:]})"
        searches = asked.way.gives == "passages"
        embedder = embedder_of(asked.method, asked.embeddings, asked.embeddings_model) if searches else None
        has_marks = needs_marks(self.engine, has_counter=self.counts.counter is not None)
        made = RetrievalPrompts(asked, count, salt, embedder, marks_seed=self.seed if has_marks else None)
        self.marks, self.language = made.marks, made.language
        prompts = made.of_way(asked.way)
        for remark in (*asked.remarks, *made.remarks):
            self.rows.warn(remark.slug, remark.text, remark.hint or "The rest was asked all the same.")
        self._note_unplaced(prompts)
        if not prompts:
            raise BadDesign(
                "Of no question is it known where its answer stands, so that its evidence could be given alone.",
                hint="Leave the level evidence out, or write the sentence that holds each answer beside it, as "
                "evidence, in the file of questions.",
            )
        return prompts[:WARMUP_QUESTIONS] if self.is_warmup else prompts

    def _note_unplaced(self, prompts: Sequence[AskedPrompt]) -> None:
        count = len(self._asked.questions)
        placed = {prompt.question.id for prompt in prompts if prompt.has_evidence is not None}
        unplaced = sum(each.id not in placed for each in self._asked.questions if each.expected)
        if unplaced:
            left_out = " They are not asked where the evidence alone is given." if len(prompts) < count else ""
            self.rows.warn(
                "evidence-not-found",
                f"Of {unplaced} of {count} questions it is not known where in the documents the answer stands."
                f"{left_out}",
                "Write the sentence that holds it beside them, as evidence, in the file of questions.",
            )

    def run(self, prompts: Sequence[AskedPrompt]) -> None:
        """Ask them all. One that fails has a row that says so, and the rest is asked; but where so many fail one after
        another (MOST_FAILED), or all do, the way cannot be measured. Raises then as the last one did, and always as an
        engine does that is gone."""
        standing = standing_answers(self._asked)
        in_a_row: list[KvscopeError] = []
        for number, prompt in enumerate(prompts, start=1):
            failed = self._ask_one(prompt, standing)
            in_a_row = [] if failed is None else [*in_a_row, failed]
            if len(in_a_row) >= min(MOST_FAILED, len(prompts)):
                raise in_a_row[-1]
            if number in (1, len(prompts)):
                self.memory.settle()
                self.memory.mark(
                    "after_request", request_index=len(self.rows.requests) - 1, with_maps=number == len(prompts)
                )
                self.note_kept()
        self._note_cut_answers()

    def _ask_one(self, prompt: AskedPrompt, standing: Sequence[str]) -> KvscopeError | None:
        """Ask and keep the answer's row. The error of one that failed. Raises what ends the engine."""
        request = self._request(prompt.messages)
        predicted = self._predicted(request)
        place, index = len(self.rows.answers), len(self.rows.requests)
        self.rows.may_end.add(index)
        way = self._asked.way
        try:
            answer = self._answered(request, predicted)
        except FATAL:
            raise
        except KvscopeError as error:
            self.rows.answers.append(failed_row(index=place, request_index=index, way=way, prompt=prompt, error=error))
            self.rows.warn(
                "question-failed",
                f"A question on the documents failed: {error.message}",
                error.hint or "The others were asked. It counts as not answered.",
            )
            return error
        self.rows.answers.append(
            answer_row(
                index=place,
                request_index=index,
                way=way,
                prompt=prompt,
                answer=answer,
                questions=self._asked.questions,
                standing=standing,
            )
        )
        return None

    def _note_cut_answers(self) -> None:
        """Warn of a language most of whose answers ran into the limit: of some a token is a part of a character."""
        languages = {row.language for row in self.rows.answers}
        for language in sorted(languages):
            rows = [row for row in self.rows.answers if row.language == language]
            cut = sum(row.reading == "cut_output" for row in rows)
            if 2 * cut >= len(rows):
                self.rows.warn(
                    "answers-cut",
                    f"Of {len(rows)} answers in language {language}, {cut} ran into the limit of "
                    f"{self.condition.output_tokens} output tokens before they could be read: they are not scored.",
                    "Raise --output-tokens. Of a language that the model's tokens are not made for, a token may be "
                    "less than a character.",
                )

    def whole_check(self, prompts: Sequence[AskedPrompt]) -> WholeCheck | None:
        """What finds whether these prompts reached the model whole, once they have been asked; None where the engine's
        counts show it, or nothing was given."""
        if not self.marks or self._asked.way.gives == "nothing":
            return None
        return WholeCheck(
            rows=self.rows, engine=self.engine.name, prompts=prompts, words=self.marks, language=self.language
        )

    def _request(self, messages: tuple[Message, ...]) -> ChatRequest:
        return ChatRequest(
            messages=messages,
            max_output_tokens=self.condition.output_tokens,
            reuse_prefix=self.condition.reuse_prefix,
            ignore_end=False,
            seed=self.seed,
        )

    def _answered(self, request: ChatRequest, predicted: int | None) -> Generation:
        num_rows = len(self.rows.requests)
        try:
            return self.ask(request, role="measured", asked=None, ours=self.counts.of_engine(request.messages))
        finally:
            for index in range(num_rows, len(self.rows.requests)):
                self.rows.requests[index] = replace(self.rows.requests[index], cached_tokens_predicted=predicted)

    def _predicted(self, request: ChatRequest) -> int | None:
        found = (
            NotPredicted(because="nothing is known of this engine's rule")
            if self.predict is None
            else self.predict(self.sent, request, self.engine.settings)
        )
        if isinstance(found, NotPredicted):
            self.rows.warn(
                "reuse-not-predicted",
                f"How much of the prompt will be reused was not said before: {found.because}.",
                "What the server states of it is recorded all the same.",
            )
            return None
        return found.tokens
