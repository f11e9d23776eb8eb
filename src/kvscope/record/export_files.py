"""The record's tables as Parquet and DuckDB files, with types: whole numbers are int64, seconds are doubles, texts are
texts, warnings a list of texts; what has no fixed type (levels, settings, evidence) is JSON text. Unknown is null.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from kvscope.errors import MissingDependency
from kvscope.record.columns import as_json, storable
from kvscope.record.rows import Json
from kvscope.record.table_columns import TABLES, Column

Row = Mapping[str, Json]
# So many rows are held in memory at once.
_BATCH = 5_000


def write_parquet(table: str, rows: Iterable[Row], path: Path) -> int:
    """Write rows of one of ``TABLES`` as a Parquet file; returns how many. A table without rows has its columns all the
    same. Raises MissingDependency without pyarrow; OSError passes through."""
    arrow = _pyarrow("Writing Parquet")
    import pyarrow.parquet

    count = 0
    with pyarrow.parquet.ParquetWriter(path, _schema(arrow, table), compression="zstd") as writer:
        for batch in _batches(arrow, table, rows):
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def write_duckdb(tables: Mapping[str, Iterable[Row]], path: Path) -> dict[str, int]:
    """Write a new DuckDB file with these tables; returns how many rows each has. Raises MissingDependency without
    duckdb and pyarrow; OSError passes through."""
    arrow = _pyarrow("Writing DuckDB")
    try:
        import duckdb
    except ImportError as error:
        raise MissingDependency("Writing DuckDB", "records", "duckdb") from error
    try:
        with duckdb.connect(str(path)) as connection:
            return {table: _fill(arrow, connection, table, rows) for table, rows in tables.items()}
    except duckdb.IOException as error:
        raise OSError(str(error)) from error


def _fill(arrow: Any, connection: Any, table: str, rows: Iterable[Row]) -> int:
    connection.register("incoming", _schema(arrow, table).empty_table())
    connection.execute(f'CREATE TABLE "{table}" AS SELECT * FROM incoming')
    count = 0
    # Batch by batch from here: DuckDB would read a stream of them in threads of its own.
    for batch in _batches(arrow, table, rows):
        connection.register("incoming", arrow.Table.from_batches([batch]))
        connection.execute(f'INSERT INTO "{table}" SELECT * FROM incoming')
        count += batch.num_rows
    return count


def _pyarrow(feature: str) -> Any:
    try:
        import pyarrow
    except ImportError as error:
        raise MissingDependency(feature, "records", "pyarrow") from error
    return pyarrow


def _schema(arrow: Any, table: str) -> Any:
    types = {
        "text": arrow.string(),
        "json": arrow.string(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "bool": arrow.bool_(),
        "texts": arrow.list_(arrow.string()),
    }
    return arrow.schema([(column.name, types[column.kind]) for column in TABLES[table]])


def _batches(arrow: Any, table: str, rows: Iterable[Row]) -> Iterator[Any]:
    schema = _schema(arrow, table)
    rows = iter(rows)
    while batch := list(islice(rows, _BATCH)):
        columns = [[_cell(column, row[column.name]) for row in batch] for column in TABLES[table]]
        arrays = [arrow.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)]
        yield arrow.record_batch(arrays, schema=schema)


def _cell(column: Column, value: Json) -> Json:
    if value is None:
        return None
    if column.kind == "json":
        return as_json(value)
    if column.kind == "texts":
        return [storable(text) for text in value]
    return storable(value) if isinstance(value, str) else value
