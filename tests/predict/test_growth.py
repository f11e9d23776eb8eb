"""GrowthLaw: five numbers, and what they promise."""

from hypothesis import given
from hypothesis import strategies as st

from kvscope.predict.growth import GrowthLaw, constant, slope_sum, sum_of_laws

laws = st.builds(
    GrowthLaw,
    fixed_bytes=st.integers(0, 10**9),
    bytes_per_token=st.integers(0, 10**6),
    bytes_per_token_pair=st.integers(0, 100),
    cap_tokens=st.none() | st.integers(1, 10**5),
    step_tokens=st.integers(1, 512),
)
lengths = st.integers(0, 10**6)
all_laws = st.builds(
    GrowthLaw,
    fixed_bytes=st.integers(0, 10**9),
    bytes_per_token=st.integers(0, 10**6),
    bytes_per_token_pair=st.integers(0, 100),
    cap_tokens=st.none() | st.sampled_from([300, 4096]),
    step_tokens=st.sampled_from([1, 4, 128]),
    per_step=st.booleans(),
    unfinished=st.booleans(),
    from_tokens=st.sampled_from([0, 4, 1000]),
)


def test_written_out() -> None:
    """A window of 512 in pages of 16, at 1,024 B per token: 100 tokens fill 7 pages; beyond 512 nothing is added."""
    law = GrowthLaw(bytes_per_token=1024, cap_tokens=512, step_tokens=16)
    assert [law.bytes_at(n) for n in (0, 1, 100, 512, 513, 10**6)] == [
        0,
        16 * 1024,
        112 * 1024,
        512 * 1024,
        512 * 1024,
        512 * 1024,
    ]
    quadratic = GrowthLaw(fixed_bytes=7, bytes_per_token=2, bytes_per_token_pair=3)
    assert quadratic.bytes_at(10) == 7 + 20 + 300
    assert constant(5).bytes_at(123) == 5


@given(laws, lengths, lengths)
def test_memory_never_shrinks_with_context(law: GrowthLaw, first: int, second: int) -> None:
    shorter, longer = sorted((first, second))
    assert law.bytes_at(shorter) <= law.bytes_at(longer)


@given(laws, lengths)
def test_cap_and_step_are_respected(law: GrowthLaw, length: int) -> None:
    held = law.held_tokens(length)
    assert held % law.step_tokens == 0
    assert held < min(length, law.cap_tokens or length) + law.step_tokens
    if law.cap_tokens is not None and length >= law.cap_tokens:
        assert law.bytes_at(length + 1) == law.bytes_at(length)


@given(laws, lengths, st.integers(1, 64))
def test_n_things_cost_n_times(law: GrowthLaw, length: int, factor: int) -> None:
    assert law.times(factor).bytes_at(length) == factor * law.bytes_at(length)


@given(st.lists(all_laws, max_size=12), lengths)
def test_few_laws_have_the_sum_of_all(many: list[GrowthLaw], length: int) -> None:
    few = sum_of_laws(many)
    assert sum(law.bytes_at(length) for law in few) == sum(law.bytes_at(length) for law in many)
    assert len(few) <= 1 + len(many)


def test_laws_that_grow_alike_become_one() -> None:
    alike = [GrowthLaw(fixed_bytes=1, bytes_per_token=n, cap_tokens=512) for n in range(1, 31)]
    assert sum_of_laws(alike) == (constant(30), GrowthLaw(bytes_per_token=465, cap_tokens=512))


def test_slopes_written_out() -> None:
    """A window of 512 at 1,024 B; entries of 512 B for every 4 tokens: 128 B each; a block that fills and empties."""
    window = GrowthLaw(bytes_per_token=1024, cap_tokens=512)
    entries = GrowthLaw(bytes_per_token=512, step_tokens=4, per_step=True)
    block = GrowthLaw(bytes_per_token=4096, step_tokens=4, unfinished=True)
    late = GrowthLaw(bytes_per_token=7, from_tokens=100)
    laws = [window, entries, block, late]
    assert [slope_sum(laws, n) for n in (0, 98, 99, 511, 512, 10**6)] == [1152, 1152, 1159, 1159, 135, 135]
    # 3 B for every 2 tokens and 1 B for every 3: eleven sixths, rounded down at the end only.
    thirds = [GrowthLaw(bytes_per_token=n, step_tokens=t, per_step=True) for n, t in ((3, 2), (1, 3), (1, 3))]
    assert slope_sum(thirds, 10) == 2
    assert slope_sum([], 10) == 0


@given(laws, lengths)
def test_a_slope_is_what_a_whole_step_adds(law: GrowthLaw, length: int) -> None:
    """Over one step, from the end of a step on, the slope is the exact mean; beyond the cap it is 0."""
    start = law.held_tokens(length)
    end = start + law.step_tokens
    if law.cap_tokens is not None and end > law.cap_tokens:
        return
    numerator, denominator = law.slope_at(start)
    assert denominator == 1
    assert law.bytes_at(end) - law.bytes_at(start) == numerator * law.step_tokens
