"""Requests out of files: OpenAI-style JSON, request logs and batch files (JSON Lines), lists of messages.

Form of a request: the reference of OpenAI's chat completions, with what llama.cpp's and vLLM's servers add
(``chat_template_kwargs``, ``documents``, ``add_generation_prompt``). Nothing is guessed: what cannot be read is an
error that names the file, the line and the key, and what is read otherwise than written is said in ``warnings``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kvscope.errors import MalformedFile, ModelNotFound, UsageError
from kvscope.prompt.conversation import Conversation
from kvscope.prompt.json_text import Place, decoded, lines_of, parsed
from kvscope.prompt.llama_cpp_request import LlamaCppReading, read_as_llama_cpp
from kvscope.prompt.message_fields import Notes, read_message, read_tools

_MOST_BYTES = 1024**3
_LINES_LOOKED_AT = 10
_WRAPPERS = ("body", "request")
_OUTPUT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens", "n_predict")
_FORMS = (
    'Write a request as {"messages": [{"role": "user", "content": "..."}]}, a list of such messages, or one request '
    "per line."
)
_READ_KEYS = (
    "messages", "tools", "functions", "chat_template_kwargs", "documents", "add_generation_prompt",
    "continue_final_message",
)  # fmt: skip
# Keys of a request that change what the model sees in a way that is not followed here.
_NOT_FOLLOWED = ("system", "chat_template", "prompt", "input", "response_format", "reasoning_effort")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedRequest:
    """One request as a file states it.

    ``source``: the file, with the line or the place in it ("log.jsonl:3"). ``extra``: further variables of the chat
    template (chat_template_kwargs, documents). ``max_output_tokens``: the output it asks for, None where it says
    nothing. ``continue_final_message``: whether the last message is left open for the model to go on with it; None: as
    the engine does. ``warnings``: what was read otherwise than somebody may expect. ``uncounted``: what a content holds
    that is no text and no image (audio, files), as "messages[1].content[0]: input_audio", and other text of a request.
    ``not_followed``: keys that change what the model sees in a way that is not known here, so that no count of the
    request is to be trusted. ``body``: its other keys as they stand there, which are not read here (model, stream,
    cache_prompt, id_slot, n_predict ...). ``llama_cpp``: what llama.cpp's server makes of it; see ``as_read_by`` in
    prompt_text.py.
    """

    conversation: Conversation
    source: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    max_output_tokens: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None
    warnings: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    not_followed: tuple[str, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    llama_cpp: LlamaCppReading | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLog:
    """``requests`` in the order of the file, and an error for each line that is none (``problems``)."""

    requests: tuple[LoadedRequest, ...]
    problems: tuple[MalformedFile, ...]


def read_requests(path: Path) -> list[LoadedRequest]:
    """The requests in a file, at least one. Raises MalformedFile, which names file, line and key, for the first that
    cannot be read, ModelNotFound where the file cannot be opened, UsageError where it is too large."""
    log = read_log(path)
    if log.problems:
        raise log.problems[0]
    return list(log.requests)


def read_log(path: Path) -> RequestLog:
    """As ``read_requests``; of a file with one request per line, lines that cannot be read are ``problems``, as long as
    there is one that can."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelNotFound(f"{path} cannot be read: {reason}.", hint="Check the path.") from None
    return parse_log(content, name=str(path))


def parse_log(content: bytes, *, name: str) -> RequestLog:
    """As ``read_log``, of bytes that are at hand; ``name`` is what errors call them. Raises as ``read_log``."""
    if len(content) > _MOST_BYTES:
        raise UsageError(f"{name} is larger than 1 GiB.", hint="Split it, or count it as text: kvscope count FILE.")
    text = decoded(content, name)
    lines = lines_of(text)
    if not lines:
        raise MalformedFile(name, "line 1", "the file is empty", hint=_FORMS)
    if len(lines) > 1 and (_is_whole(lines[0][1]) or _is_cut_log(lines, name)):
        return _from_lines(lines, name)
    return RequestLog(requests=tuple(_from_value(parsed(text, Place(file=name)), name)), problems=())


def _is_whole(line: str) -> bool:
    """Whether a line holds a whole JSON value, well written or not, so that each line of the file does."""
    line = line.strip()
    return line[:1] + line[-1:] in ("{}", "[]") and line not in ("{", "[")


def _is_cut_log(lines: list[tuple[int, str]], name: str) -> bool:
    """Whether this is a log whose first line is broken: one of the next lines is a request by itself."""
    if lines[0][1].strip() in ("{", "["):
        return False
    for number, line in lines[1:_LINES_LOOKED_AT]:
        place = Place(file=name, line=number)
        try:
            if _is_whole(line):
                _body(parsed(line, place), place)
                return True
        except MalformedFile:
            continue
    return False


def _from_lines(lines: list[tuple[int, str]], name: str) -> RequestLog:
    values: list[tuple[Place, Any]] = []
    problems: dict[int, MalformedFile] = {}
    for number, line in lines:
        place = Place(file=name, line=number)
        try:
            values.append((place, parsed(line, place)))
        except MalformedFile as error:
            problems[number] = error
    if values and _is_message(values[0][1]):
        if problems:
            raise next(iter(problems.values()))
        return RequestLog(requests=(_conversation(values, name),), problems=())
    requests = []
    for place, value in values:
        try:
            requests.append(_request(value, place, f"{name}:{place.line}"))
        except MalformedFile as error:
            problems[place.line or 0] = error
    ordered = tuple(problems[number] for number in sorted(problems))
    if not requests:
        raise ordered[0]
    return RequestLog(requests=tuple(requests), problems=ordered)


def _from_value(value: Any, name: str) -> list[LoadedRequest]:
    place = Place(file=name)
    if isinstance(value, list) and value and not _is_message(value[0]) and isinstance(value[0], dict):
        return [_request(each, place.at(index), f"{name}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, list):
        return [_request(value, place, name)]
    if _is_message(value):
        return [_conversation([(place, value)], name)]
    return [_request(value, place, name)]


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and "role" in value and "messages" not in value


def _conversation(values: list[tuple[Place, Any]], name: str) -> LoadedRequest:
    """Messages that stand each on a line."""
    notes = Notes()
    messages = tuple(read_message(value, place, notes) for place, value in values)
    body = {"messages": [value for _, value in values]}
    return _loaded(Conversation(messages=messages), name, notes, {}, body)


def _request(value: Any, place: Place, source: str) -> LoadedRequest:
    body, place = ({"messages": value}, place) if isinstance(value, list) else _body(value, place)
    notes = Notes()
    entries = body["messages"]
    if not isinstance(entries, list):
        raise place.at("messages").error("a list of messages was expected")
    if not entries:
        raise place.at("messages").error("the conversation is empty", hint="Give it one message or more.")
    where = place.at("messages")
    messages = tuple(read_message(each, where.at(index), notes) for index, each in enumerate(entries))
    conversation = Conversation(messages=messages, tools=read_tools(body, place))
    if body.get("system"):
        notes.uncounted.append("system")
    return _loaded(conversation, source, notes, _settings(body, place), body)


def _body(value: Any, place: Place) -> tuple[Mapping[str, Any], Place]:
    """The object that has ``messages``, which logs and batch files put under a key of their own."""
    if isinstance(value, dict):
        if "messages" in value:
            return value, place
        for key in _WRAPPERS:
            inner = value.get(key)
            if isinstance(inner, str) and inner.lstrip().startswith("{"):
                inner = parsed(inner, place.at(key))
            if isinstance(inner, dict):
                return _body(inner, place.at(key))
    raise place.error("no request stands here: an object with messages was expected", hint=_FORMS)


def _settings(body: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """What a request says beside its messages and tools, by the names of LoadedRequest."""
    values = body.get("chat_template_kwargs")
    if values is not None and not isinstance(values, dict):
        raise place.at("chat_template_kwargs").error("an object was expected")
    extra = dict(values or {})
    for name in ("messages", "tools"):
        if name in extra:
            raise place.at("chat_template_kwargs").at(name).error("the template has its own", hint="Leave it out.")
    documents = body.get("documents")
    if documents is not None:
        if not isinstance(documents, list):
            raise place.at("documents").error("a list was expected")
        extra["documents"] = documents
    generation = extra.pop("add_generation_prompt", body.get("add_generation_prompt"))
    if generation is not None and not isinstance(generation, bool):
        raise place.at("add_generation_prompt").error("true or false was expected")
    continued = body.get("continue_final_message")
    if continued is not None and not isinstance(continued, bool):
        raise place.at("continue_final_message").error("true or false was expected")
    if continued and body.get("add_generation_prompt") is not False:
        raise place.at("continue_final_message").error(
            "engines refuse it unless add_generation_prompt is false", hint='Add "add_generation_prompt": false.'
        )
    return {
        "extra": extra,
        "add_generation_prompt": generation is not False,
        # False is what transformers does anyway, and llama.cpp takes it as not said.
        "continue_final_message": continued or None,
        "max_output_tokens": _max_output_tokens(body, place),
        "not_followed": tuple(key for key in _NOT_FOLLOWED if body.get(key) and body[key] != {"type": "text"}),
        "body": {key: value for key, value in body.items() if key not in _READ_KEYS},
    }


def _max_output_tokens(body: Mapping[str, Any], place: Place) -> int | None:
    for key in _OUTPUT_KEYS:
        value = body.get(key)
        if value is None or value == -1:  # llama.cpp's word for no limit
            continue
        if type(value) is not int or value < 0:
            raise place.at(key).error("a number of tokens was expected")
        return value
    return None


def _loaded(
    conversation: Conversation, source: str, notes: Notes, settings: Mapping[str, Any], body: Mapping[str, Any]
) -> LoadedRequest:
    not_followed = settings.get("not_followed", ())
    reading = read_as_llama_cpp(body, conversation, not_followed)
    said = _said(reading.not_followed, [each for each in notes.uncounted if each != "system"])
    reading = replace(reading, warnings=(*notes.warnings, *said, *reading.warnings))
    return LoadedRequest(
        conversation=conversation,
        source=source,
        warnings=(*notes.warnings, *_said(not_followed, notes.uncounted)),
        uncounted=tuple(notes.uncounted),
        llama_cpp=reading,
        **settings,
    )


def _said(not_followed: Sequence[str], uncounted: Sequence[str]) -> list[str]:
    said = [
        f"The request's {key!r} is not followed here: what it adds or changes is not in the count."
        for key in not_followed
    ]
    return [*said, f"Not counted: {', '.join(uncounted)}."] if uncounted else said
