"""Advice is given only where something stands for it, is true of the study, and pays nothing for what is not short."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from advice_studies import (
    F16,
    LOADED_KIB,
    Q8,
    ROOMY,
    TIGHT,
    Level,
    advised,
    attempts_of,
    design_of,
    study_of,
    trained_limit,
)
from answer_rows import answers
from study_rows import KIB, answered, mark, prediction, trial_row, whole_lab, write_record
from study_rows import attempt as one_attempt

import kvscope
from kvscope.analysis.advice import advise
from kvscope.analysis.advice_flags import _LLAMA, _LLAMA_SWITCHES, flags_of
from kvscope.analysis.advice_kind import Advice
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.finding import Finding
from kvscope.analysis.study import analyse
from kvscope.engine import llama_flags
from kvscope.predict.question import Question, canonical_settings
from kvscope.predict.what_if import candidates
from kvscope.record.store import open_records
from kvscope.units import MIB

KV_HALF = 22 * MIB


def cache_types(**changes: Any) -> list[Attempt]:
    """f16 against q8_0, which saves 22 MiB and costs 0.1 s."""
    given = {"repeats": 5, "available": TIGHT, **changes}
    q8 = given.pop("q8", Level(settings=Q8, more_kib=-KV_HALF // KIB, ttft_s=1.1, saves_bytes=KV_HALF))
    return attempts_of("kv_dtype", "kv_dtype", {"f16": Level(settings=F16), "q8_0": q8}, **given)


def only(found: tuple[Advice, ...], slug: str) -> Advice:
    (one,) = [each for each in found if each.slug == slug]
    return one


def test_a_measured_saving_is_advised_with_its_interval_its_price_and_its_rows() -> None:
    attempts = cache_types(noise=0.01)
    found = advised(attempts)
    assert found.pressure.slug == "nearly_full"  # 142 of 160 MiB
    advice = only(found.advice, "cache_type")
    assert advice.flags == "--cache-type-k q8_0 --cache-type-v q8_0"
    # By hand: 22 MiB less in each pair, give or take the pages that the rows wobble by (at most 2 × 4 KiB).
    assert advice.saved is not None
    assert advice.saved.value == pytest.approx(KV_HALF, abs=8 * KIB)
    assert advice.saved.low is not None
    assert advice.saved.high is not None
    assert advice.saved.low <= KV_HALF <= advice.saved.high
    assert advice.predicted == KV_HALF
    assert {cost.metric: cost.verdict for cost in advice.costs}["ttft_s"] == "more"
    assert advice.quality.slug == "not_measured"
    assert set(advice.evidence) == {a.key for a in attempts}
    assert not found.withheld


def test_where_memory_fits_easily_no_time_and_no_answers_are_paid_for_it() -> None:
    found = advised(cache_types(available=ROOMY, noise=0.01))
    assert found.pressure.is_free
    assert not found.advice
    assert [(w.reason, w.flags) for w in found.withheld] == [("memory_free", "--cache-type-k q8_0 --cache-type-v q8_0")]


def test_where_memory_ends_the_length_it_is_worth_saving() -> None:
    found = advised(cache_types(available=ROOMY), binds="memory")
    assert found.pressure.slug == "limits_length"
    assert only(found.advice, "cache_type").is_measured


@pytest.mark.parametrize("more_kib", [0, 4096])
def test_a_promise_that_measurement_contradicts_is_named_and_not_advised(more_kib: int) -> None:
    q8 = Level(settings=Q8, more_kib=more_kib, saves_bytes=KV_HALF)
    change = {"change": Q8, "saved_bytes": KV_HALF, "harm": 1, "axis": "cache type", "is_estimate": False}
    milder = {**change, "change": {**Q8, "cache_type_v": "f16"}, "saved_bytes": KV_HALF // 2}
    found = advised(cache_types(q8=q8, changes=[change, milder]))
    assert not [each for each in found.advice if each.axis == "cache_type"]  # and no milder one of its kind, unmeasured
    assert [(w.reason, w.predicted) for w in found.withheld] == [("saved_nothing", KV_HALF)]


def test_answers_lost_are_not_a_price_to_be_paid() -> None:
    wrong = {"rows": {"answers": answers(10, 4, 0.0)}}
    right = {"rows": {"answers": answers(10, 4, 0.9)}}
    levels = {
        "f16": Level(settings=F16, **right),
        "q8_0": Level(settings=Q8, more_kib=-KV_HALF // KIB, ttft_s=0.5, tpot_s=0.01, saves_bytes=KV_HALF, **wrong),
    }
    found = advised(attempts_of("kv_dtype", "kv_dtype", levels, available=TIGHT, repeats=2))
    assert not [each for each in found.advice if each.change == Q8]
    assert [w.reason for w in found.withheld] == ["lost_answers"]


def test_one_repeat_is_no_measurement_of_a_saving() -> None:
    advice = only(advised(cache_types(repeats=1)).advice, "cache_type")
    assert not advice.is_measured
    assert advice.predicted == KV_HALF
    assert advice.evidence
    q8 = Level(settings=Q8, more_kib=64, saves_bytes=KV_HALF)
    found = advised(cache_types(repeats=1, q8=q8))
    assert [w.reason for w in found.withheld] == ["saved_nothing"]


def test_cache_of_four_bits_needs_answers_that_speak_for_it() -> None:
    q4 = dict.fromkeys(Q8, "q4_0")
    levels = {"f16": Level(settings=F16), "q4_0": Level(settings=q4, more_kib=-2 * KV_HALF // KIB)}
    assert not advised(attempts_of("kv_dtype", "kv_dtype", levels, available=TIGHT)).advice


MICROBATCH = {512: Level(settings={"n_ubatch": 512}), 1024: Level(settings={"n_ubatch": 1024}, more_kib=9000)}


def test_a_faster_setting_is_advised_with_the_memory_that_it_costs() -> None:
    levels = {**MICROBATCH, 1024: replace(MICROBATCH[1024], ttft_s=0.6)}
    found = advised(attempts_of("microbatch", "n_ubatch", levels, noise=0.01))
    advice = only(found.advice, "microbatch_larger")
    assert (advice.helps, advice.metric, advice.flags) == ("waiting", "completion_s", "--ubatch-size 1024")
    assert advice.saved is not None
    assert advice.saved.value == pytest.approx(0.4, abs=0.05)
    memory = next(cost for cost in advice.costs if cost.metric == "memory_bytes")
    assert memory.verdict == "more"
    assert memory.difference.value == pytest.approx(9000 * KIB, abs=8 * KIB)


def test_a_setting_that_shortens_one_wait_and_lengthens_another_is_not_advised() -> None:
    levels = {**MICROBATCH, 1024: replace(MICROBATCH[1024], ttft_s=0.6, tpot_s=0.5)}
    found = advised(attempts_of("microbatch", "n_ubatch", levels, noise=0.001))
    assert not found.advice
    assert [w.reason for w in found.withheld] == ["slower"]


def test_of_changes_that_exclude_each_other_one_is_advised() -> None:
    levels = {**MICROBATCH, 1024: replace(MICROBATCH[1024], ttft_s=0.6)}
    smaller = {"change": {"n_ubatch": 256}, "saved_bytes": 9 * MIB, "harm": 1, "axis": "microbatch"}
    attempts = attempts_of("microbatch", "n_ubatch", levels, noise=0.01, available=TIGHT, changes=[smaller])
    assert [each.axis for each in advised(attempts).advice] == ["microbatch"]


def test_no_difference_gives_advice_in_no_more_than_one_study_in_twenty() -> None:
    """120 studies of three designs with eight levels in which nothing differs but noise."""
    random, false = Random(2026), 0
    for _ in range(120):
        attempts = []
        for name, factor, settings in (
            ("microbatch", "n_ubatch", [{"n_ubatch": n} for n in (512, 128, 256, 1024)]),
            ("flash_attention", "flash_attn", [{"flash_attn": n} for n in ("on", "off")]),
            ("window", "swa_full", [{"swa_full": n} for n in (False, True)]),
        ):
            levels = {str(n): Level(settings=each) for n, each in enumerate(settings)}
            attempts += attempts_of(name, factor, levels, repeats=5, noise=0.1, random=random)
        false += any(each.helps == "waiting" for each in advised(attempts).advice)
    assert false <= 6 + 5  # 5 % of 120, and two standard deviations of that count


def test_a_context_beyond_what_is_sent_is_advised_against_only_where_memory_binds() -> None:
    """8,192 cells of 23,040 B are reserved and 108 tokens held: 256 do, which are 7,936 cells less."""
    design = design_of("input_length", "prompt_tokens", (512,))
    rows = [
        one_attempt(
            trial_row(design, 512, n, settings={"n_ctx": 8192}),
            design=design,
            predicted=prediction(8192),
            effective={"n_ctx": 8192},
            marks=(mark("launched", 8000, machine_available_bytes=TIGHT), mark("after_request", LOADED_KIB)),
            **answered(100),
        )
        for n in range(2)
    ]
    advice = only(advised(rows).advice, "context")
    assert (advice.flags, advice.values["need_tokens"]) == ("--ctx-size 256", 108)
    assert (advice.predicted, advice.is_measured) == (7936 * 23_040, False)
    roomy = [replace(r, result=replace(r.result, marks=(mark("launched", 8000, machine_available_bytes=ROOMY),
                                                        *r.result.marks[1:]))) for r in rows]  # fmt: skip
    assert not [each for each in advised(roomy).advice if each.slug == "context"]


def test_copies_that_may_outgrow_the_machine_get_a_lower_limit(tmp_path: Path) -> None:
    """8 GiB may be kept and 4 GiB are left: half of what is left, in steps of 256 MiB. What that saves
    ends with the 4 GiB that could be taken beside what is held."""
    with open_records(write_record(tmp_path / "r.db", whole_lab())) as records:
        (study,) = analyse(records).studies
    advice = only(study.advice, "host_cache_limit")
    assert advice.flags == "--cache-ram 2048"
    held = advice.values["held_bytes"]
    assert isinstance(held, int)
    assert advice.predicted == held + 2 * 1024**3
    assert not advice.is_measured


@pytest.mark.parametrize(
    ("cause", "slug", "flags"),
    [
        ("lost", "history", ""),
        ("reasoning_dropped", "history_reasoning", ""),
        ("window", "history_window", "--swa-full"),
    ],
)
def test_a_history_that_is_computed_again_is_advised_against_by_its_cause(cause: str, slug: str, flags: str) -> None:
    """Of 500 prompt tokens 400 had been sent and 100 are reused: 400 are computed in 1 s, of which 300 are history."""
    attempts = attempts_of("microbatch", "n_ubatch", {512: Level(settings={"n_ctx": 2048})})
    values = {"turn": 2, "last_turn": 3, "held_tokens": 400.0, "cached_tokens": 100.0, "prompt_tokens": 500.0}
    finding = Finding(
        slug=f"turns_reuse_{cause}",
        values={**values, "last_s": 1.0},
        evidence=(attempts[0].key,),
        design_id="design-microbatch",
    )
    study = replace(study_of(attempts, limit=trained_limit(attempts)), findings=(finding,))
    advice = only(advise(study).advice, slug)
    assert (advice.helps, advice.is_measured, advice.flags) == ("waiting", False, flags)
    assert advice.predicted == pytest.approx(0.75)
    assert advice.evidence == finding.evidence


def test_of_a_state_that_cannot_be_cut_back_nothing_is_advised() -> None:
    attempts = attempts_of("microbatch", "n_ubatch", {512: Level(settings={})})
    finding = Finding(slug="turns_reuse_recurrent", values={"held_tokens": 4.0, "last_s": 1.0}, design_id="d")
    assert not advise(replace(study_of(attempts), findings=(finding,))).advice


@pytest.mark.parametrize("late_s", [0.9, 0.1])
def test_a_changed_beginning_is_advised_against_where_its_wait_was_measured(late_s: float) -> None:
    levels = {"warm": Level(settings={}, ttft_s=0.1), "changed_start": Level(settings={}, ttft_s=late_s)}
    found = advised(attempts_of("prefix_reuse", "prefix", levels, noise=0.02)).advice
    if late_s == 0.1:
        assert not found
        return
    advice = only(found, "stable_prefix")
    assert advice.saved is not None
    assert advice.saved.value == pytest.approx(0.8, abs=0.05)
    assert len(advice.evidence) == 10


def test_nothing_is_said_of_memory_where_a_device_or_an_unread_machine_has_it() -> None:
    attempts = cache_types()
    unread = [replace(a, result=replace(a.result, marks=())) for a in attempts]
    assert advise(study_of(unread, limit=trained_limit(attempts))).pressure.slug == "unknown"


def test_flags_are_those_that_the_engine_adapter_would_give() -> None:
    for name in _LLAMA:
        value = {"cache_type_k": "q8_0", "flash_attn": "on", "load_mode": "none"}.get(name, 7)
        assert flags_of("llama.cpp", {name: value}) == " ".join(llama_flags.flags({name: value}))
    for name, (on, off) in _LLAMA_SWITCHES.items():
        for value, flag in ((True, on), (False, off)):
            expected = [flag] if flag is not None else []
            assert list(llama_flags.flags({name: value})) == expected
            if flag is not None:
                assert flags_of("llama.cpp", {name: value}) == flag
    assert flags_of("llama.cpp", {"swa_full": False}) == "(no --swa-full)"


@pytest.mark.parametrize(
    ("engine", "change", "text"),
    [
        ("ollama", {"kv_cache_type": "q8_0"}, "OLLAMA_FLASH_ATTENTION=1 OLLAMA_KV_CACHE_TYPE=q8_0"),
        ("ollama", {"num_ctx": 4096}, "PARAMETER num_ctx 4096"),
        ("vllm", {"kv_cache_dtype": "fp8"}, "--kv-cache-dtype fp8"),
        ("vllm", {"disable_hybrid_kv_cache_manager": True}, "--disable-hybrid-kv-cache-manager"),
        ("sglang", {"context_length": 4096}, "--context-length 4096"),
        ("transformers", {"cache_implementation": "offloaded"}, "cache_implementation='offloaded'"),
        ("fake", {"bytes_per_token": 12240}, "bytes_per_token=12240"),
    ],
)
def test_each_engine_in_its_own_words(engine: str, change: Mapping[str, Any], text: str) -> None:
    assert flags_of(engine, change) == text


@pytest.mark.parametrize("engine", ["llama.cpp", "ollama", "vllm", "sglang", "transformers"])
def test_what_is_kept_of_any_engine_can_be_told_and_nothing_harmful_is_advised_unmeasured(engine: str) -> None:
    """Every change that the predictor lists for a published model, as if each saved a tenth of its memory."""
    model = kvscope.load_model(
        {"model_type": "gemma2", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4,
         "num_key_value_heads": 2, "head_dim": 64, "vocab_size": 1000, "intermediate_size": 512,
         "sliding_window": 128, "max_position_embeddings": 8192, "torch_dtype": "float16"}
    )  # fmt: skip
    question = Question(model=model, engine=engine, tokens=1024)
    listed = [c.change for c in candidates(question) if "engine" not in c.change]
    assert listed
    kept = [{"change": dict(change), "saved_bytes": 9 * MIB, "is_estimate": False} for change in listed]
    levels = {64: Level(settings={})}
    attempts = attempts_of("input_length", "prompt_tokens", levels, changes=kept, available=TIGHT, engine=engine)
    found = advised(attempts, engine=engine).advice
    assert {advice.helps for advice in found} <= {"memory"}
    for advice in found:
        assert advice.harm < 2
        assert not advice.is_measured
        assert advice.flags
        assert canonical_settings(engine, advice.change) == dict(advice.change)
        assert dict(advice.change) in [dict(change) for change in listed]
    assert bool(found) == (engine in ("llama.cpp", "ollama", "transformers"))
