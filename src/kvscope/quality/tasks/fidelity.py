"""How far a setting moves the model: texts whose every token is scored behind a document, for the same model with
another setting to be held against.

What is scored is copied from the document, named by it, or goes on with it: a cache that has lost something shows where
the document has to be looked up, and less where the next word follows from the one before.
"""

from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, Numbers, filler
from kvscope.quality.task import Document, DocumentRequest, Question, Task
from kvscope.quality.tasks.keys import crate_sentence

_PARTS = ("head", "middle", "tail")
_NUM_VALUES = 4
_CUE_WORDS = 3


def build_fidelity(request: DocumentRequest) -> tuple[Document, None]:
    """Three sentences, one in each third of the document, are copied from their first words on; four crates have their
    numbers named; and two sentences go on that the document does not hold."""
    random = seeded(request, "fidelity")
    names, numbers = Names(request.language, random), Numbers(random)
    told = filler(request.language, random)
    name = document_name(request, "fidelity")
    facts, questions = [], []
    for index, part in enumerate(_PARTS):
        passage = next(told)
        facts.append(Fact(sentence=passage, place=(index + random.random()) / len(_PARTS)))
        questions.append(_goes_on(f"{name}/copy-{part}", passage, evidence=(passage,)))
    for index in range(_NUM_VALUES):
        number = numbers.draw()
        sentence = crate_sentence(names.draw(), number, request.language)
        facts.append(Fact(sentence=sentence, place=random.random()))
        questions.append(value_question(f"{name}/value-{index}", sentence, number))
    questions.append(_goes_on(f"{name}/new", f"{next(told)} {next(told)}", evidence=()))
    plan = Plan(
        task="fidelity",
        facts=tuple(facts),
        questions=tuple(questions),
        has_markers=False,
        extra_tokens=max(request.count(question.continuation or "") for question in questions),
    )
    return planted(request, plan, random, names)[0], None


def value_question(item: str, sentence: str, number: str) -> Question:
    """The likelihood of a number behind the words that lead to it in its own sentence."""
    start = sentence.index(number)
    cue = sentence[:start].rstrip()
    continuation = sentence[len(cue) : start + len(number)]
    return _scored(item, cue, continuation, evidence=(sentence,), expected=number)


def _goes_on(item: str, text: str, *, evidence: tuple[str, ...]) -> Question:
    words = text.split(" ")
    cue = " ".join(words[:_CUE_WORDS])
    return _scored(item, cue, text[len(cue) :], evidence=evidence, expected=text)


def _scored(item: str, cue: str, continuation: str, *, evidence: tuple[str, ...], expected: str) -> Question:
    return Question(
        item=item,
        text=cue,
        cue=cue,
        expected=(expected,),
        scoring="exact",
        chance=0.0,
        evidence=evidence,
        max_output_tokens=1,
        continuation=continuation,
    )


FIDELITY = Task(
    name="fidelity",
    family="fidelity",
    definition="Every token of known texts behind a document is scored: passages of it, values that it states, and a "
    "text that goes on. A setting is held against the same model with the reference's setting.",
    right="The probabilities are those of the reference: a Kullback-Leibler divergence of 0 nats.",
    build=build_fidelity,
    default_documents=6,
    least_documents=3,
)
