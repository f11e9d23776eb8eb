"""One thing varies, the rest is held, and the order is random but repeatable."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvscope.errors import BadDesign, UnknownName, UsageError
from kvscope.experiment.design import Condition, Design, DesignKind, Factor, make_design
from kvscope.experiment.designs import DESIGNS, design_kind
from kvscope.experiment.measure import Held, measure, plan_design
from kvscope.record.store import open_records
from kvscope.scenario import SettingValue

KIND = DesignKind(
    name="k",
    version=1,
    question="?",
    factor="prompt_tokens",
    says="",
    confounders=(),
    default_levels=(10, 20, 30),
    default_condition=Condition(settings={"n_ctx": 512}, prompt_tokens=1, output_tokens=2),
)


def design(**changes: object) -> Design:
    return make_design(KIND, **changes)  # type: ignore[arg-type]  # keyword by keyword, as the tests need them


@given(repeats=st.integers(1, 6), seed=st.integers(), levels=st.lists(st.integers(1, 999), min_size=1, unique=True))
def test_every_block_holds_every_level_once_and_the_baseline_opens(repeats: int, seed: int, levels: list[int]) -> None:
    trials = design(levels=levels, repeats=repeats, seed=seed).trials("d")
    measured = [trial for trial in trials if trial.role == "measured"]
    assert measured[0].level == levels[0]
    for block in range(repeats):
        assert sorted(trial.level for trial in measured if trial.block == block) == sorted(levels)
    assert [trial.position for trial in trials] == list(range(len(trials)))
    assert len({trial.trial_id for trial in trials}) == len(trials)


def test_the_order_follows_the_seed_and_nothing_else() -> None:
    levels = list(range(1, 30))
    first = [trial.level for trial in design(levels=levels, seed=1).trials("d")]
    assert first == [trial.level for trial in design(levels=levels, seed=1).trials("other")]
    assert first != [trial.level for trial in design(levels=levels, seed=2).trials("d")]
    blocks = [first[1:30], first[30:59]]
    assert blocks[0] != blocks[1]


def test_warm_ups_come_first_and_are_marked() -> None:
    trials = design(warmups=2).trials("d")
    assert [trial.role for trial in trials[:3]] == ["warmup", "warmup", "measured"]
    assert trials[0].level == 10


def test_a_level_changes_its_factor_and_nothing_else() -> None:
    for trial in design().trials("d"):
        assert trial.condition == replace(KIND.default_condition, prompt_tokens=trial.level)


def test_trial_ids_change_with_the_design() -> None:
    assert design().trials("a")[0].trial_id != design().trials("b")[0].trial_id


def test_two_things_at_once_is_refused_unless_asked_for_and_then_labelled() -> None:
    second = Factor(name="n_ctx", levels=(512, 1024))
    with pytest.raises(BadDesign, match="vary two things") as caught:
        design(second=second)
    assert "--grid" in (caught.value.hint or "")
    grid = design(second=second, grid=True, repeats=1, warmups=0)
    assert grid.is_grid
    assert not design().is_grid
    points = {(trial.condition.prompt_tokens, trial.condition.settings["n_ctx"]) for trial in grid.trials("d")}
    assert points == {(p, n) for p in (10, 20, 30) for n in (512, 1024)}


@pytest.mark.parametrize(
    "changes", [{"levels": []}, {"levels": [5, 5]}, {"levels": [0]}, {"levels": ["long"]}, {"repeats": 0}], ids=str
)
def test_impossible_designs_are_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadDesign):
        design(**changes).trials("d")


def test_every_shipped_design_plans_and_says_what_it_is() -> None:
    for name, kind in DESIGNS.items():
        if name == "grid":  # has no factors of its own: test_designs_grid.py
            continue
        planned = plan_design(name, engine="llama.cpp")
        assert planned.trials("d")
        assert kind.question.endswith("?")
        assert kind.says
        assert kind.confounders
        assert kind.holds


def test_an_unknown_design_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no design") as caught:
        design_kind("input_lenght")
    assert "input_length" in (caught.value.hint or "")


@pytest.mark.parametrize("engine", ["transformers", "vllm", "sglang"])
def test_where_a_context_limit_has_no_price_nothing_else_is_measured_in_its_place(engine: str) -> None:
    with pytest.raises(BadDesign, match="no price of it") as caught:
        plan_design("context_limit", engine=engine)
    assert "input_length" in str(caught.value.hint)
    assert plan_design("input_length", engine=engine, is_attached=True).factor.name == "prompt_tokens"


def test_one_context_limit_for_all_levels_unless_it_is_the_factor() -> None:
    # 2048 + 32 output tokens, rounded up to 256 cells: 2304.
    assert plan_design("input_length", engine="llama.cpp").held.settings["n_ctx"] == 2304
    chosen = plan_design("input_length", engine="llama.cpp", held=Held(settings={"n_ctx": (4096,)}))
    assert chosen.held.settings["n_ctx"] == 4096
    assert "n_ctx" not in plan_design("context_limit", engine="llama.cpp").held.settings
    assert "n_ctx" not in plan_design("input_length", engine="fake").held.settings


def test_the_context_limit_is_enough_for_each_slot() -> None:
    # 2,304 cells for each of 4 slots; a shared cache is not divided.
    divided = plan_design("input_length", engine="llama.cpp", held=Held(settings={"n_parallel": (4,)}))
    assert divided.held.settings["n_ctx"] == 4 * 2304
    shared = Held(settings={"n_parallel": (4,), "kv_unified": (True,)})
    assert plan_design("input_length", engine="llama.cpp", held=shared).held.settings["n_ctx"] == 2304


def test_what_the_engines_command_sets_is_held_and_not_overridden() -> None:
    # The flags of a real run whose settings were recorded as {"n_ctx": 256} and predicted as f16.
    own = {"n_ctx": 2048, "n_parallel": 2, "cache_type_k": "q8_0", "n_gpu_layers": 0}
    planned = plan_design("input_length", engine="llama.cpp", by_command=own)
    assert planned.held.settings == own
    again = Held(settings={"ctx_size": ("2k",), "cache_type_v": ("q8_0",)})
    assert plan_design("input_length", engine="llama.cpp", held=again, by_command=own).held.settings == {
        **own,
        "cache_type_v": "q8_0",
    }


def test_what_contradicts_the_engines_command_is_refused() -> None:
    other = Held(settings={"n_ctx": (4096,)})
    with pytest.raises(UsageError, match=r"n_ctx is 2048 by the engine's command, and 4096 by --set"):
        plan_design("input_length", engine="llama.cpp", held=other, by_command={"n_ctx": 2048})
    with pytest.raises(BadDesign, match="n_ctx is what this design varies"):
        plan_design("context_limit", engine="llama.cpp", by_command={"n_ctx": 2048})


@pytest.mark.parametrize(("given", "meant"), [(0, 0), ("5", 5), ("all", 2**31 - 1)])
def test_layers_on_a_gpu_are_a_setting_to_run(given: SettingValue, meant: int) -> None:
    for name in ("n_gpu_layers", "ngl", "--gpu-layers"):
        held = Held(settings={name: (given,)})
        assert plan_design("input_length", engine="llama.cpp", held=held).held.settings["n_gpu_layers"] == meant
    with pytest.raises(UsageError, match="n_gpu_layers"):
        plan_design("input_length", engine="llama.cpp", held=Held(settings={"ngl": ("some",)}))


def test_several_values_of_a_held_thing_are_a_second_factor() -> None:
    held = Held(settings={"n_ctx": (512, 1024)})
    with pytest.raises(BadDesign, match="prompt_tokens and n_ctx"):
        plan_design("input_length", engine="llama.cpp", held=held)
    assert plan_design("input_length", engine="llama.cpp", held=held, grid=True).is_grid
    three = Held(settings={"n_ctx": (512, 1024)}, output_tokens=(1, 2))
    with pytest.raises(BadDesign, match="3 things"):
        plan_design("input_length", engine="llama.cpp", held=three, grid=True)


def test_the_call_is_recorded_so_that_it_can_be_repeated(tmp_path: Path) -> None:
    path = tmp_path / "r.db"
    summary = measure("input_length", engine="fake", levels=(64,), repeats=1, settings={"load_s": 0.0}, records=path)
    assert (summary.measured, summary.failed) == (2, 0)
    with open_records(path) as records:
        (run,) = records.runs()
    again = f"measure({run.command.removeprefix('kvscope.measure(')[:-1]}, records={str(path)!r})"
    assert eval(again, {"measure": measure}).kept == 2


def test_the_factor_cannot_be_held() -> None:
    with pytest.raises(BadDesign, match="is what this design varies"):
        plan_design("input_length", engine="llama.cpp", held=Held(input_tokens=(64,)))


def held(**asked: Any) -> Condition:
    return plan_design("output_length", engine="fake", held=Held(**asked)).held


def test_what_was_recorded_before_texts_could_be_chosen_keeps_its_identity() -> None:
    # The keys of a condition in records made before "text" and "key_percent" could be held.
    recorded = {"settings", "prompt_tokens", "output_tokens", "requests", "reuse_prefix", "language"}
    assert held().to_dict().keys() == recorded
    assert held(language="code").to_dict()["language"] == "code"


def test_a_text_of_ones_own_is_part_of_the_design_by_its_content_alone(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("One. Two.")
    first, second = (held(text=tmp_path / name) for name in ("a.txt", "b.txt"))
    assert first.text is not None
    assert first.text.sentences == ("One.", "Two.")
    assert first.to_dict() == second.to_dict() != held().to_dict()
    assert first.to_dict()["text_sha256"] == hashlib.sha256(b"One. Two.").hexdigest()
    (tmp_path / "b.txt").write_text("One. Three.")
    assert held(text=tmp_path / "b.txt").to_dict() != first.to_dict()


def test_the_key_sentences_place_is_part_of_the_design_once_it_is_asked_for() -> None:
    assert held(key_percent=30.0).to_dict() == {**held().to_dict(), "key_percent": 30.0}
    assert held(key_percent=50.0).to_dict() != held().to_dict(), "asked for, prompts without it are refused"
