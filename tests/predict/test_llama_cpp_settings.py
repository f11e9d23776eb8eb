"""llama.cpp's settings: names, spellings, values and refusals."""

from collections.abc import Callable
from typing import Any

import pytest

from kvscope.errors import UnknownName, UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation.llama_cpp_settings import ALIASES, SETTING_NAMES, canonical_settings, read_settings
from kvscope.predict.memory import predict


def test_defaults_are_the_engines() -> None:
    """As xllamacpp's CommonParams states them, but for n_parallel: one slot per sequence asked about."""
    defaults = read_settings({}, 1)
    assert (defaults.n_ctx, defaults.n_batch, defaults.n_ubatch) == (0, 2048, 512)
    assert (defaults.n_parallel, defaults.kv_unified) == (1, False)
    assert (defaults.cache_type_k.name, defaults.cache_type_v.name) == ("float16", "float16")
    assert (defaults.flash_attn, defaults.load_mode, defaults.cache_ram_mib) == ("on", "mmap", 8192)
    assert (defaults.swa_full, defaults.embedding, defaults.no_extra_bufts) == (False, False, False)
    assert read_settings({}, 4).n_parallel == 4


@pytest.mark.parametrize(
    ("given", "name", "value"),
    [
        ({"--ctx-size": "8k"}, "n_ctx", 8192),
        ({"ctx_size": 4096}, "n_ctx", 4096),
        ({"c": "512"}, "n_ctx", 512),
        ({"parallel": "4"}, "n_parallel", 4),
        ({"ubatch-size": "128"}, "n_ubatch", 128),
        ({"batch_size": 256}, "n_batch", 256),
        ({"flash_attn": "off"}, "flash_attn", "off"),
        ({"fa": "AUTO"}, "flash_attn", "on"),
        ({"flash_attn_type": True}, "flash_attn", "on"),
        ({"flash_attn": 0}, "flash_attn", "off"),
        ({"load_mode": 0}, "load_mode", "none"),
        ({"load_mode": "direct-io"}, "load_mode", "none"),
        ({"load_mode": -1}, "load_mode", "mmap"),
        ({"no_mmap": True}, "load_mode", "none"),
        ({"mmap": "false"}, "load_mode", "none"),
        ({"mmap": 1}, "load_mode", "mmap"),
        ({"kv_unified": "true"}, "kv_unified", True),
        ({"swa-full": "on"}, "swa_full", True),
        ({"cache-ram": "0"}, "cache_ram_mib", 0),
        ({"cache_ram_mib": -1}, "cache_ram_mib", -1),
        ({"load_mode": "mmap+mlock"}, "load_mode", "mmap"),
        ({"no-repack": True}, "no_extra_bufts", True),
        ({"n_threads": 2, "warmup": False, "seed": 1, "sampling.temp": 0.0, "endpoint_slots": True}, "n_ctx", 0),
    ],
)
def test_spellings(given: dict[str, Any], name: str, value: Any) -> None:
    assert getattr(read_settings(given, 1), name) == value


def test_cache_types() -> None:
    assert read_settings({"ctk": "Q8_0", "cache_type_v": "bf16"}, 1).cache_type_k.name == "q8_0"
    with pytest.raises(UnknownName, match="q6_k") as caught:
        read_settings({"cache_type_k": "q6_k"}, 1)
    assert "q8_0" in str(caught.value.hint)
    with pytest.raises(UnknownName, match="tiny"):
        read_settings({"cache_type_k": "tiny"}, 1)


def test_auto_slots_are_four_and_unified() -> None:
    auto = read_settings({"n_parallel": -1}, 3)
    assert (auto.n_parallel, auto.kv_unified) == (4, True)


def test_an_unknown_setting_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName) as caught:
        read_settings({"n_ctxx": 1}, 1)
    assert "Did you mean n_ctx?" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"n_parallel": 300}, "n_seq_max must be <= 256"),
        ({"n_parallel": 0}, "n_parallel"),
        ({"n_ctx": 1}, "aborts"),
        ({"n_ctx": -5}, "n_ctx"),
        ({"n_ctx": 2.5}, "n_ctx"),
        ({"n_ctx": True}, "n_ctx"),
        ({"n_ctx": "many"}, "many"),
        ({"n_ctx": 2**40}, "n_ctx"),
        ({"n_batch": 0}, "n_batch"),
        ({"cache_ram_mib": "lots"}, "cache_ram_mib"),
        ({"swa_full": "perhaps"}, "swa_full"),
        ({"flash_attn": "sometimes"}, "auto, disabled"),
        ({"load_mode": "tape"}, "load_mode"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "quantized V cache requires flash_attn"),
        ({"n_ctx": 512, "ctx_size": 1024}, "given twice"),
        ({"lora": "x"}, "adapters"),
    ],
)
def test_refusals_say_why(smollm2: ModelSpec, given: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        predict(smollm2, engine="llama.cpp", settings=given)


@pytest.mark.parametrize(
    ("given", "canonical"),
    [
        ({"ctk": "Q8_0", "ctv": "float16"}, {"cache_type_k": "q8_0", "cache_type_v": "f16"}),
        ({"--ctx-size": "8k", "np": "2", "ub": 64}, {"n_ctx": 8192, "n_parallel": 2, "n_ubatch": 64}),
        ({"no_mmap": True}, {"load_mode": "none"}),
        ({"load_mode": "none"}, {"load_mode": "none"}),
        ({"load_mode": 4}, {"load_mode": "dio"}),
        ({"load_mode": "mmap_mlock"}, {"load_mode": "mmap+mlock"}),
        ({"fa": True, "kvu": "yes", "no-repack": 1}, {"flash_attn": "on", "kv_unified": True, "no_extra_bufts": True}),
        ({"temperature": "0.5", "seed": 7, "warmup": "off"}, {"sampling.temp": 0.5, "seed": 7, "warmup": False}),
        ({}, {}),
    ],
)
def test_canonical_names_and_values(given: dict[str, Any], canonical: dict[str, Any]) -> None:
    found = canonical_settings(given)
    assert {name: (value, type(value)) for name, value in found.items()} == {
        name: (value, type(value)) for name, value in canonical.items()
    }
    assert canonical_settings(found) == found
    assert read_settings(given, 1).as_asked == canonical


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_no_value_is_no_setting(name: str) -> None:
    """None is the absence of a value; it must not be read as the word "none"."""
    with pytest.raises(UsageError):
        canonical_settings({name: None})


def test_every_alias_leads_to_a_name_that_is_known_or_explained() -> None:
    for alias, name in ALIASES.items():
        assert alias not in SETTING_NAMES
        if name not in SETTING_NAMES:
            with pytest.raises(UsageError, match="cannot be predicted"):
                canonical_settings({alias: 1})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        # llama-cpp-python's use_mmap and use_mlock, and llama-server's --mlock of before --load-mode.
        ({"use_mmap": "false"}, "none"), ({"use_mmap": True}, "mmap"), ({"mlock": True}, "mlock"),
        ({"use_mlock": True}, "mlock"), ({"use_mlock": False}, "auto"),
    ],
)  # fmt: skip
def test_other_words_for_how_a_file_is_loaded(given: dict[str, Any], meant: str) -> None:
    assert canonical_settings(given) == {"load_mode": meant}


def test_a_setting_like_none_is_not_answered_with_a_list_of_all() -> None:
    with pytest.raises(UnknownName) as caught:
        canonical_settings({"xyzzy": 1})
    hint = str(caught.value.hint)
    assert "docs/reference/engines.md has them all" in hint
    assert "cache_type_k" not in hint
    with pytest.raises(UnknownName) as caught:
        canonical_settings({"nommap": True})
    assert "Did you mean no_mmap?" in str(caught.value.hint)


@pytest.mark.parametrize("given", [{"n_ctx": 512, "ctx_size": 512}, {"no_mmap": True, "load_mode": "none"}])
def test_a_setting_in_two_spellings_is_given_twice(given: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="given twice"):
        canonical_settings(given)


@pytest.mark.parametrize("name", ["port", "hostname", "model", "use_jinja", "sampling.grammar"])
def test_what_no_engine_takes_as_a_setting_is_unknown(name: str) -> None:
    with pytest.raises(UnknownName):
        canonical_settings({name: 1})


def test_quantised_keys_without_flash_attention_are_allowed(smollm2: ModelSpec) -> None:
    """The engine allows K quantised with flash attention off; only V must not be."""
    settings = {"cache_type_k": "q8_0", "flash_attn": "off", "n_ctx": 2048}
    assert predict(smollm2, engine="llama.cpp", settings=settings).cache_bytes == 30 * 2048 * (204 + 384)


def test_more_sequences_than_slots_is_refused(smollm2: ModelSpec) -> None:
    with pytest.raises(UsageError, match="need 4 slots"):
        predict(smollm2, engine="llama.cpp", sequences=4, settings={"n_parallel": 2})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"cache_type_k": "q8_0"}, "model does not support different K (q8_0) and V (f16) cache types"),
        ({"cache_type_v": "f32"}, "model does not support different K (f16) and V (f32) cache types"),
        ({"cache_type_v": "q8_0", "flash_attn": "off"}, "does not support different K (f16) and V (q8_0) cache types"),
        ({"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, "does not divide n_embd_head_k=48"),
    ],
)
def test_latent_attention_takes_one_cache_type(
    golden_model: Callable[[str], ModelSpec], changes: dict[str, str], reason: str
) -> None:
    """The engine's own reasons, as it gave them for this file (tests/golden/gguf/README.md)."""
    model = golden_model("tiny-deepseek2-mla")
    with pytest.raises(UsageError) as caught:
        predict(model, engine="llama.cpp", settings=changes)
    assert reason in str(caught.value)


def test_a_key_head_is_held_against_the_format_with_flash_attention_only(
    golden_model: Callable[[str], ModelSpec],
) -> None:
    """Logged by the engine for this file, one context of 30,976 cells, key format q5_1: K 2.13 MiB, V 5.67 MiB for
    3 layers of 2 heads of 16, 24 B and 64 B a cell (tests/golden/gguf/README.md)."""
    model = golden_model("tiny-qwen2")
    with pytest.raises(UsageError, match="does not divide n_embd_head_k=16"):
        predict(model, engine="llama.cpp", settings={"cache_type_k": "q5_1"})
    found = predict(model, engine="llama.cpp", settings={"n_ctx": 30_976, "cache_type_k": "q5_1", "flash_attn": "off"})
    cache = next(b for b in found.buffers if b.name == "kv_cache")
    assert (cache.details["k_bytes"], cache.details["v_bytes"]) == (30_976 * 3 * 24, 30_976 * 3 * 64)
