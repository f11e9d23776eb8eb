"""Records that hold hostile texts: in every place that a run fills, and edited by hand in every text column."""

import json
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from hostile_payloads import ENCODABLE, PAYLOADS
from study_rows import (
    answered,
    attempt,
    changed_settings,
    design_row,
    memory,
    reported,
    request_row,
    run_row,
    trial_row,
    whole_lab,
    write_record,
)

from kvscope.analysis.attempts import Attempt
from kvscope.record.rows import AnswerRow, OccupantRow, WarningRow

SHORT = tuple(text for text in ENCODABLE if len(text) <= 300)
ALL_SHORT = " ".join(SHORT)
PARTS = tuple(" ".join(SHORT[start::8]) for start in range(8))
# What is said of a design.
HOSTILE: dict[str, Any] = {
    "model_name": ALL_SHORT, "model_source": ALL_SHORT, "engine_version": ALL_SHORT, "engine_build": ALL_SHORT,
    "question": ALL_SHORT, "confounders": SHORT, "holds": SHORT, "settings": dict(zip(SHORT, SHORT, strict=True)),
    "held": {"text": ALL_SHORT}, "definition": {"engine_command": ALL_SHORT},
}  # fmt: skip
# What tells rows apart and names other rows; changed everywhere at once, or nothing belongs together any more.
_IDS = ("design_id", "trial_id", "run_id", "machine_id", "study_id")


def failures() -> list[Attempt]:
    """An attempt for each payload, which failed with it in all that is said of a failure."""
    design = design_row("input_length", design_id="failing")
    found = []
    for number, text in enumerate(PAYLOADS):
        trial = trial_row(
            design, number, outcome="engine_died", error_slug="engine-died", error_message=text, error_hint=text,
            engine_log_tail=f"load\n{text}", traceback=text, settings={text: text}, evidence={"said": text},
        )  # fmt: skip
        found.append(attempt(trial, design=design))
    return found


def everywhere() -> list[Attempt]:
    """A whole lab whose model, engine, machine, levels, warnings, neighbours, log lines and answers are hostile."""
    said = {
        "warnings": tuple(WarningRow(slug="noisy-machine", message=text, hint=text) for text in SHORT[:40])
        + tuple(WarningRow(slug=text, message=text, hint=text) for text in SHORT[40:]),
        "occupants": tuple(OccupantRow(pid=n, name=text, resident_bytes=n << 20) for n, text in enumerate(SHORT)),
        "effective": {"n_ctx": 2048, "cache": ALL_SHORT, "context_limit_from": ALL_SHORT},
    }
    lab = [
        replace(
            each, design=replace(each.design, **HOSTILE), run=run_row(command=ALL_SHORT, machine={"cpu": ALL_SHORT})
        )
        for each in whole_lab()
    ]
    result = lab[1].result
    lines = tuple(reported("kv_cache", "1.00", name=text, line=text) for text in SHORT)
    lab[1] = replace(lab[1], result=replace(result, **said, reported=(*result.reported, *lines)))
    return [*lab, *levels(), *_answers(HOSTILE)]


def everywhere_small() -> list[Attempt]:
    """An attempt or two of each kind, with rows in every table: to be edited by hand."""
    lab = whole_lab()
    said = {
        "warnings": (WarningRow(slug="noisy-machine", message="m", hint="h"),),
        "occupants": (OccupantRow(pid=1, name="n", resident_bytes=1 << 20),),
        "effective": {"n_ctx": 2048, "cache": "fresh process"},
    }
    one = replace(lab[1], result=replace(lab[1].result, **said))
    asked = _answers({})[0]
    asked = replace(asked, result=replace(asked.result, answers=asked.result.answers[:2]))
    return [one, *lab[2:5], lab[-3], asked]


def levels() -> list[Attempt]:
    """A design whose levels, and so the marks and words of its charts, are hostile."""
    named = dict(zip(("f16", "q8_0", "q4_0"), ("f16", *PARTS[:2]), strict=True))
    found = []
    for each in changed_settings():
        design = replace(each.design, **HOSTILE, levels=tuple(named.values()))
        level = named[str(each.trial.level)]
        trial = replace(each.trial, level=level, levels={design.factor: level}, trial_id=f"{level}/{each.trial.repeat}")
        found.append(replace(each, design=design, result=replace(each.result, trial=trial)))
    return found


def _answers(hostile: dict[str, Any]) -> list[Attempt]:
    """Questions on documents, each item with one payload in its question, its right answer and what was answered."""
    design = replace(
        design_row(levels=("whole", "nothing"), baseline_level="whole"), **hostile, name="retrieval", factor="given",
        design_id="asked",
    )  # fmt: skip
    found = []
    for level in design.levels:
        rows = tuple(
            AnswerRow(
                index=n, task="retrieval", item=text or "empty", document=text, language="en", reading="wrong",
                score=0.0, chance=0.0, request_index=1, expected=text, answer=text, evidence_in_prompt=True,
                facts={"question": text, "failure": "buried", "given": level, "named_instead": [text]},
            )
            for n, text in enumerate(SHORT)
        )  # fmt: skip
        rest = {**memory(), **answered(), "requests": (request_row(finish_reason=ALL_SHORT),)}
        found.append(attempt(trial_row(design, level), design=design, answers=rows, **rest))
    return found


def written(folder: Path, name: str, attempts: list[Attempt]) -> Path:
    """A record file of these."""
    return write_record(folder / f"{name}.db", attempts, runs=[run_row(command=ALL_SHORT, machine={"cpu": ALL_SHORT})])


def text_columns(path: Path) -> dict[str, list[str]]:
    """Table → its columns of text, of tables that hold rows."""
    with _opened(path) as connection:
        tables = [row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        filled = [t for t in tables if connection.execute(f"SELECT count(*) FROM {t}").fetchone()[0]]
        columns = {t: [r[1] for r in connection.execute(f"PRAGMA table_info({t})") if r[2] == "TEXT"] for t in filled}
    return {table: names for table, names in columns.items() if names and table != "about"}


def edit(path: Path, table: str, columns: list[str]) -> None:
    """Every text of these columns made hostile by hand: JSON keeps its form, all texts in it do not."""
    with _opened(path) as connection:
        for column in columns:
            if column in _IDS:
                continue
            rows = connection.execute(f"SELECT rowid, {column} FROM {table} WHERE {column} IS NOT NULL").fetchall()
            for number, (rowid, value) in enumerate(rows):
                made = _hostile(value, PARTS[number % len(PARTS)])
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (made, rowid))


def rename_ids(path: Path) -> None:
    """What rows are told apart by, hostile too."""
    with _opened(path) as connection:
        for table, columns in text_columns(path).items():
            for column in (name for name in columns if name in _IDS):
                connection.execute(f"UPDATE {table} SET {column} = ? || {column}", (PARTS[3],))


def _opened(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA foreign_keys = OFF")
    return connection


def _hostile(value: str, text: str) -> str:
    try:
        found = json.loads(value)
    except ValueError:
        return text
    return json.dumps(_leaves(found, text), ensure_ascii=False) if isinstance(found, dict | list | str) else value


def _leaves(value: Any, text: str) -> Any:
    match value:
        case str():
            return text
        case list():
            return [_leaves(each, text) for each in value]
        case dict():
            return {name: _leaves(each, text) for name, each in value.items()}
        case _:
            return value


def of_each_table(path: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """A copy of the record for each of its tables, that one edited."""
    for table, columns in text_columns(path).items():
        copy = folder / f"{table}.db"
        copy.write_bytes(path.read_bytes())
        edit(copy, table, columns)
        yield table, copy
