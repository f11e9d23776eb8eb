"""Exact copy of a sentence of the document, found by how it begins."""

from random import Random

from kvscope.quality.korean import Word
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, num_facts
from kvscope.quality.prose_en import THING as ENGLISH_THING
from kvscope.quality.prose_ko import THING as KOREAN_THING
from kvscope.quality.task import Document, DocumentRequest, Question, Task

_MOST_ASKED = 6
_VERBS = ("left", "hid", "found", "forgot", "unwrapped", "dropped")
_KO_VERBS = ("두고 왔다", "숨겼다", "찾았다", "잊었다", "풀어 보았다", "떨어뜨렸다")


def copied_sentence(language: str, names: Names, random: Random) -> tuple[str, str]:
    """A sentence that nobody can guess, in two parts: how it begins, and the rest."""
    one, two, place = Word(names.draw()), Word(names.draw()), Word(names.draw())
    if language == "ko":
        first, second = (Word(thing) for thing in random.sample(KOREAN_THING, 2))
        return f"{one:과} {two:은}", f"{place}에서 {first:과} {second:을} {random.choice(_KO_VERBS)}."
    things = random.sample(ENGLISH_THING, 2)
    return f"{one} and {two}", f"{random.choice(_VERBS)} {things[0]} and {things[1]} in {place}."


def build_copy(request: DocumentRequest) -> tuple[Document, Document]:
    """6 such sentences to a thousand tokens, at least 2; up to 6 of them are asked for."""
    random = seeded(request, "copy")
    names = Names(request.language, random)
    number = num_facts(request.prompt_tokens, per_thousand=6, least=2, language=request.language)
    sentences = [copied_sentence(request.language, names, random) for _ in range(number)]
    asked = sorted(random.sample(range(number), min(_MOST_ASKED, number)))
    facts = tuple(
        Fact(
            sentence=" ".join(parts),
            place=random.random(),
            twin=" ".join(copied_sentence(request.language, names, random)) if index in asked else None,
        )
        for index, parts in enumerate(sentences)
    )
    questions = tuple(_question(request, sentences[index], index) for index in asked)
    return planted(request, Plan(task="copy", facts=facts, questions=questions), random, names)


def _question(request: DocumentRequest, parts: tuple[str, str], index: int) -> Question:
    begin, rest = parts
    if request.language == "ko":
        cue = f"위 글에서 인용: “{begin}"
        text = f"이 글에서 “{begin}”으로 시작하는 문장을 한 글자도 바꾸지 말고 그대로 적으십시오. 그 문장만 적으십시오."
    else:
        cue = f"Quotation from the text above: “{begin}"
        text = f"Copy, word for word, the sentence of the text that begins with “{begin}”. Write that sentence alone."
    return Question(
        item=f"{document_name(request, 'copy')}/{index}",
        text=text,
        cue=cue,
        expected=(rest,),
        scoring="exact",
        chance=0.0,
        evidence=(f"{begin} {rest}",),
        max_output_tokens=160 if request.language == "ko" else 64,
    )


COPY = Task(
    name="copy",
    family="ability",
    definition="A sentence of the text is to be repeated word for word; its first words say which.",
    right="The answer is that sentence, letter for letter, and nothing else.",
    build=build_copy,
)
