"""Prompt and reserved output against the limit, before sending."""

from kvscope.prompt.output_fit import Fit


def test_more_than_the_window() -> None:
    # A public report: 169,000 estimated for a window of 128,000.
    fit = Fit(prompt_tokens=169_000, output_limit_tokens=0, limit_tokens=128_000)
    assert fit.fits is False
    assert fit.over_tokens == 41_000


def test_the_reserved_output_counts() -> None:
    assert Fit(prompt_tokens=1000, output_limit_tokens=24, limit_tokens=1024).fits is True
    assert Fit(prompt_tokens=1000, output_limit_tokens=25, limit_tokens=1024).fits is False


def test_an_unknown_limit_is_no_yes() -> None:
    fit = Fit(prompt_tokens=1, output_limit_tokens=1, limit_tokens=None)
    assert fit.fits is None
    assert fit.over_tokens == 0
