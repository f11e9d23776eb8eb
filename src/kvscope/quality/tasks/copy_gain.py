"""What a document adds to the likelihood of a fact: the fact's own tokens, with the document that states it and with
its twin that does not. It needs no instruction to be followed and no chat template, so base models have it too."""

from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, Numbers, num_facts
from kvscope.quality.task import Document, DocumentRequest, Task
from kvscope.quality.tasks.fidelity import value_question
from kvscope.quality.tasks.keys import crate_sentence

_MOST_ASKED = 4


def build_copy_gain(request: DocumentRequest) -> tuple[Document, Document]:
    """12 crates to a thousand tokens, at least 3; the numbers of up to 4 of them are scored, and the twin tells of
    other crates in their place."""
    random = seeded(request, "copy_gain")
    names, numbers = Names(request.language, random), Numbers(random)
    count = num_facts(request.prompt_tokens, per_thousand=12, least=3)
    crates = [(names.draw(), numbers.draw()) for _ in range(count)]
    asked = sorted(random.sample(range(count), min(_MOST_ASKED, count)))
    sentences = [crate_sentence(*crate, request.language) for crate in crates]
    others = {index: crate_sentence(names.draw(), numbers.draw(), request.language) for index in asked}
    facts = tuple(
        Fact(sentence=sentence, place=random.random(), twin=others.get(index))
        for index, sentence in enumerate(sentences)
    )
    name = document_name(request, "copy_gain")
    questions = tuple(value_question(f"{name}/{index}", sentences[index], crates[index][1]) for index in asked)
    plan = Plan(
        task="copy_gain",
        facts=facts,
        questions=questions,
        has_markers=False,
        extra_tokens=max(request.count(question.continuation or "") for question in questions),
    )
    return planted(request, plan, random, names)


COPY_GAIN = Task(
    name="copy_gain",
    family="fidelity",
    definition="The log-probability of a number that the document states, per token, against the same in a document "
    "that is alike and does not state it.",
    right="The more likely the document makes it, the better: the gain in nats per token. 0 is no use of the document.",
    build=build_copy_gain,
    default_documents=10,
    least_documents=3,
)
