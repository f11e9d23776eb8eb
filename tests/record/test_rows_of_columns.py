"""Rows made field by field, and samples that stay columns, are what they are one by one."""

import pytest

from kvscope.record.columns import rows_of_columns
from kvscope.record.packed import pack_samples, pack_tokens, unpack_tokens
from kvscope.record.rows import SampleRow, TokenRow
from kvscope.record.sampled import SampledRows, columns_between, late_by_moment

SAMPLES = tuple(
    SampleRow(quantity=name, at_s=at_s, late_s=at_s / 100, value_bytes=round(1000 * at_s) + len(name))
    for at_s in (0.25, 0.5, 0.75, 1.0)
    for name in ("anon_bytes", "swap_bytes")
)


def test_rows_made_field_by_field_are_those_made_one_by_one() -> None:
    made = rows_of_columns(
        TokenRow, {"request_index": [0, 0], "index": [0, 1], "at_s": [0.5, 0.75], "text": ["a", "b"]}
    )
    one, two = (
        TokenRow(request_index=0, index=0, at_s=0.5, text="a"),
        TokenRow(request_index=0, index=1, at_s=0.75, text="b"),
    )
    assert made == (one, two)
    assert [hash(row) for row in made] == [hash(one), hash(two)]
    (packed,) = pack_tokens(made)
    assert tuple(unpack_tokens(packed)) == made
    with pytest.raises(AttributeError):
        made[0].text = "c"  # type: ignore[misc]


def test_values_that_are_too_few_are_no_rows() -> None:
    with pytest.raises(ValueError, match="TokenRow"):
        rows_of_columns(TokenRow, {"request_index": [0, 0], "index": [0], "at_s": [0.5, 0.75], "text": ["a", "b"]})


@pytest.mark.parametrize("span", [(0.0, 2.0), (0.5, 0.75), (0.3, 0.4), (1.0, 1.0), (0.6, 0.2)])
@pytest.mark.parametrize(
    "samples",
    [
        SAMPLES,
        SAMPLES[:-1],  # of the last moment one quantity only: two runs
        SAMPLES[2:] + SAMPLES[:2],  # a moment that came late
        SAMPLES + SAMPLES[:2],  # the same moment twice
        (),
    ],
)
def test_packed_samples_say_the_same_of_a_span_as_rows(
    samples: tuple[SampleRow, ...], span: tuple[float, float]
) -> None:
    packed = SampledRows(pack_samples(samples))
    start_s, end_s = span
    moments = dict.fromkeys(sample.at_s for sample in samples if start_s <= sample.at_s <= end_s)
    # By hand: the last reading of each quantity at each moment, 0 where there is none.
    last = {(sample.at_s, sample.quantity): sample.value_bytes for sample in samples}
    names = dict.fromkeys(sample.quantity for sample in samples if sample.at_s in moments)
    expected = {name: [last.get((at_s, name), 0) for at_s in moments] for name in names}
    for form in (samples, packed):
        found = {name: list(values) for name, values in columns_between(form, start_s, end_s).items()}
        assert {name: values for name, values in found.items() if values} == expected
    assert late_by_moment(packed) == late_by_moment(samples) == {s.at_s: s.late_s for s in samples}
