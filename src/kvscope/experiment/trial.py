"""One trial: launch, read the baseline, load, warm up, measure, check the release, tear down.

Whatever happens, the attempt ends as a result: what was seen until then, and why it ended.
"""

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from kvscope.engine.base import ChatRequest, Engine, EngineReport, Generation, ReportedBuffer
from kvscope.errors import KvscopeError, ProbeLost, PromptLengthUnreachable
from kvscope.experiment.attempt_result import outlook_of, result_of
from kvscope.experiment.attempt_rows import AttemptRows, reported_row
from kvscope.experiment.cache_state import begin_uncached
from kvscope.experiment.design import Trial
from kvscope.experiment.draft_counts import DraftCounts
from kvscope.experiment.ending import INTERRUPTED, UNKNOWN_OUTLOOK, Ending, Outlook, ending_of, why_lost
from kvscope.experiment.neighbours import note_others_requests
from kvscope.experiment.play import play_prompts
from kvscope.experiment.quality_asked import QualityAsked
from kvscope.experiment.release_check import check_release, kept_buffers
from kvscope.experiment.request_counts import Expected, RequestCounts
from kvscope.experiment.retrieval_whole import WholeCheck
from kvscope.experiment.reuse_prediction import SentBefore
from kvscope.experiment.settings_check import memory_settings_unstated, settings_not_obeyed
from kvscope.experiment.trial_load import LoadTrial
from kvscope.experiment.trial_memory import TrialMemory
from kvscope.experiment.trial_prefix import Count, PrefixTrial, prefix_prompts, prompts_salt
from kvscope.experiment.trial_quality import QualityTrial
from kvscope.experiment.trial_retrieval import RetrievalTrial
from kvscope.experiment.trial_scores import score_passes
from kvscope.probe.proc import process_exists, process_tree
from kvscope.prompt.conversation import Message
from kvscope.prompt.exact_length.build import ExactPrompt, build_prompt
from kvscope.record.rows import (
    SAME_AGAIN,
    RequestRow,
    TrialResult,
    TrialRow,
)

WARMUP_MESSAGES = (Message(role="user", content="Hello."),)
WARMUP_OUTPUT_TOKENS = 4


def run_trial(
    create: Callable[[], Engine],
    trial: Trial,
    row: TrialRow,
    *,
    seed: int,
    expected: Expected | None = None,
    now: Callable[[], float] = time.perf_counter,
    sleep: Callable[[float], None] = time.sleep,
) -> TrialResult:
    """Run one attempt on an engine that ``create`` makes, and stop the engine. Never raises: an error, a bug and
    Ctrl-C (outcome ``interrupted``) become the outcome of the result. ``expected``: what is known before it runs."""
    started_s = now()
    rows = AttemptRows()
    attempt = _Attempt(rows)
    try:
        attempt.outlook = outlook_of(expected)
        attempt.engine = create()
        clock = (lambda: now() - started_s), sleep
        attempt.run = _TrialRun(attempt.engine, trial, rows, seed=seed, clock=clock, expected=expected or Expected())
        attempt.run.run()
        rows.judge_counts()
        attempt.ending = rows.ending()
    except (Exception, KeyboardInterrupt) as error:
        attempt.fail(error)
    attempt.close()
    return result_of(row, rows, attempt.ending, duration_s=now() - started_s)


@dataclass(slots=True)
class _Attempt:
    """What has to be put in order however an attempt ends."""

    rows: AttemptRows
    engine: Engine | None = None
    run: "_TrialRun | None" = None
    ending: Ending = INTERRUPTED
    outlook: Outlook = UNKNOWN_OUTLOOK

    def fail(self, error: BaseException) -> None:
        is_failure = not isinstance(error, KeyboardInterrupt)
        if isinstance(error, ProbeLost) and self.engine is not None:
            error = why_lost(error, self.engine)
        log_tail = self.engine.log_tail() if is_failure and self.engine is not None else None
        self.ending = ending_of(error, log_tail, self.outlook)
        with contextlib.suppress(Exception):  # what is recorded is the error
            self.rows.judge_counts()

    def close(self) -> None:
        """Stop what runs. Ctrl-C in here, or an error, does not lose what was measured."""
        if self.run is None:
            return
        try:
            self.run.close()
        except (Exception, KeyboardInterrupt) as error:
            self.fail(error)
            self.run.engine.stop()


class _TrialRun:
    def __init__(
        self,
        engine: Engine,
        trial: Trial,
        rows: AttemptRows,
        *,
        seed: int,
        clock: tuple[Callable[[], float], Callable[[float], None]],
        expected: Expected,
    ) -> None:
        self.engine = engine
        self.trial = trial
        self.seed = seed
        self.sent: list[SentBefore] = []
        self.whole_check: WholeCheck | None = None  # of prompts of retrieval, once they have been asked
        self.count: Count | None = None  # who counts prompts, once they have been built
        self.now, self.sleep = clock
        self.rows = rows
        self.counts = RequestCounts(engine, rows, expected)
        self.expected = expected
        self.memory = TrialMemory(engine, rows, now=self.now, sleep=self.sleep)

    def run(self) -> None:
        if self.engine.capabilities.owns_process:
            self.memory.look_around("before")
            self.engine.launch()
        else:  # which process it is, is known once it has been asked; it holds its memory already
            self.engine.launch()
            self.memory.look_around("before")
        self.memory.start()
        if self.engine.capabilities.baseline_before_load:
            self.memory.settle()
            self.memory.mark("launched", with_maps=True)
        report = self.engine.load()
        self._note_report(report)
        self.memory.settle()
        self.memory.mark("loaded", with_maps=True)
        if self.trial.condition.is_load:
            self._measure_load()
        elif self.trial.condition.retrieval is not None:
            self._measure_retrieval()
        else:
            prompts = self._build_prompts()
            self._warm_up()
            self._measure(prompts)
        self.memory.look_around("after")
        self._ask_quality()
        self._release()

    def close(self) -> None:
        """Stop sampling and the engine, whatever state they are in."""
        pids = process_tree(self.engine.pids()) if self.engine.capabilities.owns_process else ()
        self.memory.stop()
        self.engine.stop()
        self.memory.note_kills()
        if not self.engine.capabilities.owns_process:
            note_others_requests(self.rows, self.engine)
            return  # it runs on, as it did before
        still_there = [pid for pid in pids if process_exists(pid)]
        if still_there:
            self.rows.warn(
                "engine-still-running",
                f"Processes {still_there} of the engine are still there after it was stopped.",
                "Look at them before measuring again; they hold memory.",
            )
        elif pids and not self.engine.memory_probe():
            self.memory.mark_exited()

    def _note_report(self, report: EngineReport) -> None:
        self.rows.effective = {
            **report.effective,
            "slots": list(report.slots),
            "engine_version": report.version,
            "engine_build": report.build,
            "notes": list(report.notes),
            "cache": begin_uncached(self.engine),
        }
        self.counts.note_limit(report.context_limit)
        self.rows.reported += [reported_row(buffer, "loaded", None) for buffer in report.buffers]
        for slug, message, hint in report.warnings:
            self.rows.warn(slug, message, hint)
        differing = settings_not_obeyed(self.trial.condition.settings, report.effective)
        if differing:
            self.rows.warn(
                "setting-not-obeyed", f"{'; '.join(differing)}.", "What the engine says is what was measured."
            )
        unstated = memory_settings_unstated(self.trial.condition.settings, report.effective)
        if unstated:
            self.rows.warn(
                "setting-not-confirmed",
                f"The engine does not say whether it uses {', '.join(unstated)}.",
                "A build of llama.cpp without GPU support leaves it aside; look at where its buffers are.",
            )

    def _measure_load(self) -> None:
        load = LoadTrial(
            engine=self.engine,
            rows=self.rows,
            condition=self.trial.condition,
            counts=self.counts,
            memory=self.memory,
            request_of=self._request_of,
            note_kept=self._note_kept,
            now=self.now,
            seed=self.seed,
            block=self.trial.block,
        )
        prompts = load.prompts(self.trial.trial_id)
        load.warm_up(prompts)
        self.memory.reset_peaks()
        self.memory.mark("before_request")
        load.run(prompts)

    def _measure_retrieval(self) -> None:
        questions = RetrievalTrial(
            engine=self.engine,
            rows=self.rows,
            condition=self.trial.condition,
            counts=self.counts,
            memory=self.memory,
            sent=self.sent,
            ask=self._ask,
            note_kept=self._note_kept,
            predict=self.expected.predict_reuse,
            seed=self.seed,
            is_warmup=self.trial.role == "warmup",
        )
        prompts = questions.prompts(self.trial.trial_id)
        self._warm_up()
        self.memory.reset_peaks()
        self.memory.mark("before_request")
        questions.run(prompts)
        self.whole_check = questions.whole_check(prompts)  # asked later, out of sight of what is measured

    def _build_prompts(self) -> list[ExactPrompt]:
        """One prompt per request, each of exactly the asked length as the engine counts, none like another."""
        condition = self.trial.condition
        count = self.count = self.counts.prompt_counter((condition.prompt_tokens, condition.output_tokens))
        salt = self.trial.trial_id if condition.prefix is None else prompts_salt(self.trial.trial_id, self.engine)
        try:
            prompts = [
                build_prompt(
                    prompt_tokens=condition.prompt_tokens,
                    count=count,
                    language=condition.language,
                    # Prompts of one salt and different seeds are certain to begin differently.
                    seed=self.seed + number,
                    salt=salt,
                    source=condition.text,
                    key_percent=condition.key_percent,
                )
                for number in range(condition.num_requests if condition.prefix is None else 2)
            ]
        except PromptLengthUnreachable as error:
            raise (count.why_unreachable(error) if isinstance(count, DraftCounts) else error) from error
        without = [prompt.no_key_because for prompt in prompts if prompt.no_key_because is not None]
        if without:
            self.rows.warn("no-key-sentence", without[0], "Use longer prompts where the answers are to be compared.")
        return prompts

    def _warm_up(self) -> None:
        request = ChatRequest(messages=WARMUP_MESSAGES, max_output_tokens=WARMUP_OUTPUT_TOKENS, seed=self.seed)
        self._ask(request, role="warmup", asked=None, ours=self.counts.of_engine(WARMUP_MESSAGES))
        self.memory.settle()

    def _measure(self, prompts: list[ExactPrompt]) -> None:
        condition = self.trial.condition
        self.memory.reset_peaks()
        self.memory.mark("before_request")
        if condition.prefix is not None:
            self._measure_prefix(prompts)
            return
        if condition.is_conversation:
            play_prompts([prompt.messages for prompt in prompts], self.counts.prompt_counter(), self._ask_next)
            return
        rounds = [(prompt, "measured") for prompt in prompts] + [(prompts[-1], SAME_AGAIN)] * condition.same_again
        for number, (prompt, role) in enumerate(rounds, start=1):
            self._ask_next(
                prompt.messages,
                ours=prompt.prompt_tokens,
                asked=condition.prompt_tokens,
                role=role,
                is_last=number == len(rounds),
            )

    def _measure_prefix(self, prompts: list[ExactPrompt]) -> None:
        count = None if self.counts.counts_by_sending else self.count
        trial = PrefixTrial(
            engine=self.engine,
            rows=self.rows,
            condition=self.trial.condition,
            sent=self.sent,
            request_of=self._request_of,
            ask_next=self._ask_next,
            now=self.now,
            sleep=self.sleep,
            predict=self.expected.predict_reuse,
        )
        tokens = prompts[0].prompt_tokens
        trial.run(prefix_prompts([prompt.messages for prompt in prompts], tokens=tokens, count=count))

    def _request_of(self, messages: tuple[Message, ...]) -> ChatRequest:
        condition = self.trial.condition
        return ChatRequest(
            messages=messages,
            max_output_tokens=condition.output_tokens,
            reuse_prefix=condition.reuse_prefix,
            seed=self.seed,
        )

    def _ask_next(
        self, messages: tuple[Message, ...], *, ours: int | None, asked: int | None, role: str, is_last: bool
    ) -> Generation:
        answer = self._ask(self._request_of(messages), role=role, asked=asked, ours=ours)
        self.memory.settle()
        self.memory.mark("after_request", request_index=len(self.rows.requests) - 1, with_maps=is_last)
        self._note_kept()
        return answer

    def _ask(self, request: ChatRequest, *, role: str, asked: int | None, ours: int | None) -> Generation:
        index = len(self.rows.requests)
        counted = self.counts.before_sending(request, by_engine=ours, index=index)
        sent = RequestRow(
            index=index,
            role=role,
            sent_at_s=self.now(),
            completed_s=None,
            prompt_tokens_asked=asked,
            prompt_tokens_ours=None if counted is None else counted.tokens,
            prompt_tokens_ours_from=None if counted is None else counted.counted_by,
            prompt_tokens_server=None,
            cached_tokens=None,
            output_tokens_limit=request.max_output_tokens,
            output_tokens=None,
            finish_reason=None,
        )
        cpu_s, wall_s = time.process_time(), self.now()
        try:
            self.counts.check_fit(counted, request)
            answer = self.engine.generate(request)
        except BaseException as error:
            slug = error.slug if isinstance(error, KvscopeError) else "internal"
            slug = "interrupted" if isinstance(error, KeyboardInterrupt) else slug
            self.rows.requests.append(replace(sent, error_slug=slug))
            raise
        if role == "measured" and self.now() > wall_s:
            self.rows.client["cpu_share"] = (time.process_time() - cpu_s) / (self.now() - wall_s)
        self.rows.add_answer(sent, answer, reuse_prefix=request.reuse_prefix)
        self.sent.append(SentBefore(request=request, answer=answer))
        return answer

    def _note_kept(self) -> None:
        """What the engine says it keeps of earlier prompts, beside its cache."""
        self._note_reported("after_request", kept_buffers(self.engine), len(self.rows.requests) - 1)

    def _note_reported(self, phase: str, buffers: Sequence[ReportedBuffer], index: int | None = None) -> None:
        self.rows.reported += [reported_row(buffer, phase, index) for buffer in buffers]

    def _ask_quality(self) -> None:
        """Ask for the answers' sake what the condition says, out of sight of all that was measured."""
        asked, whole_check = self.trial.condition.quality, self.whole_check
        if (asked is None and whole_check is None) or self.trial.role == "warmup":
            return
        questions = QualityTrial(
            engine=self.engine,
            rows=self.rows,
            condition=self.trial.condition,
            asked=asked or QualityAsked(task=""),
            counts=self.counts,
            now=self.now,
            seed=self.seed,
            passes=score_passes(repeat=self.trial.repeat, is_baseline=self.trial.is_baseline),
        )
        self.memory.pause()
        try:
            questions.run() if whole_check is None else whole_check.run(questions.ask_marks)
        finally:
            self.memory.pause(is_paused=False)
        self._mark_at_rest("after_quality")

    def _mark_at_rest(self, phase: str) -> None:
        self.memory.settle()
        self.memory.mark(phase, with_maps=True)

    def _release(self) -> None:
        check_release(self.engine, mark=self._mark_at_rest, warn=self.rows.warn, note_kept=self._note_reported)
