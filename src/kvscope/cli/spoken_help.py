"""Help, usage and click's own errors in the language that is spoken.

In English they are click's, untouched. In another language the texts of our commands and options are looked up in the
catalogue (context ``help``), click's few words are ours (context ``cli``), and lines are broken by display width:
click counts characters, and a Korean syllable takes two columns.
"""

import inspect
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import click

from kvscope.cli.output import no_color_option, say
from kvscope.language import ENGLISH, LANGUAGES, current, shown, translated
from kvscope.report.terminal_text import WIDTH, display_width, padded, wrapped

# What click puts between brackets behind an option's help, and its own two options.
_DEFAULT = re.compile(r"\[default: (?P<value>.*?)\]")
_WORDS = ("Usage", "Options", "Commands", "Arguments", "default", "required")
_OWN = ("Show this message and exit.", "Show the version and exit.")
# Options wider than this have their help on the next line.
_OPTION_COLUMNS = 28


def language_option() -> click.Option:
    """``--lang``, which every command has. ``kvscope.cli.main`` reads it before anything is said."""
    return click.Option(
        ["--lang"], type=click.Choice(LANGUAGES), expose_value=False, help="Language; by default the locale's."
    )


def asked_language(arguments: Sequence[str]) -> str | None:
    """The language named by ``--lang`` in the command line; None where none is, or one that is not spoken."""
    asked = None
    for place, argument in enumerate(arguments):
        if argument == "--":
            break
        if argument.startswith("--lang="):
            asked = argument.removeprefix("--lang=")
        elif argument == "--lang" and place + 1 < len(arguments):
            asked = arguments[place + 1]
    return asked if asked in LANGUAGES else None


def help_of(text: str) -> str:
    """A help text in the language spoken; its lines as they are written in the code, without their indent."""
    return translated(inspect.cleandoc(text), "help")


class SpokenContext(click.Context):
    """A context whose help is written in the language spoken."""

    def make_formatter(self) -> click.HelpFormatter:
        """click's own formatter in English."""
        return super().make_formatter() if current() == ENGLISH else _SpokenFormatter()


def speak(command: click.Command) -> click.Command:
    """The command with its texts in the language spoken, and with ``--lang`` and ``--no-color``."""
    command.context_class = SpokenContext
    if all(param.name != "lang" for param in command.params):
        command.params += [language_option(), no_color_option()]
    if current() != ENGLISH:
        command.help = command.help and help_of(command.help)
        command.epilog = command.epilog and help_of(command.epilog)
        for param in command.params:
            if isinstance(param, click.Option) and param.help:
                param.help = help_of(param.help)
    return command


def show_click_error(error: click.ClickException) -> None:
    """Say an error of click's, with the usage of the command where it is known."""
    if current() == ENGLISH or isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return
    context = error.ctx if isinstance(error, click.UsageError) else None
    if context is not None:
        say(context.get_usage(), err=True)
        say(translated("Help: {command} --help", "cli").format(command=context.command_path), err=True)
    say(translated("Error: {message}", "cli").format(message=shown(error.format_message())), err=True)


class _SpokenFormatter(click.HelpFormatter):
    """click's layout, by display width, its own words translated."""

    def __init__(self) -> None:
        super().__init__(width=WIDTH - 2)

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        head = f"{translated('Usage', 'click')}: {prog} "
        self._lines(wrapped(args, head, " " * display_width(head)) or [head.rstrip()])

    def write_heading(self, heading: str) -> None:
        self.write(f"{'':>{self.current_indent}}{translated(heading, 'click')}:\n")

    def write_text(self, text: str) -> None:
        indent = " " * self.current_indent
        for place, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
            if place:
                self.write("\n")
            lines = paragraph.split("\n")
            if lines[0].strip() == "\b":
                self._lines(f"{indent}{line}".rstrip() for line in lines[1:])
            else:
                self._lines(wrapped(paragraph, indent, indent))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        rows = list(rows)
        widest = min(max(display_width(name) for name, _ in rows) + col_spacing, _OPTION_COLUMNS)
        indent, later = " " * self.current_indent, " " * (self.current_indent + widest)
        for name, text in rows:
            lines = wrapped(_own_words(text), later, later)
            if display_width(name) + col_spacing <= widest and lines:
                lines[0] = indent + padded(name, widest) + lines[0].lstrip(" ")
            else:
                lines.insert(0, indent + name)
            self._lines(lines)

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        self.write("\n")
        self.write_heading(name)
        self.indent()
        try:
            yield
        finally:
            self.dedent()

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(f"{line}\n")


def _own_words(text: str) -> str:
    """The help of an option with click's own words translated."""
    if text in _OWN:
        return translated(text, "cli")
    text = text.replace("[required]", f"[{translated('required', 'click')}]")
    return _DEFAULT.sub(lambda found: f"[{translated('default', 'click')}: {found['value']}]", text)
