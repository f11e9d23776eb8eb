"""Counting and aggregation: how often somebody came, how much they brought in all, who came most often."""

from itertools import combinations
from random import Random

from kvscope.quality.korean import Word
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, num_facts, recalled
from kvscope.quality.task import Document, DocumentRequest, Question, Task

# More than anybody has visits, and any two are more than the most: no answer is a number of the text.
_SACKS = range(5, 10)
_VISITS, _LEADER_VISITS = (1, 2, 3), 4
_ASK = {
    "en": {
        "times": (
            "How many times did {n} bring sacks to the mill? Answer with the number alone.",
            "The number of times that {n} brought sacks to the mill is",
        ),
        "sum": (
            "How many sacks did {n} bring to the mill in all? Answer with the number alone.",
            "The number of sacks that {n} brought to the mill in all is",
        ),
        "most": (
            "Who brought sacks to the mill most often? Answer with the name alone.",
            "The one who brought sacks to the mill most often was",
        ),
    },
    "ko": {
        "times": (
            "{n:이} 방앗간에 자루를 가져온 것은 모두 몇 번입니까? 횟수만 숫자로 답하십시오.",
            "{n:이} 방앗간에 자루를 가져온 횟수는 모두",
        ),
        "sum": (
            "{n:이} 방앗간에 가져온 자루는 모두 합해 몇 개입니까? 숫자만 답하십시오.",
            "{n:이} 방앗간에 가져온 자루를 모두 합하면",
        ),
        "most": (
            "방앗간에 자루를 가장 여러 번 가져온 사람은 누구입니까? 이름만 답하십시오.",
            "방앗간에 자루를 가장 여러 번 가져온 사람은",
        ),
    },
}


def _sentence(name: str, sacks: int, language: str) -> str:
    if language == "ko":
        return f"{Word(name):은} 방앗간에 자루 {sacks}개를 가져왔다."
    return f"{name} brought {sacks} sacks to the mill."


def chance_of_sum() -> float:
    """The share right for who always says the likeliest sum of two or three different numbers from 5 to 9."""
    ways = [[sum(chosen) for chosen in combinations(_SACKS, visits)] for visits in _VISITS[1:]]
    return max(sum(sums.count(value) / len(sums) for sums in ways) / len(ways) for value in range(60))


def build_count(request: DocumentRequest) -> tuple[Document, Document]:
    """5 people to a thousand tokens, at least 3: one comes 4 times, the others 1 to 3 times, each time with another
    number of sacks, all at places drawn for this document. Four questions: how often two of them came, how much one
    brought, who came most often. In the twin other people did what those had done."""
    random = seeded(request, "count")
    names = Names(request.language, random)
    people = [
        names.draw()
        for _ in range(num_facts(request.prompt_tokens, per_thousand=5, least=3, language=request.language))
    ]
    leader, summed, *_ = people
    brought = {name: random.sample(_SACKS, random.choice(_VISITS)) for name in people}
    brought[leader] = random.sample(_SACKS, _LEADER_VISITS)
    brought[summed] = random.sample(_SACKS, random.choice(_VISITS[1:]))
    asked = [("most", leader), ("sum", summed), *(("times", name) for name in people[2:4])]
    facts = _facts(brought, {name for _, name in asked}, request.language, names, random)
    questions = tuple(_question(request, kind, name, brought) for kind, name in asked)
    return planted(request, Plan(task="count", facts=facts, questions=questions), random, names)


def _facts(
    brought: dict[str, list[int]], asked: set[str], language: str, names: Names, random: Random
) -> tuple[Fact, ...]:
    others = {name: names.draw() for name in sorted(asked)}
    return tuple(
        Fact(
            sentence=_sentence(name, sacks, language),
            place=random.random(),
            twin=_sentence(others[name], sacks, language) if name in others else None,
        )
        for name, row in brought.items()
        for sacks in row
    )


def _question(request: DocumentRequest, kind: str, name: str, brought: dict[str, list[int]]) -> Question:
    text, cue = _ASK[request.language][kind]
    expected = {"times": str(len(brought[name])), "sum": str(sum(brought[name])), "most": name}[kind]
    # Who counts nothing and takes the name of any visit is right about the leader by the share of visits.
    visits = {name: len(row) for name, row in brought.items()}
    chance = {"times": 1 / len(_VISITS), "sum": chance_of_sum(), "most": visits[name] / sum(visits.values())}[kind]
    return Question(
        item=f"{document_name(request, 'count')}/{kind}-{name}",
        text=text.format(n=Word(name)),
        cue=recalled(cue.format(n=Word(name)), request.language),
        expected=(expected,),
        rivals=tuple(other for other in brought if other != name) if kind == "most" else (),
        scoring="normalised",
        chance=chance,
        evidence=tuple(_sentence(name, sacks, request.language) for sacks in brought[name]),
        max_output_tokens=64,
    )


COUNT = Task(
    name="count",
    family="ability",
    definition="People bring sacks to a mill, told all over the text: how often did one come, how many sacks did one "
    "bring in all, who came most often?",
    right="The answer names that number and no other, or that person and no other.",
    build=build_count,
)
