"""What commands say in a terminal, in English: a dictionary for each, in a file of its own."""

from collections.abc import Mapping

from kvscope.report.compare_words_en import COMPARE
from kvscope.report.count_words_en import COUNT, EXACT_PROMPT
from kvscope.report.machine_words_en import DOCTOR, EXPLAIN, SELFTEST, WATCH
from kvscope.report.plan_words_en import LAB, MEASURED, PLAN, PROGRESS
from kvscope.report.prediction_words_en import FIT, GROWTH_CHART, MODEL, PREDICTION
from kvscope.report.record_words_en import RECORD
from kvscope.report.reuse_words_en import REUSE

_TABLE = {"table.cell": "{head}: {cell}"}

TERMINAL: Mapping[str, str] = {
    **_TABLE,
    **PREDICTION,
    **FIT,
    **GROWTH_CHART,
    **MODEL,
    **COUNT,
    **EXACT_PROMPT,
    **REUSE,
    **PLAN,
    **PROGRESS,
    **MEASURED,
    **LAB,
    **COMPARE,
    **DOCTOR,
    **WATCH,
    **EXPLAIN,
    **SELFTEST,
    **RECORD,
}
