"""Whole runs with questions at the end of every trial: every design, interrupted and gone on with, killed, held against
the baseline, exported and merged. On the fake engine, whose answers and divergences are known."""

import json
import subprocess
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvscope.cli.main import cli
from kvscope.engine.base import ChatRequest, Engine, Generation, ScoreRequest, TokenScores
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.registry import EngineChoice
from kvscope.errors import EngineReplyError, KvscopeError
from kvscope.experiment.asked import Asked
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.designs import DESIGNS
from kvscope.experiment.job_json import from_json, to_json
from kvscope.experiment.measure import model_of
from kvscope.experiment.plan import plan
from kvscope.experiment.quality_asked import QualityAsked
from kvscope.experiment.runner import DesignSummary, run_design, start_run
from kvscope.model.spec import ModelSpec
from kvscope.record.merge import merge
from kvscope.record.rows import TrialResult
from kvscope.record.store import create_records, open_records
from kvscope.scenario import SettingValue


@dataclass(frozen=True, slots=True, kw_only=True)
class OnClock(EngineChoice):
    """The fake engine on a clock of the test's own. ``stop_at``: Ctrl-C at this question of a trial."""

    clock: VirtualClock
    stop_at: int | None = None

    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        return Stopped(settings, self.clock, self.stop_at)


class Stopped(FakeEngine):
    def __init__(self, settings: Mapping[str, SettingValue], clock: VirtualClock, stop_at: int | None) -> None:
        super().__init__(settings=settings, clock=clock)
        self.left = stop_at

    def generate(self, request: ChatRequest) -> Generation:
        if self.left is not None and not request.ignore_end:
            if self.left == 0:
                raise KeyboardInterrupt
            self.left -= 1
        return super().generate(request)


def run(path: Path, *, stop_at: int | None = None, **asked: Any) -> DesignSummary:
    settings = {"answer_right": 1.0, **asked.pop("settings", {})}
    values = {"engine": "fake", "repeats": 1, "quality": "keys", "quality_documents": 1, **asked}
    planned = plan(Asked(**values, settings={name: (value,) for name, value in settings.items()}))
    clock = VirtualClock()
    choice = OnClock(name="fake", clock=clock, stop_at=stop_at)
    with create_records(path) as recorder:
        return run_design(
            recorder,
            start_run(recorder, "test"),
            planned.design,
            model_of(planned),
            choice,
            now=clock.now,
            sleep=clock.sleep,
        )


def results(path: Path) -> list[TrialResult]:
    with open_records(path) as records:
        return [records.result(trial) for trial in records.trials()]


@pytest.mark.parametrize("name", sorted(DESIGNS.keys() - {"grid", "retrieval"}))
def test_every_design_has_its_score(name: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {"design": name}
    if name == "quality":
        asked["quality"] = None
    # Lengths that have room for a document where the prompts are what varies (the longest needs about 310), few trials.
    asked |= {"input_length": {"levels": (250, 300)}, "prefix_reuse": {"levels": ("cold", "warm")}}.get(name, {})
    asked |= {} if name == "input_length" else {"input_tokens": 320}
    try:
        summary = run(tmp_path / "r.db", **asked)
    except KvscopeError as error:
        if name in ("flash_attention", "offload", "window"):
            pytest.skip(f"not asked of the fake engine: {error}")
        raise
    assert (summary.failed, summary.not_run) == (0, 0)
    measured = [result for result in results(tmp_path / "r.db") if result.trial.role == "measured"]
    assert measured
    for result in measured:
        assert result.answers, result.warnings
        if name != "quality":
            assert {row.reading for row in result.answers if row.task == "keys" and not row.is_twin} == {"right"}


def test_interrupted_in_the_middle_of_the_questions_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    with pytest.raises(KeyboardInterrupt):
        run(path, stop_at=2, design="input_length", levels=(250, 300))
    warmup, cut = results(path)
    assert (warmup.trial.outcome, cut.trial.outcome) == ("ok", "interrupted")
    assert [row.reading for row in cut.answers] == ["right", "right", "failed"]
    summary = run(path, design="input_length", levels=(250, 300))
    assert (summary.kept, summary.measured, summary.failed) == (1, 2, 0)
    again = [result for result in results(path) if result.trial.attempt == 2]
    assert [len(result.answers) for result in again] == [9]


KILLED = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from test_quality_runs import FakeEngine, run

    asked = 0
    whole = FakeEngine.generate

    def generate(self, request):
        global asked
        asked += not request.ignore_end
        if asked == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        return whole(self, request)

    FakeEngine.generate = generate
    run(Path(sys.argv[1]), design="input_length", levels=(250, 300))
"""


def test_killed_in_the_middle_of_the_questions_it_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    script = textwrap.dedent(KILLED).format(tests=str(Path(__file__).parent))
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False, capture_output=True, text=True)
    assert done.returncode == -9, done.stderr
    summary = run(path, design="input_length", levels=(250, 300))
    assert (summary.kept, summary.measured, summary.failed) == (1, 2, 0)
    found = [(r.trial.outcome, len(r.answers)) for r in results(path) if r.trial.role == "measured"]
    assert found == [("interrupted", 0), ("ok", 9), ("ok", 11)]


def fidelity(path: Path, **asked: Any) -> dict[object, TrialResult]:
    run(path, quality="fidelity", quality_documents=2, design="grid", input_tokens=400, **asked)
    return {r.trial.levels["score_kl"]: r for r in results(path) if r.trial.role == "measured"}


def test_a_divergence_is_from_the_first_baseline_of_the_record(tmp_path: Path) -> None:
    """The fake engine's distribution is as far from its own without the setting as the setting says."""
    factors = {"score_kl": (0.0, 0.05, 0.4), "output_tokens": (8, 16)}
    found = fidelity(tmp_path / "r.db", factors=factors)
    scores = {
        level: [row.score for row in result.answers if "floor" not in row.facts] for level, result in found.items()
    }
    assert set(scores[0.0]) == {None}
    # Half of it at one half of the positions and one and a half times it at the others; seen through the likeliest 100
    # tokens it is somewhat less.
    for known in (0.05, 0.4):
        assert all(score is not None and 0.3 * known < score < 1.5 * known for score in scores[known])
    with open_records(tmp_path / "r.db") as records:
        kept = {r.trial.levels["score_kl"]: records.metrics(r.trial)["quality_score"] for r in found.values()}
    assert kept[0.0] is None
    assert (kept[0.05] or 0) < (kept[0.4] or 0)


def test_a_comparison_that_fails_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a bug")

    monkeypatch.setattr("kvscope.experiment.quality_reference.with_fidelity", broken)
    found = fidelity(tmp_path / "r.db", factors={"score_kl": (0.0, 0.05), "output_tokens": (8, 9)})
    assert {result.trial.outcome for result in found.values()} == {"ok"}
    assert all(result.scored_tokens for result in found.values())
    assert all("quality-not-compared" in [w.slug for w in result.warnings] for result in found.values())


def failing_at(monkeypatch: pytest.MonkeyPatch, numbers: range) -> None:
    """The fake engine answers these requests for scores, counted over the whole run, as no engine should."""
    score, asked = FakeEngine.score, iter(range(1, 10_000))

    def faulty(self: FakeEngine, request: ScoreRequest) -> TokenScores:
        if next(asked) in numbers:
            raise EngineReplyError("A probability of 0.", hint="Leave it out.")
        return score(self, request)

    monkeypatch.setattr(FakeEngine, "score", faulty)


def test_a_text_that_cannot_be_scored_costs_neither_its_document_nor_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_at(monkeypatch, range(3, 4))
    asked: dict[str, Any] = {"design": "kv_dtype", "levels": ("f16", "q4_0"), "repeats": 2}
    run(tmp_path / "r.db", quality="fidelity", quality_documents=2, **asked)
    scored = [each for each in results(tmp_path / "r.db") if each.scored_tokens]
    readings = [[row.reading for row in each.answers if "floor" not in row.facts] for each in scored]
    # Two levels, and the baseline once more; two documents of eight texts.
    assert readings == [["scored"] * 2 + ["failed"] + ["scored"] * 13, ["scored"] * 16, ["scored"] * 16]
    assert [sum("floor" in row.facts for row in each.answers) for each in scored] == [2, 0, 0]
    (warning,) = [warning for each in scored for warning in each.warnings if warning.slug == "quality-failed"]
    assert warning.message.startswith("1 of 8 texts could not be scored")


def test_after_three_texts_that_fail_in_a_row_the_rest_of_a_trial_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_at(monkeypatch, range(7, 10))  # the last two of a document, and the first of the next
    run(tmp_path / "r.db", quality="fidelity", quality_documents=2, design="kv_dtype", levels=("f16",), repeats=1)
    (result,) = [each for each in results(tmp_path / "r.db") if each.trial.role == "measured"]
    own = [row.reading for row in result.answers if "floor" not in row.facts]
    assert own == [*["scored"] * 6, "failed", "failed", "failed"]
    assert "quality-given-up" in [warning.slug for warning in result.warnings]
    assert result.trial.outcome == "ok"


def test_exported_in_every_format_and_merged(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "r.db"
    run(path, design="input_length", levels=(250, 300))
    expected = [row for result in results(path) for row in result.answers]
    for form in ("jsonl", "csv", "parquet", "duckdb"):
        out = tmp_path / f"a.{form}"
        arguments = ["export", "--records", str(path), "--format", form, "--rows", "answers", "--out", str(out)]
        done = CliRunner().invoke(cli, arguments)
        assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(line["item"], line["is_twin"], line["score"]) for line in lines] == [
        (row.item, row.is_twin, row.score) for row in expected
    ]
    assert parquet.read_table(tmp_path / "a.parquet").num_rows == len(expected)
    assert len((tmp_path / "a.csv").read_text(encoding="utf-8").splitlines()) == len(expected) + 1
    with duckdb.connect(str(tmp_path / "a.duckdb")) as connection:
        told = connection.execute("SELECT count(*), sum(score) FROM answers WHERE NOT is_twin AND task = 'keys'")
        assert told.fetchone() == (7, 7.0)
    with create_records(tmp_path / "all.db") as merged, open_records(path) as source:
        merge(merged, [source])
    assert results(tmp_path / "all.db") == results(path)


def test_a_job_says_what_is_asked() -> None:
    condition = Condition(
        settings={}, prompt_tokens=1, output_tokens=1, quality=QualityAsked(task="keys", documents=2, form="cue")
    )
    trial = Trial(trial_id="t", role="measured", levels={}, level=1, repeat=0, block=0, position=0, condition=condition)
    assert from_json(Trial, to_json(trial)) == trial
