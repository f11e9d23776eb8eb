"""GrowthLaw: five numbers, and what they promise."""

from hypothesis import given
from hypothesis import strategies as st

from kvscope.predict.growth import GrowthLaw, constant

laws = st.builds(
    GrowthLaw,
    fixed_bytes=st.integers(0, 10**9),
    bytes_per_token=st.integers(0, 10**6),
    bytes_per_token_pair=st.integers(0, 100),
    cap_tokens=st.none() | st.integers(1, 10**5),
    step_tokens=st.integers(1, 512),
)
lengths = st.integers(0, 10**6)


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
