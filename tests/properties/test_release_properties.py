"""Verdicts on curves of which it is known how they were made: bounded ones are never called growing, and what holds is
never called released, whatever the noise."""

from hypothesis import given, settings
from hypothesis import strategies as st
from release_rows import GIB, LAUNCHED, MIB, judged

from kvscope.analysis.release_curve import GROWTH_STEP_BYTES, STILL_BYTES, trend_of
from kvscope.analysis.release_verdict import BACK_MOST_BYTES

KIB = 1024
NOISE = st.integers(-GROWTH_STEP_BYTES // 2, GROWTH_STEP_BYTES // 2)
HEIGHT = st.integers(0, 64 * GIB)
SLOPE = st.integers(KIB, 100 * MIB)


@st.composite
def plateaus(draw: st.DrawFn) -> list[int]:
    """A curve that fills to some height, by any steps, and then stays there for at least as many rounds."""
    base = draw(st.integers(LAUNCHED + 4 * MIB, 8 * GIB))
    steps = draw(st.lists(st.integers(0, 2 * GIB), max_size=8))
    levels = [base]
    for step in steps:
        levels.append(levels[-1] + step)
    levels += [levels[-1]] * draw(st.integers(max(2, len(steps) + 1), len(steps) + 8))
    return [level + draw(NOISE) for level in levels]


@st.composite
def evicting(draw: st.DrawFn) -> list[int]:
    """A cache that takes a copy each round and drops its oldest when it is full."""
    entry = draw(st.integers(MIB, GIB))
    most = draw(st.integers(1, 4))
    count = draw(st.integers(2 * most + 4, 2 * most + 12))
    return [LAUNCHED + 64 * MIB + entry * min(number, most) + draw(NOISE) for number in range(count)]


@settings(deadline=None)
@given(plateaus() | evicting())
def test_a_bounded_curve_is_never_called_growing(levels: list[int]) -> None:
    assert trend_of(levels).kind == "still"
    for known in ({}, {"unloaded": LAUNCHED}, {"unloaded": levels[-1]}, {"exited": 0}, {"launched": None}):
        assert judged(levels, **known).verdict != "growing"


@settings(deadline=None)
@given(st.lists(st.integers(-GIB, 2 * GIB), max_size=40), st.integers(3, 20), st.data())
def test_a_curve_that_is_flat_at_its_end_is_never_called_growing(
    steps: list[int], flat: int, data: st.DataObject
) -> None:
    # Three readings of the same, and a third of all: whatever it did before, it does not grow now.
    levels = [64 * GIB]
    for step in steps:
        levels.append(levels[-1] + step)
    flat = max(flat, -(-len(levels) // 2), 4 if len(levels) > 9 else 3)
    end = [levels[-1] + data.draw(st.integers(0, MIB // 8)) for _ in range(flat - 1)]
    assert trend_of([*levels, *end]).kind != "growing"


@settings(deadline=None)
@given(
    st.integers(-4 * GIB, 4 * GIB), st.sampled_from([0, 3, 4, 5]), st.integers(4, 30), st.integers(2 * MIB, GIB),
    st.integers(0, 1),
)  # fmt: skip
def test_the_slope_is_that_of_the_part_that_grows(first: int, flat: int, count: int, step: int, again: int) -> None:
    # A first reading of any size, or a start that stands still, before so much a conversation.
    growth = [64 * GIB + step * number for number in range(count + 1)]
    before = [growth[0]] * (flat - 1) if flat else [growth[0] - step + first]
    found = trend_of([*before, *growth, *growth[-1:] * again])
    if found.kind == "growing" and not again:
        assert found.slope.value == step
    assert found.kind == "growing" or first > 0


@settings(deadline=None)
@given(st.lists(st.integers(0, GIB), min_size=2, max_size=5), st.integers(4, 10), st.integers(0, GIB))
def test_a_sawtooth_under_a_ceiling_is_never_called_growing(tooth: list[int], times: int, base: int) -> None:
    # The same rise and fall over and over, as of a collector that frees now and then.
    levels = [LAUNCHED + base + height for height in tooth * times]
    assert trend_of(levels).kind != "growing"


@settings(deadline=None)
@given(SLOPE, st.integers(6, 60), st.data())
def test_growth_beyond_the_noise_is_found_and_smaller_growth_is_not_claimed(
    slope: int, count: int, data: st.DataObject
) -> None:
    base = LAUNCHED + 64 * MIB
    levels = [base + slope * n + data.draw(NOISE) for n in range(count)]
    found = judged(levels, unloaded=LAUNCHED)
    # What the last half of the steps rises by, whatever the noise added or took.
    rise = slope * ((count - 1) // 2)
    if slope >= 4 * GROWTH_STEP_BYTES:
        assert found.verdict == "growing"
    elif rise + GROWTH_STEP_BYTES <= STILL_BYTES // 2:
        assert found.verdict != "growing"
    if found.verdict == "growing":
        assert found.step.value is not None
        assert abs(found.step.value - slope) <= 2 * GROWTH_STEP_BYTES


@settings(deadline=None)
@given(st.integers(BACK_MOST_BYTES + 1, 64 * GIB), st.integers(3, 12), st.data())
def test_what_holds_is_never_called_released(height: int, count: int, data: st.DataObject) -> None:
    # More than may stay of anything stays: 5 %, and in any case 64 MiB.
    levels = [LAUNCHED + height + data.draw(NOISE) for _ in range(count)]
    share = data.draw(st.floats(0.05, 1.0, exclude_min=True))
    kept = max(int(share * height) + STILL_BYTES, STILL_BYTES + MIB)
    swapped = [data.draw(st.integers(0, level)) for level in levels]
    known = data.draw(st.sampled_from([{}, {"exited": 0}, {"exited": LAUNCHED + kept}]))
    found = judged(levels, unloaded=LAUNCHED + kept, swapped=swapped, **known)
    assert found.verdict == "retained_bounded"
    assert judged(levels, exited=LAUNCHED + kept, swapped=swapped).verdict != "released"
    on_device = {"device_levels": levels, "devices": {"launched": 0, "unloaded": kept}}
    assert judged(levels, unloaded=LAUNCHED, **on_device).verdict != "released"


@settings(deadline=None)
@given(st.lists(HEIGHT, max_size=8), st.data())
def test_missing_marks_never_make_a_release(heights: list[int], data: st.DataObject) -> None:
    levels = [LAUNCHED + 4 * MIB + height for height in heights]
    launched = data.draw(st.sampled_from([None, LAUNCHED]))
    found = judged(levels, launched=launched)
    assert found.verdict in ("growing", "cannot_tell", "retained_bounded")
    if launched is None:
        assert judged(levels, launched=None, unloaded=4 * MIB).verdict != "released"


@settings(deadline=None)
@given(plateaus(), st.integers(1, 5))
def test_with_requests_active_nothing_is_claimed(levels: list[int], active: int) -> None:
    found = judged(levels, active=active, unloaded=LAUNCHED, exited=0)
    assert found.verdict == "cannot_tell"
    assert found.reason is not None
    assert found.reason.values["count"] == active


@settings(deadline=None)
@given(st.integers(1, 4096), st.integers(MIB, 64 * MIB), st.integers(4, 12))
def test_a_cache_that_fills_towards_its_limit_is_bounded_by_it(limit_mib: int, entry: int, count: int) -> None:
    copies = [min(entry * number, limit_mib * MIB // entry * entry) for number in range(count)]
    levels = [LAUNCHED + 64 * MIB + size for size in copies]
    found = judged(levels, copies=copies, limit_mib=float(limit_mib), unloaded=LAUNCHED + 32 * MIB)
    if entry > limit_mib * MIB:
        return
    assert found.verdict == "retained_bounded"
    bound = found.bounds[0]
    assert bound.limit_bytes == limit_mib * MIB
    assert bound.held_bytes is not None
    assert bound.to_go_bytes == limit_mib * MIB - bound.held_bytes
    # The log prints thousandths of a MiB.
    assert copies[-1] - 2 * KIB <= bound.held_bytes <= copies[-1]
