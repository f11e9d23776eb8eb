"""What of an attempt is compared: the numbers of its row in ``kvscope export``, by their names there."""

from collections.abc import Mapping

from kvscope.analysis.attempts import Attempt
from kvscope.analysis.attribute import unexplained_bytes
from kvscope.record.export import export_row
from kvscope.record.table_columns import TRIAL_COLUMNS

# Numbers of what was asked, or of the place in the order: nothing that was measured.
_ASKED = (
    *("attempt", "repeat", "block", "position", "requests", "prompt_tokens_asked", "output_tokens_limit"),
    *("concurrency", "rate_per_s", "shared_prefix_tokens"),
)
# What a table shows, in this order, wherever it was measured.
SHOWN = (
    *("ttft_s", "tpot_s", "completion_s", "prefill_tokens_per_s", "decode_tokens_per_s"),
    *("ttft_max_s", "queue_wait_s", "load_wall_s", "output_tokens_per_s_all"),
    *(f"memory_{moment}_bytes" for moment in ("loaded", "peak", "after", "released")),
)
# Answers scatter over questions and not over repeats, which ask the same ones again: five repeats of one score would
# look like a certain difference. Scores are compared question by question (``analysis.quality_comparison``).
_OF_QUESTIONS = "quality_"
_COLUMNS = [
    column.name
    for column in TRIAL_COLUMNS
    if column.kind in ("int", "float") and column.name not in _ASKED and not column.name.startswith(_OF_QUESTIONS)
]
# Every number that can be compared and asked for by --fail-if.
METRICS: tuple[str, ...] = (*SHOWN, *(name for name in _COLUMNS if name not in SHOWN))


def numbers_of(attempt: Attempt) -> Mapping[str, float | None]:
    """Metric → its value in this attempt, None where it is not known."""
    found = export_row(
        attempt.result,
        attempt.design,
        attempt.run,
        attempt.prediction,
        unexplained_bytes(attempt.result, attempt.prediction),
        metrics=attempt.metrics,
    )
    return {name: found[name] for name in METRICS}
