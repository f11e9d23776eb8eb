"""kvscope merge: several machines' records in one file."""

import shlex
from contextlib import ExitStack
from pathlib import Path

import click

from kvscope.cli.opened_record import opened_record
from kvscope.cli.output import say, say_json
from kvscope.errors import UsageError
from kvscope.record.merge import Merged
from kvscope.record.merge import merge as merge_records
from kvscope.record.store import create_records
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say as words


@click.command()
@click.argument("out", type=click.Path(dir_okay=False))
@click.argument("records", nargs=-1, required=True, type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def merge(out: str, records: tuple[str, ...], as_json: bool) -> int:
    """Add the rows of RECORDS to the record OUT, which is made if it does not exist. Rows of different machines stay
    apart, RECORDS are not changed, and merging the same file again adds nothing."""
    merged = _merge(Path(out), [Path(each) for each in records])
    if as_json:
        counts = [
            {
                "records": path,
                "added": each.added,
                "further": each.further,
                "known": each.known,
                "unfinished": each.unfinished,
            }
            for path, each in zip(records, merged, strict=True)
        ]
        say_json({"out": out, "merged": counts})
        return 0
    for path, each in zip(records, merged, strict=True):
        for line in wrapped(_merged(path, each)):
            say(line)
    say(words("record.see", command=f"kvscope report --records {shlex.quote(out)} --out report.html"))
    return 0


def _merged(path: str, each: Merged) -> str:
    slug = "merge.added" + ("_further" if each.further else "") + ("_unfinished" if each.unfinished else "")
    told = {"added": each.added, "further": each.further, "known": each.known, "unfinished": each.unfinished}
    return words(slug, file=path, **told)


def _merge(out: Path, paths: list[Path]) -> tuple[Merged, ...]:
    if any(out.exists() and path.exists() and path.samefile(out) for path in paths):
        raise UsageError(f"{out} cannot be merged into itself.", hint="The first name is the file that is added to.")
    is_new = is_made = False
    try:
        with ExitStack() as opened:
            sources = [opened.enter_context(opened_record(path)) for path in paths]
            is_new = not out.exists()
            recorder = opened.enter_context(create_records(out))
            is_made = is_new
            return merge_records(recorder, sources)
    except BaseException:
        if is_made:
            out.unlink(missing_ok=True)
        raise
