"""The texts of the command line that are looked up as they stand: help of commands and options (context ``help``), and
what code asks for by ``translated("…", "cli")`` (its context is the second argument)."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import click

from kvscope.cli.main import COMMANDS, cli

SOURCE = Path(__file__).resolve().parent.parent / "src" / "kvscope"
HELP, CLI, CLICK = "help", "cli", "click"
# What click says of a command line that it cannot read. These have no context: they are shown by their templates.
CLICK_ERRORS = (
    "No such option {name}.",
    "(Did you mean {other}?)",
    "(Did you mean one of: {others}?)",
    "No such option: {name}",
    "No such command {name}.",
    "Missing argument {name}.",
    "Missing option {name}.",
    "Missing command.",
    "Option {name} requires an argument.",
    "Option {name} does not take a value.",
    "Got unexpected extra argument ({text})",
    "Got unexpected extra arguments ({text})",
    "Invalid value for {name}: {message}",
    "{value} is not a valid {kind}.",
    "{value} is not in the range {range}.",
    "{value} is not one of {choices}.",
)


def help_texts() -> set[tuple[str, str]]:
    """Context and English of every text of the command line."""
    found = {(HELP, inspect.cleandoc(text)) for text in _of_commands()}
    for path in sorted(SOURCE.rglob("*.py")):
        found |= set(_asked_for(ast.parse(path.read_text(encoding="utf-8"))))
    return found | _of_click()


def _of_commands() -> Iterator[str]:
    yield from (text for _, text in COMMANDS.values())
    yield from _of_command(cli)
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        yield from _of_command(command)


def _of_command(command: click.Command) -> Iterator[str]:
    yield from filter(None, (command.help, command.epilog))
    for param in command.params:
        if isinstance(param, click.Option) and param.help:
            yield param.help


def _asked_for(module: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "translated" and len(node.args) == 2:
            text, context = node.args
            if isinstance(text, ast.Constant) and isinstance(context, ast.Constant):
                yield str(context.value), str(text.value)


def _of_click() -> set[tuple[str, str]]:
    from kvscope.cli import spoken_help

    own = {(CLI, text) for text in spoken_help._OWN}
    return own | {("", text) for text in CLICK_ERRORS} | {(CLICK, word) for word in spoken_help._WORDS}
