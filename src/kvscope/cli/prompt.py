"""kvscope prompt: inputs of exactly so many tokens."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from kvscope.cli.options import parse_depth, parse_token_list
from kvscope.cli.output import say, say_json
from kvscope.errors import OutputExists, RecordUnwritable, UsageError
from kvscope.prompt.counting.context_fit import ContextFit, ContextLimit, limit_of
from kvscope.prompt.exact_length.build import ExactPrompt
from kvscope.prompt.exact_length.distinct import build_prompts
from kvscope.prompt.exact_length.one_text import load_text_count
from kvscope.prompt.exact_length.own_text import read_own_text
from kvscope.prompt.exact_length.source_text import LANGUAGES, load_source_text
from kvscope.report.exact_prompt_text import render_prompt_line
from kvscope.report.files import write_file

EXAMPLE = """\b
Examples:
  kvscope prompt --model model.gguf --tokens 2k > prompt.txt
  kvscope prompt --model model.gguf --tokens 512,2k,8k --language ko --repeats 3 --json --out requests
  kvscope prompt --model model.gguf --tokens 4k --text notes/ --key-depth 30% --key-sentence "The code is 4711."
"""
STDOUT = "-"


@click.command(epilog=EXAMPLE)
@click.option(
    "--model",
    required=True,
    help="Whose tokens: a .gguf, pkg:NAME, a model folder, or the address of a llama.cpp server.",
)
@click.option("--template", help="A chat template from elsewhere: a .jinja file, a model folder, a .gguf.")
@click.option("--tokens", required=True, help="Length of the whole input, template included: 2k, or 512,2k,8k.")
@click.option("--language", type=click.Choice(LANGUAGES), default="en", show_default=True, help="Of text and request.")
@click.option("--text", type=click.Path(), help="Your own text file or folder, instead of the bundled text.")
@click.option("--key-sentence", help="A sentence that stands in every prompt, instead of the language's own.")
@click.option("--key-depth", help="Where it stands: start, middle (default), end, or 30%.")
@click.option("--raw", "is_raw", is_flag=True, help="No chat template: for base models and /completions. BOS counts.")
@click.option("--seed", type=int, default=0, show_default=True, help="Equal seeds give equal texts.")
@click.option("--repeats", type=int, default=1, show_default=True, help="Prompts of each length, no two alike.")
@click.option("--out", default=STDOUT, show_default=True, help="Folder to write files to; - is standard output.")
@click.option("--force", is_flag=True, help="Overwrite files that exist.")
@click.option("--json", "as_json", is_flag=True, help="Write request bodies, as OpenAI's interface takes them.")
def prompt(
    model: str,
    template: str | None,
    tokens: str,
    language: str,
    text: str | None,
    key_sentence: str | None,
    key_depth: str | None,
    is_raw: bool,
    seed: int,
    repeats: int,
    out: str,
    force: bool,
    as_json: bool,
) -> int:
    """Inputs of exactly N tokens as the model counts them, each with the same key sentence.

    One line for each says its tokens and where the key sentence stands.
    """
    lengths = parse_token_list(tokens)
    if out == STDOUT and not as_json and len(lengths) * repeats > 1:
        raise UsageError("Several texts would run into one.", hint="Add --out FOLDER, or --json for one body a line.")
    if is_raw and template is not None:
        raise UsageError("--raw is without a template, and one is given.", hint="Leave out one of the two.")
    count = load_text_count(model, is_raw=is_raw, template=template)
    limit = limit_of(None, model)
    prompts = build_prompts(
        lengths,
        repeats=repeats,
        seed=seed,
        count=count,
        locate=count.tokens_before,
        source=load_source_text(language) if text is None else read_own_text(text, language=language),
        key_sentence=key_sentence,
        key_percent=parse_depth(key_depth),
        is_raw=is_raw,
    )
    if out != STDOUT:
        _write(prompts, _files(Path(out), lengths, repeats, as_json, force), as_json, limit)
        return 0
    for built in prompts:
        _print(built, as_json)
        say(render_prompt_line(_told(built, limit)), err=True)
    return 0


def _told(built: ExactPrompt, limit: ContextLimit) -> dict[str, Any]:
    return {**built.to_dict(), **ContextFit(limit=limit, prompt_tokens=built.prompt_tokens).limit_fields()}


def _body(built: ExactPrompt) -> dict[str, Any]:
    if built.is_raw:
        return {"prompt": built.text}
    return {"messages": [{"role": message.role, "content": message.content} for message in built.messages]}


def _print(built: ExactPrompt, as_json: bool) -> None:
    if as_json:
        say_json(_body(built), indent=None)
    elif sys.stdout.isatty():
        say(built.text)
    else:
        # As it is: a character written otherwise, or a line end more, would be other tokens.
        click.echo(built.text.encode(), nl=False)


def _files(folder: Path, lengths: tuple[int, ...], repeats: int, as_json: bool, force: bool) -> list[Path]:
    """The files to be written, in a folder that is there then. Raises OutputExists before anything is built."""
    if len(set(lengths)) < len(lengths):
        raise UsageError("A length is given twice.", hint="Ask for more --repeats of it instead.")
    suffix = "json" if as_json else "txt"
    files = [folder / f"prompt-{length}-{number + 1}.{suffix}" for length in lengths for number in range(repeats)]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordUnwritable(f"Cannot make {folder}: {error.strerror}.", hint="Name another folder.") from error
    there = [path for path in files if path.exists()]
    if there and not force:
        raise OutputExists(f"{there[0]} exists already.", hint="Name another folder, or add --force.")
    return files


def _write(prompts: Iterable[ExactPrompt], files: list[Path], as_json: bool, limit: ContextLimit) -> None:
    told = []
    for path, built in zip(files, prompts, strict=True):
        content = json.dumps(_body(built), ensure_ascii=False) + "\n" if as_json else built.text
        write_file(path, content, force=True)
        told.append({"file": str(path), **_told(built, limit)})
        if not as_json:
            say(render_prompt_line(told[-1], path.name))
    if as_json:
        say_json(told)
