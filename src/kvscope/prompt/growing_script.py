"""Where the user's side of a growing conversation comes from: bundled messages, or a file of the user's own.

The bundled messages lie in ``texts/questions_en.txt`` and ``questions_ko.txt``, one a line, in an order in which one
leads to the next; passages and tool results are made of the bundled sentences.
"""

import hashlib
import json
from collections.abc import Iterator
from importlib.resources import files
from itertools import count, islice
from pathlib import Path

from kvscope.errors import BadDesign, MalformedFile, ModelNotFound, UnknownName, UsageError
from kvscope.prompt.conversation import RETRIEVED
from kvscope.prompt.conversation_file import read_requests
from kvscope.prompt.exact_length.source_text import load_source_text
from kvscope.prompt.growing import History, Script, ToolUse, UserTurn

SENTENCES_A_PASSAGE = 3
SEARCH_TOOL = {
    "type": "function",
    "function": {
        "name": "search_notes",
        "description": "Search the user's notes.",
        "parameters": {
            "type": "object",
            "properties": {"query": {"type": "string", "description": "What to look for."}},
            "required": ["query"],
        },
    },
}
_SYSTEM = {
    "en": "You are a patient assistant. Answer in a few sentences.",
    "ko": "너는 차분하게 돕는 도우미다. 몇 문장으로 짧게 답한다.",
}


def bundled_script(
    language: str,
    *,
    seed: int = 0,
    num_turns: int = 1000,
    passages_a_turn: int = 0,
    tool_uses_a_turn: int = 0,
    history: History | None = None,
) -> Script:
    """A script of ``num_turns`` bundled messages in ``language`` ("en" or "ko"), with that many retrieved passages and
    tool results in each turn. The same arguments give the same script. Seeds that differ by less than the number of
    messages (36) begin with different ones; after the last message the first comes again.

    Raises UnknownName for another language, BadDesign for numbers that cannot be.
    """
    if language not in _SYSTEM:
        raise UnknownName("language of the bundled messages", language, _SYSTEM)
    if num_turns < 1 or passages_a_turn < 0 or tool_uses_a_turn < 0:
        raise BadDesign(
            f"A script of {num_turns} turns with {passages_a_turn} passages and {tool_uses_a_turn} tool results a turn "
            "cannot be made.",
            hint="Use at least one turn, and numbers from 0.",
        )
    sentences = _sentences(language, seed)
    questions = (files("kvscope.prompt") / "texts" / f"questions_{language}.txt").read_text("utf-8").splitlines()
    turns = tuple(
        UserTurn(
            text=questions[(seed + number) % len(questions)],
            retrieved=tuple(" ".join(islice(sentences, SENTENCES_A_PASSAGE)) for _ in range(passages_a_turn)),
            tool_uses=tuple(_search(sentences, number + 1, index + 1) for index in range(tool_uses_a_turn)),
        )
        for number in range(num_turns)
    )
    tools = (SEARCH_TOOL,) if tool_uses_a_turn else ()
    return Script(turns=turns, system=_SYSTEM[language], tools=tools, history=history or History())


def _sentences(language: str, seed: int) -> Iterator[str]:
    """The bundled sentences in an order of the seed's, then again in another."""
    pool = load_source_text(language).sentences
    for again in count():
        yield from sorted(pool, key=lambda text: hashlib.sha256(f"{seed}|{again}|{text}".encode()).digest())


def _search(sentences: Iterator[str], turn: int, index: int) -> ToolUse:
    notes = [{"note": number, "text": next(sentences)} for number in range(1, SENTENCES_A_PASSAGE + 1)]
    return ToolUse(
        name="search_notes",
        arguments={"query": f"{turn}.{index}"},
        result=json.dumps({"found": notes}, ensure_ascii=False),
    )


def read_script(path: Path, *, history: History | None = None) -> Script:
    """A script from the user's own file: a conversation (``.json``, ``.jsonl``) whose system message, tools, retrieved
    messages and user messages are taken and whose answers are not, the last request of a log; or any other text file,
    one message a line, blank lines left out.

    Raises ModelNotFound where the file cannot be opened, MalformedFile where it cannot be read as one of these,
    UsageError where it holds no message of a user.
    """
    if path.suffix.lower() in (".json", ".jsonl", ".ndjson"):
        script = _from_conversation(path, history or History())
    else:
        lines = [line.strip() for line in _text(path).splitlines()]
        script = Script(turns=tuple(UserTurn(text=line) for line in lines if line), history=history or History())
    if not script.turns:
        raise UsageError(
            f"{path} holds no message of a user.", hint="Write one message a line, or give a conversation."
        )
    return script


def _text(path: Path) -> str:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read: {error.strerror}.", hint="Check the path.") from error
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedFile(path, f"byte {error.start}", "not UTF-8 text", hint="Save the file as UTF-8.") from error
    if "\0" in text:
        raise MalformedFile(path, f"character {text.index(chr(0))}", "a zero byte, so not a text file")
    return text


def _from_conversation(path: Path, history: History) -> Script:
    conversation = read_requests(path)[-1].conversation
    turns: list[UserTurn] = []
    passages: list[str] = []
    system = [message.content for message in conversation.messages if message.role == "system"]
    for message in conversation.messages:
        if message.origin == RETRIEVED:
            passages.append(message.content)
        elif message.role == "user":
            turns.append(UserTurn(text=message.content, retrieved=tuple(passages)))
            passages = []
    return Script(
        turns=tuple(turns),
        system="\n\n".join(system) if system else None,
        tools=conversation.tools,
        history=history,
    )
