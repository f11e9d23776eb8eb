"""kvscope watch: a running engine in the terminal, live; nothing is sent to it but reads of its metrics."""

import json
import math
import sys
import time
from contextlib import ExitStack
from typing import Any

import click

from kvscope.analysis.watched import cache_use, memory_by_cause, not_found, rates
from kvscope.cli.options import command_line, json_option, parse_single_settings
from kvscope.cli.output import is_terminal, say
from kvscope.experiment.runner import start_run
from kvscope.experiment.watch import Look, Watcher
from kvscope.experiment.watch_record import WatchRecorder
from kvscope.experiment.watch_target import Target, find_target
from kvscope.record.store import create_records
from kvscope.report.live import live_dict, render_live

EXAMPLE = """\
\b
Examples:
  kvscope watch http://127.0.0.1:8080
  kvscope watch --port 8080 --record watch.db
  kvscope watch --pid 4242 --once --json
Ctrl-C ends the watch, never the engine.
"""
# Home, and clear to the end of the screen: a look takes the place of the one before it.
_REDRAW = "\x1b[H\x1b[J"


def finite_seconds(context: click.Context, option: click.Parameter, value: float) -> float:
    """The value of an option, unless it is "nan", which is in every range."""
    if math.isnan(value):
        raise click.BadParameter("a number of seconds was expected.", context, option)
    return value


@click.command(epilog=EXAMPLE)
@click.argument("url", required=False)
@click.option("--pid", type=click.IntRange(1), help="Of the engine's process.")
@click.option("--port", type=click.IntRange(1, 65535), help="That it listens on, on this machine.")
@click.option("--model", help="Its model, where the process does not map the file: a .gguf file, or pkg:NAME.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting that it was started with.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86_400),
    callback=finite_seconds,
    default=2.0,
    show_default=True,
    help="Seconds between looks.",
)
@click.option("--once", is_flag=True, help="Look once, and stop.")
@click.option("--record", "--records", "records", type=click.Path(), help="Also keep what is seen in this record file.")
@json_option
def watch(
    url: str | None,
    pid: int | None,
    port: int | None,
    model: str | None,
    settings: tuple[str, ...],
    interval: float,
    once: bool,
    records: str | None,
    as_json: bool,
) -> int:
    """Show what a running engine's memory is made of and what it is doing, until Ctrl-C."""
    target = find_target(url=url, port=port, pid=pid)
    watcher = Watcher(target, model=model, settings=parse_single_settings(settings))
    with ExitStack() as stack:
        keeper = None
        if records is not None:
            recorder = stack.enter_context(create_records(records))
            keeper = WatchRecorder(recorder, start_run(recorder, command_line()), target)
            stack.callback(keeper.finish)
        _watch(watcher, target, keeper, interval_s=interval, once=once, as_json=as_json)
    return 0


def _watch(
    watcher: Watcher, target: Target, keeper: WatchRecorder | None, *, interval_s: float, once: bool, as_json: bool
) -> None:
    before: Look | None = None
    try:
        while True:
            look = watcher.look()
            if keeper is not None:
                keeper.add(look)
            _show(_as_dict(look, before, target), as_json=as_json, redraw=not once)
            if once:
                return
            before = look
            time.sleep(interval_s)
    except KeyboardInterrupt:
        return  # the usual end of a watch


def _as_dict(look: Look, before: Look | None, target: Target) -> dict[str, Any]:
    mark = look.mark
    return live_dict(
        target={"name": target.name, "engine": target.engine, "url": target.url, "pid": target.pid},
        at=look.at,
        memory=None
        if mark is None
        else {
            name: getattr(mark, name)
            for name in ("anon_bytes", "swap_bytes", "file_bytes", "shmem_bytes", "machine_available_bytes")
        },
        causes=() if mark is None else memory_by_cause(mark, look.maps, look.kept, look.prediction, look.model_file),
        not_found=() if mark is None else not_found(mark, look.maps, look.kept, look.prediction, look.model_file),
        cache=cache_use(look.statistics, look.prediction, look.used_at_most_tokens),
        statistics=look.statistics,
        rates=None if before is None else rates(before.statistics, look.statistics, look.at_s - before.at_s),
        unknown=look.unknown,
    )


def _show(found: dict[str, Any], *, as_json: bool, redraw: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=True))  # one line a look
        return
    if redraw and is_terminal(sys.stdout):
        click.echo(_REDRAW, nl=False)
    say(render_live(found))
