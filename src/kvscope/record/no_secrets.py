"""Rows without secrets: the last gate before the file. Whoever records, and whatever was quoted: keys, passwords and
headers do not get into a record."""

from dataclasses import fields, replace
from typing import Any, TypeVar

from kvscope.hiding import hide_secrets
from kvscope.record.rows import TrialResult, TrialRow

Row = TypeVar("Row", bound=Any)
# Hashes and our own words, in which nobody quotes anything; a hash that was changed would name nothing.
_OURS = frozenset(("design_id", "study_id", "trial_id", "run_id", "machine_id", "model_fingerprint", "outcome", "role"))
# Rows of numbers, of which there may be very many, and pieces of answers, which the client searched for its key.
_OF_NUMBERS = frozenset(("trial", "tokens", "reads", "marks", "samples", "statistics", "scored_tokens", "maps"))


def without_secrets(row: Row) -> Row:
    """A row, each text of it searched."""
    found = {field.name: getattr(row, field.name) for field in fields(row) if field.name not in _OURS}
    hidden = {name: hide_secrets(value) for name, value in found.items()}
    changed = {name: value for name, value in hidden.items() if value != found[name]}
    return replace(row, **changed) if changed else row


def result_without_secrets(result: TrialResult) -> TrialResult:
    """All that an attempt left, but for its numbers."""
    names = [field.name for field in fields(result) if field.name not in _OF_NUMBERS | {"effective"}]
    rows = {name: tuple(without_secrets(row) for row in getattr(result, name)) for name in names}
    trial: TrialRow = without_secrets(result.trial)
    return replace(result, trial=trial, effective=hide_secrets(result.effective), **rows)
