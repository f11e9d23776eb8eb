"""Variable tracking: a value is given to one name and handed on to others; rival chains stand between."""

from random import Random

from kvscope.quality.korean import with_particle
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, Numbers, num_facts, recalled
from kvscope.quality.task import Document, DocumentRequest, Question, Task

MOST_HOPS = 3
_ROUNDS = 2


def _root(name: str, value: str, language: str) -> str:
    if language == "ko":
        return f"{name}의 값은 숫자로 {with_particle(value, '이다')}."
    return f"The value of {name} is the number {value}."


def _link(name: str, before: str, language: str) -> str:
    if language == "ko":
        return f"{name}의 값은 {before}의 값과 같다."
    return f"The value of {name} is the same as the value of {before}."


def build_variables(request: DocumentRequest) -> tuple[Document, Document]:
    """6 chains to a thousand tokens, at least 2, of four names each. Eight questions, two for each number of hops from
    0 to 3; in the twin, the chains that are asked for begin with another name and value."""
    random = seeded(request, "variables")
    names, numbers = Names(request.language, random), Numbers(random)
    num_chains = num_facts(request.prompt_tokens, per_thousand=6, least=2, language=request.language)
    chains = [([names.draw() for _ in range(MOST_HOPS + 1)], numbers.draw()) for _ in range(num_chains)]
    # The second round goes on half of the chains further, so that no chain is asked twice over the same hops.
    asked = [
        ((hops + turn * (num_chains // 2)) % num_chains, hops)
        for turn in range(_ROUNDS)
        for hops in range(MOST_HOPS + 1)
    ]
    chains_asked = {chain for chain, _ in asked}
    facts: list[Fact] = []
    for index, (members, value) in enumerate(chains):
        twin = _root(names.draw(), numbers.draw(), request.language) if index in chains_asked else None
        facts += _chain_facts(members, value, twin, request.language, random)
    questions = tuple(_question(request, chains, chain, hops) for chain, hops in asked)
    return planted(request, Plan(task="variables", facts=tuple(facts), questions=questions), random, names)


def _chain_facts(members: list[str], value: str, twin: str | None, language: str, random: Random) -> list[Fact]:
    """In the order in which the value is handed on."""
    places = sorted(random.random() for _ in members)
    facts = [Fact(sentence=_root(members[0], value, language), place=places[0], twin=twin)]
    links = zip(members, members[1:], places[1:], strict=False)
    return facts + [Fact(sentence=_link(name, before, language), place=place) for before, name, place in links]


def _question(request: DocumentRequest, chains: list[tuple[list[str], str]], chain: int, hops: int) -> Question:
    language = request.language
    members, value = chains[chain]
    name = members[hops]
    links = (_link(members[hop], members[hop - 1], language) for hop in range(1, hops + 1))
    return Question(
        item=f"{document_name(request, 'variables')}/hops-{hops}-{chain}",
        text=f"{name}의 값은 얼마입니까? 숫자만 답하십시오."
        if language == "ko"
        else f"What is the value of {name}? Answer with the number alone.",
        cue=recalled(f"{name}의 값은 숫자로" if language == "ko" else f"The value of {name} is the number", language),
        expected=(value,),
        rivals=tuple(other for _, other in chains if other != value),
        scoring="normalised",
        chance=1 / len(chains),
        evidence=(_root(members[0], value, language), *links),
        max_output_tokens=64,
    )


VARIABLES = Task(
    name="variables",
    family="ability",
    definition="A name is given a value, another has the same value as it, and so on, up to 3 hops; other chains stand "
    "between. The value of one name is asked.",
    right="The answer names that value and no other.",
    build=build_variables,
)
