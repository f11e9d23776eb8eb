"""A row of Python as columns of a table, and back."""

import json
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, fields
from itertools import repeat
from sqlite3 import Connection, Cursor
from typing import Any, TypeVar, cast

from kvscope.record.json_numbers import check_numbers
from kvscope.record.rows import AnswerRow, DesignRow, RequestRow, RunRow, TrialRow

Row = TypeVar("Row")

# Halves of characters, which JSON can hold and UTF-8 cannot.
_HALVES = re.compile("[\\ud800-\\udfff]")

# What to do about a damaged record.
COPY = "Use a copy of the file that was made before."
# Row fields whose column has another name ("index" is a reserved word of SQL).
_COLUMN = {(RequestRow, "index"): "request_index", (AnswerRow, "index"): "answer_index"}
_JSON_FIELDS: Mapping[type[Any], set[str]] = {
    RunRow: {"machine"},
    DesignRow: {"levels", "baseline_level", "held", "confounders", "settings", "holds", "definition"},
    TrialRow: {"levels", "level", "settings", "client", "evidence"},
    RequestRow: {"engine_timings", "client"},
    AnswerRow: {"facts"},
}
# Those whose JSON may be of any kind; the others of _JSON_FIELDS hold objects, or lists (_TUPLE_FIELDS).
_ANY_JSON = {(DesignRow, "baseline_level"), (TrialRow, "level")}
_TUPLE_FIELDS: Mapping[type[Any], set[str]] = {DesignRow: {"levels", "confounders", "holds"}}
# Those whose names are kvscope's, so that what is a number there is known.
_NUMBERED: Mapping[type[Any], set[str]] = {
    RunRow: {"machine"},
    TrialRow: {"client"},
    RequestRow: {"engine_timings", "client"},
    AnswerRow: {"facts"},
}
_BOOL_FIELDS: Mapping[type[Any], set[str]] = {DesignRow: {"is_grid"}, AnswerRow: {"is_twin", "evidence_in_prompt"}}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    column: str
    is_json: bool
    is_object: bool
    has_numbers: bool
    is_tuple: bool
    is_bool: bool
    may_lack: bool


_known: dict[type[Any], tuple[_Field, ...]] = {}
# Field → the place of its column in a row of the file.
_Plain = Mapping[str, int]
_plain: dict[tuple[type[Any], tuple[str, ...]], _Plain | None] = {}


def _fields(row_type: type[Any]) -> tuple[_Field, ...]:
    if row_type not in _known:
        _known[row_type] = _derived_fields(row_type)
    return _known[row_type]


def _derived_fields(row_type: type[Any]) -> tuple[_Field, ...]:
    return tuple(
        _Field(
            name=f.name,
            column=_COLUMN.get((row_type, f.name), f.name),
            is_json=f.name in _JSON_FIELDS.get(row_type, ()),
            is_object=_is_object(row_type, f.name),
            has_numbers=f.name in _NUMBERED.get(row_type, ()),
            is_tuple=f.name in _TUPLE_FIELDS.get(row_type, ()),
            is_bool=f.name in _BOOL_FIELDS.get(row_type, ()),
            may_lack=not (f.default is MISSING and f.default_factory is MISSING),
        )
        for f in fields(row_type)
    )


def _is_object(row_type: type[Any], name: str) -> bool:
    is_json = name in _JSON_FIELDS.get(row_type, ())
    return is_json and name not in _TUPLE_FIELDS.get(row_type, ()) and (row_type, name) not in _ANY_JSON


class Damaged(ValueError):
    """What a table holds is not what belongs into it; in words that name the table."""


@contextmanager
def reading(table: str) -> Iterator[None]:
    """Raise as Damaged, with the table's name, whatever its values do not allow."""
    try:
        yield
    except (ValueError, TypeError, LookupError) as error:
        raise error if isinstance(error, Damaged) else Damaged(f"table {table}: {error}") from error


def json_object(text: Any, column: str) -> dict[str, Any]:
    """The object that a column's JSON holds. Raises ValueError where it is none."""
    value = _json(text, column)
    if not isinstance(value, dict):
        raise ValueError(f"its column {column} holds no object")
    return value


def _json(text: Any, column: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"its column {column} holds no JSON") from error


def storable(text: str) -> str:
    r"""The text with what no UTF-8 can hold written out, as in \ud83d: half of a character that a server split between
    two pieces of its answer, or a byte of a file's name. Nothing that comes from outside may cost a trial."""
    return text if text.isascii() else text.encode(errors="backslashreplace").decode()


def as_json(value: Any) -> str:
    """As JSON text that a record can hold."""
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if text.isascii() else _HALVES.sub(lambda half: f"\\\\u{ord(half.group()):04x}", text)


def to_columns(row: Any) -> dict[str, Any]:
    """Column → value, of a row of any kind."""
    columns = {}
    for field in _fields(type(row)):
        value = getattr(row, field.name)
        if field.is_json:
            value = as_json(dict(value) if isinstance(value, Mapping) else value)
        elif isinstance(value, str):
            value = storable(value)
        columns[field.column] = value
    return columns


def from_columns(row_type: type[Row], columns: Mapping[str, Any]) -> Row:
    """The row of columns; what an older record has no column for keeps its default, which says: not known. Raises
    ValueError where a column does not hold what belongs in it."""
    values = {}
    for field in _fields(row_type):
        if field.may_lack and field.column not in columns:
            continue
        value = columns[field.column]
        if field.is_json:
            value = json_object(value, field.column) if field.is_object else _json(value, field.column)
        if field.has_numbers:
            check_numbers(value, field.column)
        if field.is_tuple:
            if not isinstance(value, list):
                raise ValueError(f"its column {field.column} holds no list")
            value = tuple(value)
        if field.is_bool and value is not None:
            value = bool(value)
        values[field.name] = value
    return row_type(**values)


def all_from_columns(row_type: type[Row], found: Cursor) -> tuple[Row, ...]:
    """The rows of a query's answer. Raises as ``from_columns``."""
    found.row_factory = None
    names = tuple(description[0] for description in found.description)
    known = (row_type, names)
    if known not in _plain:
        _plain[known] = _plain_fields(row_type, names)
    plain = _plain[known]
    if plain is None:
        return tuple(from_columns(row_type, dict(zip(names, values, strict=True))) for values in found)
    # Most rows of a record are of this kind: nothing in them has to be read as something else.
    columns = list(zip(*found, strict=True))
    if not columns:
        return ()
    return rows_of_columns(row_type, {name: columns[place] for name, place in plain.items()})


def rows_of_columns(row_type: type[Row], columns: Mapping[str, Sequence[Any]]) -> tuple[Row, ...]:
    """Rows of a frozen dataclass with slots, from the values of each of its fields, all equally many; a field that is
    left out has its default. Filled field by field: a record of 5,000 trials has a million rows, and calling their
    class for each takes five times as long. Raises ValueError where there are more values of one field than of
    another."""
    counts = {len(values) for values in columns.values()}
    if len(counts) != 1:
        raise ValueError(f"{sorted(counts)} values of the fields of {row_type.__name__}")
    new: Any = object.__new__
    rows: tuple[Row, ...] = tuple(map(new, repeat(row_type, counts.pop())))
    for field in fields(cast("Any", row_type)):
        values = columns[field.name] if field.name in columns else repeat(field.default)
        deque(map(getattr(row_type, field.name).__set__, rows, values), maxlen=0)
    return rows


def _plain_fields(row_type: type[Any], columns: tuple[str, ...]) -> _Plain | None:
    """The fields that these columns hold, and where; None where one needs reading."""
    if any(f.default_factory is not MISSING for f in fields(row_type)) or hasattr(row_type, "__post_init__"):
        return None
    here = [field for field in _fields(row_type) if field.column in columns or not field.may_lack]
    if any(field.is_json or field.is_tuple or field.is_bool for field in here):
        return None
    if any(field.column not in columns for field in here):
        return None  # from_columns says which
    return {field.name: columns.index(field.column) for field in here}


def insert(connection: Connection, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Add rows, all with the same columns, to a table."""
    rows = list(rows)
    if rows:
        names = ", ".join(rows[0])
        places = ", ".join(f":{name}" for name in rows[0])
        connection.executemany(f"INSERT INTO {table} ({names}) VALUES ({places})", rows)
