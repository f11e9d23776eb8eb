"""Studies on the fake engine, whose effect and noise are known: planned as they always are, answered by the engine on a
clock that only moves when it sleeps, read by the analysis as it reads a record. Only the trial's watching of memory and
the file are left out, so that a thousand studies take seconds; ``test_effects_coverage`` shows that nothing else is."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from study_rows import design_row, run_row, trial_row

from kvscope.analysis.attempts import Attempt
from kvscope.engine.base import ChatRequest, Message
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.experiment.attempt_rows import AttemptRows
from kvscope.experiment.design import Condition, Design, Trial, Until, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.trial import WARMUP_MESSAGES, WARMUP_OUTPUT_TOKENS
from kvscope.record.metrics import metrics_of
from kvscope.record.rows import DesignRow, RequestRow, TrialResult
from kvscope.scenario import SettingValue

Prompt = Callable[[FakeEngine, Trial, int], tuple[Message, ...]]

# Trials of about 15 s each, begun 8 s before a minute: a slow minute of the fake engine holds two whole blocks of two.
SECONDS_EACH = 14.75
BEGIN_S = 52.0


def a_design(
    levels: tuple[int, ...] = (100, 200), *, repeats: int = 5, until: Until | None = None, **law: SettingValue
) -> Design:
    """Two or more prompt lengths, answered with three tokens."""
    held = Condition(settings=law, prompt_tokens=levels[0], output_tokens=3)
    return make_design(design_kind("input_length"), levels=levels, repeats=repeats, held=held, until=until)


def row_of(design: Design, design_id: str) -> DesignRow:
    """The design as the runner records it, as far as the analysis of effects looks at it."""
    return design_row(
        "input_length",
        design_id=design_id,
        levels=design.factor.levels,
        baseline_level=design.baseline_level,
        repeats=design.repeats,
        definition=design.definition(),
        engine="fake",
    )


def plain_prompt(engine: FakeEngine, trial: Trial, seed: int) -> tuple[Message, ...]:
    """As many words as the trial asks for, the first of which is the trial's own."""
    words = trial.condition.prompt_tokens - engine.count_prompt_tokens((Message(role="user", content=""),)) - 1
    return (Message(role="user", content=trial.trial_id + " word" * words),)


class SimulatedStudy:
    """One study, trial by trial. ``study`` makes its trials' ids its own; ``prompt``, where given, its prompts, behind
    a warm-up as in a real trial."""

    def __init__(self, design: Design, study: str, prompt: Prompt | None = None) -> None:
        self.design = design
        self.row = row_of(design, study)
        self.trials = [trial for trial in design.trials(study) if trial.role == "measured"]
        self.attempts: list[Attempt] = []
        self._clock = VirtualClock()
        self._clock.sleep(BEGIN_S)
        self._prompt = prompt

    def run(self, is_enough: Callable[[DesignRow, list[Attempt]], bool] | None = None) -> list[Attempt]:
        """All trials, or those until ``is_enough`` says so at one of the looks that the runner takes."""
        for earlier, trial in zip([None, *self.trials], self.trials, strict=False):
            opens = earlier is not None and earlier.block != trial.block
            extra = trial.block - self.design.repeats
            if is_enough and opens and extra >= 0 and extra % 2 == 0 and is_enough(self.row, self.attempts):
                break
            self.attempts.append(self._attempt(trial))
        return self.attempts

    def _attempt(self, trial: Trial) -> Attempt:
        law: Mapping[str, Any] = {"load_s": SECONDS_EACH, **trial.condition.settings}
        engine = FakeEngine(settings=law, clock=self._clock)
        engine.launch()
        engine.load()
        if self._prompt is not None:
            engine.generate(ChatRequest(messages=WARMUP_MESSAGES, max_output_tokens=WARMUP_OUTPUT_TOKENS, seed=0))
        messages = (self._prompt or plain_prompt)(engine, trial, self.design.seed)
        asked = ChatRequest(messages=messages, max_output_tokens=trial.condition.output_tokens, seed=self.design.seed)
        rows = AttemptRows()
        rows.add_answer(_sent(trial), engine.generate(asked), reuse_prefix=False)
        row = replace(
            trial_row(self.row, trial.level, trial.repeat),
            trial_id=trial.trial_id,
            block=trial.block,
            position=trial.position,
            levels=trial.levels,
        )
        result = TrialResult(trial=row, requests=tuple(rows.requests), tokens=tuple(rows.tokens))
        return Attempt(design=self.row, run=run_row(), result=result, metrics=metrics_of(result), prediction=None)


def _sent(trial: Trial) -> RequestRow:
    return RequestRow(
        index=1,
        role="measured",
        sent_at_s=0.0,
        completed_s=None,
        prompt_tokens_asked=trial.condition.prompt_tokens,
        prompt_tokens_ours=None,
        prompt_tokens_server=None,
        cached_tokens=None,
        output_tokens_limit=trial.condition.output_tokens,
        output_tokens=None,
        finish_reason=None,
    )
