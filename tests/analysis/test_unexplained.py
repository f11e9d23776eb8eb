"""What has no name, against its limits: at the worst moment of a calibrated row, after the load of any other."""

from dataclasses import replace

from study_rows import KIB
from test_identity import calibrated, llama

from kvscope.analysis.checks import run_checks
from kvscope.analysis.identity import RowIdentity, row_identity
from kvscope.analysis.unexplained import worst_pair, worst_row


def leaking_in_requests(row: RowIdentity, kib: int) -> RowIdentity:
    assert row.loaded is not None
    assert row.peak is not None
    found = replace(row.loaded.attribution, phase="peak")
    grown = replace(found, anon_growth_bytes=found.anon_growth_bytes + kib * KIB)
    return replace(row, key=f"leaks {kib}", after=None, peak=replace(row.peak, attribution=grown))


def test_a_leak_during_requests_is_a_doubt_with_its_row_and_moment() -> None:
    clean = replace(leaking_in_requests(row_identity(calibrated(llama())), 0), key="clean")
    rows = (clean, leaking_in_requests(clean, 30_720))
    found = {each.slug: each for each in run_checks([], {}, rows, {clean.key: 1, "leaks 30720": 2})}
    told = found["unexplained"]
    assert told.passed is False
    assert (told.values["row"], told.values["phase"], told.values["limit_share"]) == (2, "peak", 0.05)
    between = found["unexplained_between"]
    assert (between.passed, between.values["limit_share"]) == (False, 0.02)
    assert abs(int(str(between.values["unexplained_bytes"]))) == 30_720 * KIB


def test_a_calibrated_row_is_held_against_a_twentieth_and_another_against_a_tenth() -> None:
    clean = row_identity(calibrated(llama()))
    assert clean.loaded is not None
    part = clean.loaded.growth_bytes // KIB // 14  # 1 part more than 14: a share of 1 / 15, 6.7 %
    worst = worst_row([leaking_in_requests(clean, part)], {})
    assert worst is not None
    assert 0.06 < worst.share < 0.07
    assert (worst.is_too_much, worst.attribution.phase) == (True, "peak")
    plain = replace(leaking_in_requests(clean, part), calibration=None)
    found = worst_row([plain], {})
    assert found is not None
    assert (found.limit_share, found.is_too_much, found.attribution.phase) == (0.10, False, "loaded")
    assert worst_pair([plain, replace(plain, key="other")]) is None
