"""The text format of metrics. Rules: prometheus.io/docs/instrumenting/exposition_formats (0.0.4), whose own example is
the first case; OpenMetrics 1.0 for exemplars and its end mark."""

import math

import pytest

from kvscope.engine import prometheus
from kvscope.engine.prometheus import parse_metrics

# The example of the format's description, shortened; its numbers and escapes as they stand there.
EXAMPLE = r"""
# HELP http_requests_total The total number of HTTP requests.
# TYPE http_requests_total counter
http_requests_total{method="post",code="200"} 1027 1395066363000
http_requests_total{method="post",code="400"}    3 1395066363000

# Escaping in label values:
msdos_file_access_time_seconds{path="C:\\DIR\\FILE.TXT",error="Cannot find file:\n\"FILE.TXT\""} 1.458255915e9

# Minimalistic line:
metric_without_timestamp_and_labels 12.47

# A weird metric from before the epoch:
something_weird{problem="division by zero"} +Inf -3982045

# TYPE http_request_duration_seconds histogram
http_request_duration_seconds_bucket{le="0.05"} 24054
http_request_duration_seconds_bucket{le="+Inf"} 144320
http_request_duration_seconds_sum 53423
http_request_duration_seconds_count 144320
"""


def test_the_formats_own_example() -> None:
    metrics = parse_metrics(EXAMPLE)
    assert metrics.skipped_lines == 0
    assert metrics.types == {"http_requests_total": "counter", "http_request_duration_seconds": "histogram"}
    assert [(s.labels["code"], s.value) for s in metrics.named("http_requests_total")] == [("200", 1027), ("400", 3)]
    (escaped,) = metrics.named("msdos_file_access_time_seconds")
    assert escaped.labels == {"path": "C:\\DIR\\FILE.TXT", "error": 'Cannot find file:\n"FILE.TXT"'}
    assert escaped.value == 1458255915
    assert metrics.named("metric_without_timestamp_and_labels")[0].value == 12.47
    assert metrics.named("something_weird")[0].value == math.inf
    assert metrics.finite("something_weird") == ()
    assert {s.labels.get("le") for s in metrics.named("http_request_duration_seconds_bucket")} == {"0.05", "+Inf"}
    assert metrics.named("http_request_duration_seconds_sum")[0].value == 53423
    assert metrics.named("nothing") == ()


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        ("a 1", {}, 1),
        ("a{} 1", {}, 1),
        ("a {} 1", {}, 1),
        ('a{b="c",} 2', {"b": "c"}, 2),
        ('  a { b = "c" , d = "" }\t-2.5e-3 ', {"b": "c", "d": ""}, -0.0025),
        ('a{b="}{, x=\\"1\\""} 3', {"b": '}{, x="1"'}, 3),
        ('a{b="\\q"} 3', {"b": "\\q"}, 3),  # no escape of the format: left as it is
        ('a{b="한국어 😀"} 4', {"b": "한국어 😀"}, 4),
        ('vllm:a{b="\u2028"} 5', {"b": "\u2028"}, 5),  # a line separator to Unicode, none to the format
        ('a_bucket{le="1.0"} 5 # {trace_id="x"} 0.5 1520879607.789', {"le": "1.0"}, 5),
        ("a .5", {}, 0.5),
        ("a 5.", {}, 5),
        ("a\r", {}, None),
        ("a 1\r", {}, 1),
    ],
)
def test_a_line(line: str, labels: dict[str, str], value: float | None) -> None:
    metrics = parse_metrics(line)
    found = [(dict(sample.labels), sample.value) for sample in metrics.samples]
    assert found == ([] if value is None else [(labels, value)])
    assert metrics.skipped_lines == (1 if value is None else 0)


def test_not_a_number_is_kept_as_one() -> None:
    (sample,) = parse_metrics("a NaN").samples
    assert math.isnan(sample.value)
    assert parse_metrics("a NaN").finite("a") == ()


@pytest.mark.parametrize(
    "line",
    ["<html>", "a", "a b", "1a 1", "a{b=c} 1", 'a{b="c} 1', 'a{b="c" 1', 'a{b="c"}', "a 1_000", "a 0x10", "a1,5",
     'a{="b"} 1', '{"error": "no"}', "a 1 2 3", "a{b='c'} 1", "a-b 1"],
)  # fmt: skip
def test_what_is_none_of_the_format_is_skipped_and_counted(line: str) -> None:
    metrics = parse_metrics(f"before 1\n{line}\nafter 2\n# EOF")
    assert metrics.names() == {"before", "after"}
    assert metrics.skipped_lines == 1


def test_a_repeat_is_skipped_so_that_sums_stay_right() -> None:
    metrics = parse_metrics('a{x="1",y="2"} 5\na{y="2",x="1"} 5\na{x="2"} 7')
    assert [sample.value for sample in metrics.named("a")] == [5, 7]
    assert metrics.skipped_lines == 1


def test_more_than_is_read_is_cut_between_two_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    assert prometheus.MOST_CHARACTERS == 16 * 1024 * 1024
    monkeypatch.setattr(prometheus, "MOST_CHARACTERS", 12)
    metrics = parse_metrics("a 1111\nb 2222\nc 3333")
    assert [(sample.name, sample.value) for sample in metrics.samples] == [("a", 1111)]
    assert metrics.is_cut
    assert not parse_metrics("a 1111\nb 222").is_cut
    # One line longer than all that is read: nothing of it is a number.
    assert parse_metrics("a 1234567890123").samples == ()


def test_hostile_lines_take_no_time_to_speak_of() -> None:
    # Each would take years where an expression goes back over what it has read.
    for line in ('a{b="' + "\\" * 200_000, "a{" + 'b="",' * 100_000, "a " + "1" * 200_000 + "x", "a{" + " " * 200_000):
        assert parse_metrics(line).skipped_lines == 1
