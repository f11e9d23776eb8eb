"""Whatever was measured: every piece of advice has rows or is named a prediction, saves something, is a setting that
the engine takes, and contradicts nothing that the study says."""

from collections.abc import Mapping
from random import Random
from typing import Any

from advice_studies import ROOMY, TIGHT, Level, attempts_of, study_of, trained_limit
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.analysis.advice import WORTH_SHARE, advise
from kvscope.analysis.advice_kind import Advice, Advised
from kvscope.analysis.attempts import Attempt
from kvscope.engine import llama_flags
from kvscope.engine.fake_law import fake_law
from kvscope.predict.question import canonical_settings
from kvscope.report.advice_words import advice_remarks, advice_text, withheld_text
from kvscope.units import MIB

# Designs of llama.cpp and of the fake engine: name, factor, what each level sets, the baseline first.
LLAMA: tuple[tuple[str, str, tuple[Mapping[str, Any], ...]], ...] = (
    ("kv_dtype", "kv_dtype", tuple({"cache_type_k": k, "cache_type_v": k} for k in ("f16", "q8_0", "q4_0"))),
    ("microbatch", "n_ubatch", tuple({"n_ubatch": n} for n in (512, 128, 1024))),
    ("flash_attention", "flash_attn", tuple({"flash_attn": n} for n in ("on", "off"))),
    ("window", "swa_full", tuple({"swa_full": n} for n in (False, True))),
    ("host_cache", "cache_ram_mib", tuple({"cache_ram_mib": n} for n in (8192, 24, 0))),
)
FAKE = (
    ("kv_dtype", "kv_dtype", tuple({"bytes_per_token": n} for n in (23_040, 12_240))),
    ("microbatch", "n_ubatch", tuple({"n_ubatch": n} for n in (512, 128, 1024))),
)
KEPT = [{"cache_type_k": "q8_0", "cache_type_v": "q8_0"}, {"cache_type_k": "q4_0", "cache_type_v": "q4_0"},
        {"n_ubatch": 256}, {"no_extra_bufts": True}, {"load_mode": "none"}, {"n_parallel": 4}]  # fmt: skip


def a_study(random: Random, engine: str) -> tuple[list[Attempt], Advised]:
    """Some designs, whose levels save, cost and slow by chance, under noise and free memory by chance."""
    attempts: list[Attempt] = []
    available = random.choice((ROOMY, TIGHT))
    changes = [
        {"change": each, "saved_bytes": random.choice((None, 0, -5 * MIB, 9 * MIB, 40 * MIB)), "is_estimate": False}
        for each in (KEPT if engine == "llama.cpp" else [])
    ]
    designs = LLAMA if engine == "llama.cpp" else FAKE
    for name, factor, each_sets in random.sample(designs, random.randint(1, len(designs))):
        levels = {
            str(n): Level(
                settings=each,
                more_kib=0 if n == 0 else random.choice((0, 8, 9000, -9000, -30_000)),
                ttft_s=random.choice((1.0, 1.0, 0.5, 1.5)),
                tpot_s=random.choice((0.02, 0.02, 0.01, 0.05)),
                saves_bytes=0 if n == 0 else random.choice((0, 22 * MIB)),
            )
            for n, each in enumerate(each_sets)
        }
        noise, repeats = random.choice((0.0, 0.01, 0.2)), random.randint(1, 6)
        attempts += attempts_of(
            name, factor, levels, noise=noise, repeats=repeats, available=available, random=random, changes=changes
        )
    binds = random.choice(("trained", "memory"))
    return attempts, advise(study_of(attempts, limit=trained_limit(attempts, binds=binds), engine=engine))


def takes(engine: str, advice: Advice) -> None:
    """The adapter starts the engine with it: it raises for a name or a value that it does not know."""
    if engine == "fake":
        fake_law(advice.change)
        return
    assert list(llama_flags.flags(advice.change)) or advice.change == {"swa_full": False}
    assert canonical_settings(engine, advice.change) == dict(advice.change)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), engine=st.sampled_from(("llama.cpp", "fake")))
def test_every_piece_of_advice_stands_on_something(seed: int, engine: str) -> None:
    attempts, found = a_study(Random(seed), engine)
    keys = {each.key for each in attempts}
    for advice in found.advice:
        takes(engine, advice)
        assert advice.flags
        assert advice.size > 0
        assert set(advice.evidence) <= keys
        if advice.is_measured:
            assert advice.evidence
        else:
            assert advice.predicted is not None
            assert any("Predicted only" in each for each in advice_remarks(advice))
        assert advice_text(advice)
        assert advice.harm < 2 or advice.quality.slug == "no_loss"
    for withheld in found.withheld:
        assert withheld_text(withheld)
        assert set(withheld.evidence) <= keys
    axes = [advice.axis for advice in found.advice]
    assert len(axes) == len(set(axes))
    advised = [advice.change for advice in found.advice]
    assert not [each for each in found.withheld if each.change in advised]


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_what_measurement_contradicts_is_never_advised(seed: int) -> None:
    """By the rows themselves: the mean of the memory of both sides of each change that is advised for memory."""
    attempts, found = a_study(Random(seed), "llama.cpp")
    for advice in found.advice:
        if advice.helps != "memory" or not advice.evidence:
            continue
        (name,) = {a.design.name for a in attempts if a.key in advice.evidence}
        sides: dict[bool, list[int]] = {True: [], False: []}
        for each in attempts:
            if each.design.name == name and each.key in advice.evidence:
                peak = each.metrics.memory_peak_bytes
                assert peak is not None
                sides[dict(each.trial.settings) == dict(advice.change)].append(peak)
        before, after = (sum(sides[side]) / len(sides[side]) for side in (False, True))
        assert before - after > WORTH_SHARE * before


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32))
def test_nothing_is_paid_where_memory_is_no_trouble(seed: int) -> None:
    _, found = a_study(Random(seed), "llama.cpp")
    if found.pressure.is_free:
        for advice in found.advice:
            assert advice.helps == "waiting" or advice.harm == 0
