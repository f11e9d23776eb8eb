"""A request counted without a chat template: what was written alone, each text for itself."""

import json
from collections.abc import Iterator

from kvscope.prompt.conversation import RETRIEVED, Image
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.counting.request import RequestTokens, ToolTokens
from kvscope.prompt.counting.request_rows import Amount, MessageTokens, PartRow, turn_label
from kvscope.prompt.counting.request_spans import (
    HISTORY,
    SYSTEM,
    TOOLS,
    USER,
    last_user_message,
    parts_of_messages,
    turns_of,
)
from kvscope.prompt.message_fields import tool_name
from kvscope.prompt.tokenizers.base import Tokenizer, writable

ALONE = "Contents alone: no chat template and no BOS, so a model is sent more than this."


def amount_of(text: str, tokenizer: Tokenizer) -> Amount:
    """A text for itself; names of control tokens in it are text."""
    return Amount(characters=len(text), bytes=len(writable(text).encode()), tokens=tokenizer.count(text))


def count_contents(request: LoadedRequest, *, tokenizer: Tokenizer) -> RequestTokens:
    """The contents, reasoning, calls and tools of ``request``, each text for itself: no template, no BOS. Calls and
    tools are counted as JSON. Raises what the tokenizer raises."""
    messages = request.conversation.messages
    turns, current = turns_of(messages), last_user_message(messages)
    own = [
        sum((amount_of(text, tokenizer) for text in _texts(request, index)), Amount()) for index in range(len(messages))
    ]
    parts = parts_of_messages(messages)
    rows: list[PartRow] = []
    places: dict[tuple[str, int], list[int]] = {}
    for index, place in enumerate(zip(parts, turns, strict=True)):
        places.setdefault(place, []).append(index)
    for part, label in ((SYSTEM, "instructions"), (HISTORY, ""), (USER, "the last question"), (RETRIEVED, "")):
        for turn in dict.fromkeys(turns):
            chosen = places.get((part, turn))
            if chosen:
                is_current = current is not None and turn == turns[current]
                rows.append(
                    PartRow(
                        part=part,
                        kind="turn",
                        label=label or turn_label(turn, is_current=is_current),
                        amount=sum((own[index] for index in chosen), Amount()),
                        turn=turn,
                    )
                )
    tools = [(tool_name(tool) or "", amount_of(_json(tool), tokenizer)) for tool in request.conversation.tools]
    rows += [PartRow(part=TOOLS, kind="tool", label=name, amount=amount, tool=name) for name, amount in tools]
    return RequestTokens(
        source=request.source,
        text="",
        total_tokens=sum(row.amount.tokens for row in rows),
        rows=tuple(rows),
        messages=tuple(
            MessageTokens(
                index=index,
                role=message.role,
                turn=turns[index],
                part=parts[index],
                own=own[index],
                template_tokens=0,
                dropped_characters=0,
            )
            for index, message in enumerate(messages)
        ),
        tools=tuple(
            ToolTokens(name=name, tokens=amount.tokens, without_it_saves_tokens=None) for name, amount in tools
        ),
        bos=None,
        uncounted_images=sum(isinstance(block, Image) for message in messages for block in message.blocks),
        uncounted=request.uncounted,
        not_followed=request.not_followed,
        warnings=(*request.warnings, ALONE),
    )


def _texts(request: LoadedRequest, index: int) -> Iterator[str]:
    message = request.conversation.messages[index]
    yield message.content
    yield message.reasoning or ""
    for call in message.tool_calls:
        yield _json(call.get("function", call))


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
