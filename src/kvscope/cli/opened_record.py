"""A record opened for a command that reads it, and what is to be known of it said."""

from pathlib import Path

from kvscope.cli.output import say
from kvscope.language import shown
from kvscope.record.store import Records, open_records
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say as words


def opened_record(path: str | Path) -> Records:
    """Open a record for reading, as it is now whatever is recorded meanwhile. Where half of it is missing, that is said
    on standard error: what can be read is."""
    records = open_records(path, snapshot=True)
    if records.doubt is not None:
        for line in wrapped(words("record.warning", text=shown(records.doubt)), "! "):
            say(line, err=True)
    return records
