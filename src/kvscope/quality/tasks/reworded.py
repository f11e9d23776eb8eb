"""A fact asked in words it was not written in: what somebody does, and the question for who is called so."""

from kvscope.quality.korean import Word
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, num_facts, recalled
from kvscope.quality.task import Document, DocumentRequest, Question, Task
from kvscope.quality.trades import TRADES

_MOST_FACTS = 10
_MOST_ASKED = 8


def build_reworded(request: DocumentRequest) -> tuple[Document, Document]:
    """12 people to a thousand tokens, from 3 to 10, each with another trade; up to 8 are asked for. In the twin, other
    people with other trades stand in their place."""
    random = seeded(request, "reworded")
    names = Names(request.language, random)
    trades = random.sample(TRADES[request.language], len(TRADES[request.language]))
    number = num_facts(request.prompt_tokens, per_thousand=12, least=3, most=_MOST_FACTS, language=request.language)
    told, spare = trades[:number], trades[number:]
    people = [Word(names.draw()) for _ in told]
    asked = sorted(random.sample(range(number), min(_MOST_ASKED, number)))
    facts = tuple(
        Fact(
            sentence=does.format(n=people[index]),
            place=random.random(),
            twin=spare.pop()[0].format(n=Word(names.draw())) if index in asked else None,
        )
        for index, (does, _) in enumerate(told)
    )
    questions = tuple(_question(request, told[index], people, index) for index in asked)
    return planted(request, Plan(task="reworded", facts=facts, questions=questions), random, names)


def _question(request: DocumentRequest, trade: tuple[str, str], people: list[Word], index: int) -> Question:
    does, called = trade
    if request.language == "ko":
        text = f"{called}의 이름은 무엇입니까? 이름만 답하십시오."
        cue = f"{called}의 이름은"
    else:
        text = f"What is the name of the {called}? Answer with the name alone."
        cue = f"The {called} is called"
    return Question(
        item=f"{document_name(request, 'reworded')}/{index}",
        text=text,
        cue=recalled(cue, request.language),
        expected=(str(people[index]),),
        rivals=tuple(str(other) for place, other in enumerate(people) if place != index),
        scoring="normalised",
        chance=1 / len(people),
        evidence=(does.format(n=people[index]),),
        max_output_tokens=64,
    )


REWORDED = Task(
    name="reworded",
    family="ability",
    definition="The text tells what somebody does (“pulls aching teeth”); asked is the name of the one with that "
    "trade (“dentist”): question and sentence share no word of meaning.",
    right="The answer names that person and no other of those with a trade.",
    build=build_reworded,
)
