"""What a planned design says that it holds fixed is what was set, also where something was given or a second factor
varies it."""

from kvscope.experiment.asked import Asked
from kvscope.experiment.design import Design, Level
from kvscope.experiment.plan import Held, plan, plan_design
from kvscope.experiment.study_file import study_text


def holds(
    name: str,
    *,
    engine: str = "llama.cpp",
    is_attached: bool = False,
    factors: dict[str, tuple[Level, ...]] | None = None,
    levels: tuple[Level, ...] | None = None,
    **held: object,
) -> str:
    design: Design = plan_design(
        name,
        engine=engine,
        is_attached=is_attached,
        factors=factors,
        levels=levels,
        held=Held(**held),  # type: ignore[arg-type]
    )
    return "\n".join(design.kind.holds)


def test_a_loads_slots_pool_and_copies_are_named_as_they_are() -> None:
    said = holds("concurrency", levels=(1, 4), input_tokens=(100,))
    assert "n_parallel 4 at every level" in said
    assert "n_ctx 3072, of which each has an equal part" in said
    assert "old prompts is off (cache_ram_mib 0)" in said
    own = holds(
        "concurrency",
        levels=(1, 4),
        settings={"n_parallel": (8,), "n_ctx": (1024,), "kv_unified": (True,), "cache_ram_mib": (64,)},
    )
    assert "n_parallel 8 at every level" in own
    assert "n_ctx 1024, which they share" in own
    assert "cache_ram_mib 64" in own
    assert "is off" not in own


def test_slots_that_vary_are_not_said_to_be_held() -> None:
    said = holds("grid", factors={"concurrency": (1, 4), "n_parallel": (1, 4)}, settings={"n_ctx": (4096,)})
    assert "n_parallel" not in said
    assert "n_ctx 4096" in said
    assert "(cache_ram_mib 0)" in said


def test_of_a_running_server_no_slots_and_no_cache_are_said() -> None:
    said = holds("concurrency", is_attached=True)
    assert "n_parallel" not in said
    assert "cache_ram_mib" not in said
    assert "n_parallel" not in holds("concurrency", engine="vllm")


def test_other_designs_say_of_a_load_what_the_concurrency_design_says() -> None:
    said = holds("input_length", concurrency=(4,))
    assert "n_parallel 4" in said
    assert "one in each slot" in said
    assert "one short warm-up" not in said
    assert "n_parallel" not in holds("input_length")


def test_settings_that_were_given_otherwise_are_not_said_to_be_held_at_their_usual_value() -> None:
    assert "at 2,048" in holds("microbatch")
    assert "2,048" not in holds("microbatch", levels=(64, 128), settings={"n_batch": (512,)})
    assert "Flash attention is on" in holds("kv_dtype")
    assert "Flash attention is on" not in holds("kv_dtype", levels=("f16",), settings={"flash_attn": ("off",)})
    assert "in f16" not in holds("flash_attention", settings={"cache_type_k": ("q8_0",), "cache_type_v": ("q8_0",)})
    assert holds("host_cache", requests=3).startswith("3 conversations")
    assert "Nothing of an earlier prompt" not in holds("input_length", reuse_prefix=True)


def test_what_a_grids_second_factor_varies_is_not_said_to_be_held() -> None:
    lengths = holds("grid", factors={"n_ubatch": (64, 128), "prompt_tokens": (64, 96)})
    assert "same number of tokens" not in lengths
    assert "The same output limit" in lengths
    assert "2,048" not in holds("grid", factors={"n_ubatch": (64, 128), "n_batch": (128, 256)})
    assert "context limit: what the longest" not in holds(
        "grid", factors={"n_ctx": (512, 1024), "output_tokens": (4, 8)}, input_tokens=(64,)
    )


def test_a_shared_beginning_is_not_a_text_of_its_own() -> None:
    said = holds("concurrency", shared_prefix_tokens=64)
    assert "the first 64 tokens are the same" in said
    assert "text of its own" not in said


def test_a_written_study_says_the_same() -> None:
    asked = Asked(design="grid", factors={"concurrency": (1, 4), "n_parallel": (1, 4)}, settings={"n_ctx": (4096,)})
    text = " ".join(study_text([plan(asked)], "study.toml").replace("\n# ", " ").split())
    assert "Held fixed: The pool of all slots together: n_ctx 4096" in text
    assert "768" not in text
    assert "cache_ram_mib = 0" in text
