"""A record opened for a command that reads it, and what is to be known of it said."""

from pathlib import Path

from kvscope.cli.output import say
from kvscope.record.store import Records, open_records


def opened_record(path: str | Path) -> Records:
    """Open a record for reading, as it is now whatever is recorded meanwhile. Where half of it is missing, that is said
    on standard error: what can be read is."""
    records = open_records(path, snapshot=True)
    if records.doubt is not None:
        say(f"warning: {records.doubt}", err=True)
    return records
