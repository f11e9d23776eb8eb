"""One message and one tool as OpenAI's interface writes them, checked and turned into ours.

What is read otherwise than written, and what holds neither text nor image, is noted; nothing is dropped in silence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvscope.prompt.conversation import RETRIEVED, Image, Message
from kvscope.prompt.counting.image_size import size_of_address
from kvscope.prompt.json_text import Place

KNOWN_ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "ipython")
_REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
_TEXT_BLOCKS = ("text", "input_text", "output_text")
_IMAGE_BLOCKS = ("image_url", "input_image", "image")


@dataclass(slots=True)
class Notes:
    """What is to be said about a request: ``warnings``, and the places of blocks that cannot be counted."""

    warnings: list[str] = field(default_factory=list)
    uncounted: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Says ``text`` once."""
        if text not in self.warnings:
            self.warnings.append(text)


def read_message(value: Any, place: Place, notes: Notes) -> Message:
    """A message. Raises MalformedFile for one that has no role, no content, or what is none of a message's."""
    if not isinstance(value, dict):
        raise place.error(f"a message was expected, an object with role and content; {_kind(value)} stands here")
    role = value.get("role")
    if not isinstance(role, str) or not role:
        raise place.at("role").error("a role was expected: system, user, assistant or tool")
    if role not in KNOWN_ROLES:
        shown = role if len(role) <= 40 else f"{role[:40]}..."
        notes.warn(f"The role {shown!r} ({place.key}) is none that is known here; the chat template decides about it.")
    calls = _calls(value, place)
    blocks = _content(value, place, notes, may_be_absent=bool(calls) or "tool_calls" in value)
    return Message(
        role=role,
        content=blocks if isinstance(blocks, str) else "\n".join(block for block in blocks if isinstance(block, str)),
        name=_text(value, "name", place),
        tool_calls=calls,
        tool_call_id=_text(value, "tool_call_id", place),
        reasoning=_reasoning(value, place),
        blocks=() if isinstance(blocks, str) else blocks,
        origin=_origin(value, place),
    )


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")


def _text(value: Mapping[str, Any], key: str, place: Place) -> str | None:
    found = value.get(key)
    if found is not None and not isinstance(found, str):
        raise place.at(key).error(f"a text was expected; {_kind(found)} stands here")
    return found


def _reasoning(value: Mapping[str, Any], place: Place) -> str | None:
    texts = [text for key in _REASONING_KEYS if (text := _text(value, key, place)) is not None]
    if len(set(texts)) > 1:
        raise place.error(f"it has several texts of reasoning ({', '.join(_REASONING_KEYS)}), and they differ")
    return texts[0] if texts else None


def _origin(value: Mapping[str, Any], place: Place) -> str | None:
    origin = _text(value, "origin", place)
    if origin not in (None, RETRIEVED):
        raise place.at("origin").error(f'"{RETRIEVED}" was expected, or nothing; {origin!r} stands here')
    return origin


def _content(
    value: Mapping[str, Any], place: Place, notes: Notes, *, may_be_absent: bool
) -> str | tuple[str | Image, ...]:
    content = value.get("content")
    if content is None:
        # null, and an assistant that only calls tools or thinks may leave it out.
        if "content" not in value and not may_be_absent and _reasoning(value, place) is None:
            raise place.at("content").error("the message has no content")
        return ""
    if isinstance(content, str):
        return content
    place = place.at("content")
    if not isinstance(content, list):
        raise place.error(f"a text or a list of blocks was expected; {_kind(content)} stands here")
    read = (_block(block, place.at(index), notes) for index, block in enumerate(content))
    return tuple(block for block in read if block is not None) or ""


def _block(block: Any, place: Place, notes: Notes) -> str | Image | None:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise place.error("a block was expected, an object with a type")
    if kind in _TEXT_BLOCKS:
        text = block.get("text")
        if not isinstance(text, str):
            raise place.at("text").error("a text was expected")
        return text
    if kind in _IMAGE_BLOCKS:
        return _image(block, kind, place)
    notes.uncounted.append(f"{place.key}: {kind}")
    return None


def _image(block: Mapping[str, Any], kind: str, place: Place) -> Image:
    found = block.get("image_url", block.get("url", block.get("path", block.get("source", block.get("image")))))
    if isinstance(found, dict):
        found = found.get("url", found.get("data"))
    if not isinstance(found, str):
        raise place.at(kind).error("the address of an image was expected")
    is_address = found.startswith(("http://", "https://", "file:")) or (len(found) < 256 and "/" in found)
    size = size_of_address(found) or (None, None)
    source = found if is_address and not found.startswith("data:") else "data:"
    return Image(source=source, width=size[0], height=size[1])


def _calls(value: Mapping[str, Any], place: Place) -> tuple[Mapping[str, Any], ...]:
    calls = value.get("tool_calls")
    legacy = value.get("function_call")
    if calls is None and isinstance(legacy, dict):
        calls, place = [{"type": "function", "function": legacy}], place.at("function_call")
    elif calls is not None:
        place = place.at("tool_calls")
    if calls is None:
        return ()
    if not isinstance(calls, list):
        raise place.error(f"a list was expected; {_kind(calls)} stands here")
    for index, call in enumerate(calls):
        _check_call(call, place.at(index))
    return tuple(calls)


def _check_call(call: Any, place: Place) -> None:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise place.error('a call was expected: {"type": "function", "function": {"name": ..., "arguments": ...}}')


def read_tools(body: Mapping[str, Any], place: Place) -> tuple[Mapping[str, Any], ...]:
    """The tools that a request offers; ``functions``, their older form, are wrapped as ``tools`` are written."""
    tools, key = body.get("tools"), "tools"
    if tools is None and body.get("functions") is not None:
        key = "functions"
        functions = body[key]
        tools = [{"type": "function", "function": each} for each in functions] if isinstance(functions, list) else 0
    if tools is None:
        return ()
    place = place.at(key)
    if not isinstance(tools, list):
        raise place.error("a list was expected")
    for index, tool in enumerate(tools):
        if tool_name(tool) is None:
            raise place.at(index).error('a tool was expected: {"type": "function", "function": {"name": ..., ...}}')
    return tuple(tools)


def tool_name(tool: Any) -> str | None:
    """The name of a tool, in OpenAI's form or with its name at the top; None where it has none."""
    if not isinstance(tool, dict):
        return None
    function = tool.get("function")
    name = function.get("name") if isinstance(function, dict) else tool.get("name")
    return name if isinstance(name, str) else None
