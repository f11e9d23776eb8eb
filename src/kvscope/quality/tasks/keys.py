"""Several keys, one asked: crates with numbers, all told in the same words."""

from kvscope.quality.korean import with_particle
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, Numbers, num_facts, recalled
from kvscope.quality.task import Document, DocumentRequest, Question, Task

_MOST_ASKED = 8


def crate_sentence(name: str, number: str, language: str) -> str:
    """The planted sentence."""
    if language == "ko":
        return f"{name} 상자의 번호는 {with_particle(number, '이다')}."
    return f"The number of the crate {name} is {number}."


def build_keys(request: DocumentRequest) -> tuple[Document, Document]:
    """12 crates to a thousand tokens, at least 3; up to 8 of them are asked for."""
    random = seeded(request, "keys")
    names, numbers = Names(request.language, random), Numbers(random)
    number = num_facts(request.prompt_tokens, per_thousand=12, least=3, language=request.language)
    crates = [(names.draw(), numbers.draw()) for _ in range(number)]
    asked = sorted(random.sample(range(len(crates)), min(_MOST_ASKED, len(crates))))
    others = {index: (names.draw(), numbers.draw()) for index in asked}
    facts = tuple(
        Fact(
            sentence=crate_sentence(*crate, request.language),
            place=random.random(),
            twin=crate_sentence(*others[index], request.language) if index in others else None,
        )
        for index, crate in enumerate(crates)
    )
    questions = tuple(_question(request, crates, index) for index in asked)
    return planted(request, Plan(task="keys", facts=facts, questions=questions), random, names)


def _question(request: DocumentRequest, crates: list[tuple[str, str]], index: int) -> Question:
    name, number = crates[index]
    if request.language == "ko":
        text = f"{name} 상자의 번호는 몇 번입니까? 번호만 답하십시오."
        cue = f"{name} 상자의 번호는"
    else:
        text = f"What is the number of the crate {name}? Answer with the number alone."
        cue = f"The number of the crate {name} is"
    return Question(
        item=f"{document_name(request, 'keys')}/{index}",
        text=text,
        cue=recalled(cue, request.language),
        expected=(number,),
        rivals=tuple(other for _, other in crates if other != number),
        scoring="normalised",
        chance=1 / len(crates),
        evidence=(crate_sentence(name, number, request.language),),
        max_output_tokens=64,
    )


KEYS = Task(
    name="keys",
    family="ability",
    definition="Several crates have numbers, told in the same words all over the document; the number of one is asked.",
    right="The answer names that number and no other.",
    build=build_keys,
)
