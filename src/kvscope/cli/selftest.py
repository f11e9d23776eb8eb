"""kvscope selftest: can this machine's client be believed, and up to which load?"""

import click

from kvscope.cli.options import json_option
from kvscope.cli.output import say, say_json
from kvscope.experiment.device_lock import Device, hold_devices
from kvscope.language import shown
from kvscope.report.selftest_text import render_selftest
from kvscope.report.words import say as words
from kvscope.selftest.run import SECONDS, run_selftest

_PROCESSOR = (Device(name="cpu"),)
EXAMPLE = """\b
Example:
  kvscope selftest                  about 20 seconds, best with nothing else running
  kvscope selftest --seconds 5      steadier figures
"""


@click.command(epilog=EXAMPLE)
@click.option("--seconds", type=float, default=SECONDS, show_default=True, help="How long each row is measured.")
@click.option("--python-server", is_flag=True, help="Use the server in Python even where a C compiler is there.")
@json_option
def selftest(seconds: float, python_server: bool, as_json: bool) -> int:
    """Hold kvscope's client against a server of known times, on this machine.

    It has the processor for itself: it waits for another kvscope that measures here, and that one waits for it.

    Exit code 0: one stream and eight are within limits; 1: they are not.
    """
    with hold_devices(
        _PROCESSOR, on_wait=lambda busy: say(f"  {words('progress.waiting', what=shown(str(busy)))}", err=True)
    ) as unlocked:
        result = run_selftest(
            seconds=seconds,
            in_python=python_server,
            tell=lambda cell: say(f"  {words('selftest.cell', cell=shown(cell))}", err=True),
        )
        for reason in unlocked():
            say(f"  {words('selftest.another', reason=shown(reason))}", err=True)
    found = result.to_dict()
    if as_json:
        say_json(found)
    else:
        say(render_selftest(found), nl=False)
    return 0 if result.basic_within else 1
