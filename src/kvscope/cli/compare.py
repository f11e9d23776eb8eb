"""kvscope compare: two runs or two conditions against each other."""

import click

from kvscope.analysis.comparable import REFUSED
from kvscope.analysis.compare_json import comparison_dict
from kvscope.analysis.compare_metrics import METRICS
from kvscope.analysis.compare_runs import Comparison, Judged, compare_sides, judge_all
from kvscope.analysis.compare_sides import read_side
from kvscope.analysis.fail_if import FAILED, NOT_MEASURED, UNDECIDED, parse_fail_if
from kvscope.cli.options import json_option
from kvscope.cli.output import say, say_json
from kvscope.experiment.measure import DEFAULT_RECORDS
from kvscope.language import shown
from kvscope.report.compare_text import render_comparison
from kvscope.report.terminal_text import wrapped
from kvscope.report.words import say as words

EXAMPLE = """\
\b
Examples:
  kvscope compare previous last                      two sittings of kvscope.db
  kvscope compare kv_dtype=f16 kv_dtype=q8_0         two conditions of one design
  kvscope compare before.db after.db --fail-if "memory_peak > +5%" --fail-if "ttft > +20ms"
Exit code: 0 all well, 1 a --fail-if holds or could not be checked, 2 nothing was
comparable, 4 the record cannot be read.
"""


@click.command(epilog=EXAMPLE)
@click.argument("a")
@click.argument("b")
@click.option(
    "--records", default=DEFAULT_RECORDS, show_default=True, help="Record file in which A and B are looked up."
)
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="EXPRESSION", help='Exit with 1 if it holds: "memory_peak > +5%".'
)
@click.option("--strict", is_flag=True, help="A --fail-if that the repeats cannot decide fails too.")
@click.option(
    "--across",
    multiple=True,
    type=click.Choice(REFUSED),
    help="Compare rows of another machine, model or engine build.",
)
@json_option
def compare(
    a: str, b: str, records: str, conditions: tuple[str, ...], strict: bool, across: tuple[str, ...], as_json: bool
) -> int:
    """Hold B against A: what differs in settings and versions, and each metric's difference with its interval.

    A and B are record files, sittings (last, previous, or the begin of an id), conditions (FACTOR=LEVEL), designs by
    id, or one of these inside another file: old.db#last.
    """
    wanted = [parse_fail_if(text, METRICS) for text in conditions]
    sides = [read_side(name, records) for name in (a, b)]
    for doubt in {side.doubt for side in sides if side.doubt is not None}:
        for line in wrapped(words("record.warning", text=shown(doubt)), "! "):
            say(line, err=True)
    comparison = compare_sides(sides[0], sides[1], across=across)
    judged = {condition.text: judge_all(comparison, condition) for condition in wanted}
    found = comparison_dict(comparison, judged)
    if as_json:
        say_json(found)
    else:
        say(render_comparison(found), nl=False)
    return _exit_code(comparison, [each for found in judged.values() for each in found], bool(wanted), strict=strict)


def _exit_code(comparison: Comparison, judged: list[Judged], is_asked: bool, *, strict: bool) -> int:
    if not comparison.places:
        return 2
    bad = {FAILED, NOT_MEASURED, *([UNDECIDED] if strict else [])}
    return 1 if is_asked and any(each.state in bad for each in judged) else 0
