"""A tool to be called with a number that stands in the document, and one that stands in the question."""

import json
from collections.abc import Mapping
from typing import Any

from kvscope.quality.korean import with_particle
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, Numbers, num_facts
from kvscope.quality.task import Document, DocumentRequest, Question, Task

_MOST_ASKED = 6
_MINUTES = (5, 10, 15, 20, 30)
# What chat templates write around tools, instructions included; of those tried the most was 106.
_TEMPLATE_TOKENS = 160
_NAMES = ("open_locker", "close_locker")


def _tool(name: str) -> Mapping[str, Any]:
    arguments = {"locker_number": {"type": "integer"}, "minutes": {"type": "integer"}}
    parameters = {"type": "object", "properties": arguments, "required": list(arguments)}
    says = f"{name.split('_')[0].capitalize()} a locker."
    return {"type": "function", "function": {"name": name, "description": says, "parameters": parameters}}


_TOOLS = tuple(_tool(name) for name in _NAMES)


def _sentence(name: str, number: str, language: str) -> str:
    if language == "ko":
        return f"{name}의 사물함 번호는 {with_particle(number, '이다')}."
    return f"The locker of {name} has the number {number}."


def _call(number: str, minutes: int) -> Mapping[str, Any]:
    return {"name": _NAMES[0], "arguments": {"minutes": minutes, "locker_number": int(number)}}


def _asks(name: str, minutes: int, language: str) -> str:
    if language == "ko":
        return f"{name}의 사물함을 {minutes}분 동안 여는 명령:"
    return f"The command that opens the locker of {name} for {minutes} minutes:"


def build_tool_call(request: DocumentRequest) -> tuple[Document, Document]:
    """12 lockers to a thousand tokens, at least 3; up to 6 are to be opened. Room is left for two tools."""
    random = seeded(request, "tool_call")
    names, numbers = Names(request.language, random), Numbers(random)
    number = num_facts(request.prompt_tokens, per_thousand=12, least=3, language=request.language)
    lockers = [(names.draw(), numbers.draw()) for _ in range(number)]
    asked = sorted(random.sample(range(number), min(_MOST_ASKED, number)))
    facts = tuple(
        Fact(
            sentence=_sentence(*locker, request.language),
            place=random.random(),
            twin=_sentence(names.draw(), numbers.draw(), request.language) if index in asked else None,
        )
        for index, locker in enumerate(lockers)
    )
    questions = tuple(_question(request, lockers, index, random.choice(_MINUTES)) for index in asked)
    extra = 0 if request.form == "cue" else request.count(json.dumps(_TOOLS)) + _TEMPLATE_TOKENS
    plan = Plan(task="tool_call", facts=facts, questions=questions, extra_tokens=extra)
    return planted(request, plan, random, names)


def _question(request: DocumentRequest, lockers: list[tuple[str, str]], index: int, minutes: int) -> Question:
    name, number = lockers[index]
    if request.language == "ko":
        text = (
            f"도구 {_NAMES[0]}를 불러 {name}의 사물함을 {minutes}분 동안 여십시오. 도구를 부를 수 없으면 다음 꼴의 "
            f'JSON만 답하십시오: {{"name": "{_NAMES[0]}", "arguments": '
            f'{{"locker_number": 사물함 번호, "minutes": 분}}}}'
        )
    else:
        text = (
            f"Open the locker of {name} for {minutes} minutes: call the tool {_NAMES[0]}. If you cannot call tools, "
            f'answer with JSON alone, of this form: {{"name": "{_NAMES[0]}", "arguments": '
            f'{{"locker_number": the number of the locker, "minutes": the minutes}}}}'
        )
    shown = lockers[index - 1]
    begun = json.dumps(_call("0", minutes)).removesuffix(" 0}}")
    cue = (
        f"{_asks(shown[0], 25, request.language)}\n{json.dumps(_call(shown[1], 25))}\n"
        f"{_asks(name, minutes, request.language)}\n{begun}"
    )
    return Question(
        item=f"{document_name(request, 'tool_call')}/{index}",
        text=text,
        cue=cue,
        expected=(json.dumps(_call(number, minutes)),),
        rivals=tuple(other for _, other in lockers if other != number),
        scoring="tool_call",
        chance=1 / (len(lockers) * (1 if request.form == "cue" else len(_NAMES))),
        evidence=(_sentence(name, number, request.language),),
        max_output_tokens=96,
        tools=_TOOLS,
    )


TOOL_CALL = Task(
    name="tool_call",
    family="ability",
    definition="A tool is to be called with the number of somebody's locker, which the text tells, and with a number "
    "of minutes, which the question tells; a second tool is offered.",
    right="One call, of that tool, with these two arguments and no other.",
    build=build_tool_call,
)
