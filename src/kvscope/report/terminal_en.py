"""What commands say in a terminal, in English: a dictionary for each, in a file of its own."""

from collections.abc import Mapping

from kvscope.report.prediction_words_en import FIT, MODEL, PREDICTION

_TABLE = {"table.cell": "{head}: {cell}"}

TERMINAL: Mapping[str, str] = {
    **_TABLE,
    **PREDICTION,
    **FIT,
    **MODEL,
}
