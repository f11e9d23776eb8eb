"""One planted fact: of each kind of thing the text tells one, and that one is asked."""

from kvscope.quality.korean import Word
from kvscope.quality.planting import Fact, Plan, document_name, planted, seeded
from kvscope.quality.prose import Names, Numbers, num_facts, recalled
from kvscope.quality.task import Document, DocumentRequest, Question, Task

# The sentence, and the question for its number. {n}: a name; {v}: the number.
_KINDS = {
    "en": (
        ("The ferry to {n} carries the number {v}.", "Which number does the ferry to {n} carry?"),
        ("Guests reach the hotel {n} by dialling {v}.", "What do guests dial to reach the hotel {n}?"),
        ("The parish of {n} counts {v} inhabitants.", "How many inhabitants does the parish of {n} count?"),
        (
            "The seed catalogue lists the rose {n} as number {v}.",
            "As which number does the seed catalogue list the rose {n}?",
        ),
        ("The painting {n} was sold for {v} crowns.", "For how many crowns was the painting {n} sold?"),
        ("The tunnel at {n} has a length of {v} feet.", "What length in feet does the tunnel at {n} have?"),
        ("The ship {n} was registered as {v}.", "As which number was the ship {n} registered?"),
        (
            "The archive keeps the letters of {n} in folder {v}.",
            "In which folder does the archive keep the letters of {n}?",
        ),
        ("The lighthouse of {n} has burned for {v} nights.", "For how many nights has the lighthouse of {n} burned?"),
        ("The quarry at {n} employs {v} men.", "How many men does the quarry at {n} employ?"),
        ("The comet {n} returns after {v} days.", "After how many days does the comet {n} return?"),
        ("The bridge of {n} was built from {v} stones.", "From how many stones was the bridge of {n} built?"),
    ),
    "ko": (
        ("{n:으로} 가는 배에는 {v}번이라고 적혀 있다.", "{n:으로} 가는 배에는 몇 번이라고 적혀 있습니까?"),
        ("{n} 호텔의 전화번호는 {v}번이다.", "{n} 호텔의 전화번호는 몇 번입니까?"),
        ("{n} 마을에 사는 주민은 {v}명이다.", "{n} 마을에 사는 주민은 몇 명입니까?"),
        ("{n} 장미는 씨앗 목록에서 {v}번이다.", "{n} 장미는 씨앗 목록에서 몇 번입니까?"),
        ("{n}의 초상화는 {v}냥에 팔렸다.", "{n}의 초상화는 몇 냥에 팔렸습니까?"),
        ("{n} 터널의 길이는 {v}자이다.", "{n} 터널의 길이는 몇 자입니까?"),
        ("{n} 열차의 좌석은 모두 {v}석이다.", "{n} 열차의 좌석은 모두 몇 석입니까?"),
        ("{n}의 편지는 서랍 {v}번에 들어 있다.", "{n}의 편지는 서랍 몇 번에 들어 있습니까?"),
        ("{n} 등대가 불을 밝힌 날은 {v}일이다.", "{n} 등대가 불을 밝힌 날은 며칠입니까?"),
        ("{n} 채석장에서 일하는 사람은 {v}명이다.", "{n} 채석장에서 일하는 사람은 몇 명입니까?"),
        ("{n} 혜성이 돌아오는 데 걸리는 시간은 {v}일이다.", "{n} 혜성이 돌아오는 데 걸리는 시간은 며칠입니까?"),
        ("{n} 다리를 짓는 데 쓴 돌은 {v}개이다.", "{n} 다리를 짓는 데 쓴 돌은 몇 개입니까?"),
    ),
}
_ALONE = {"en": "Answer with the number alone.", "ko": "숫자만 답하십시오."}


def build_needle(request: DocumentRequest) -> tuple[Document, Document]:
    """8 facts to a thousand tokens, from 2 to 12, no two of one kind; each is asked for."""
    random = seeded(request, "needle")
    names, numbers = Names(request.language, random), Numbers(random)
    kinds = _KINDS[request.language]
    num_kinds = num_facts(request.prompt_tokens, per_thousand=8, least=2, most=len(kinds), language=request.language)
    chosen = random.sample(range(len(kinds)), num_kinds)
    told = {kind: (Word(names.draw()), numbers.draw()) for kind in chosen}
    facts = tuple(
        Fact(
            sentence=kinds[kind][0].format(n=name, v=number),
            place=random.random(),
            twin=kinds[kind][0].format(n=Word(names.draw()), v=numbers.draw()),
        )
        for kind, (name, number) in told.items()
    )
    questions = tuple(_question(request, told, kind) for kind in chosen)
    return planted(request, Plan(task="needle", facts=facts, questions=questions), random, names)


def _question(request: DocumentRequest, told: dict[int, tuple[Word, str]], kind: int) -> Question:
    sentence, question = _KINDS[request.language][kind]
    name, number = told[kind]
    return Question(
        item=f"{document_name(request, 'needle')}/{kind}",
        text=f"{question.format(n=name)} {_ALONE[request.language]}",
        cue=recalled(sentence.partition("{v}")[0].format(n=name).rstrip(), request.language),
        expected=(number,),
        rivals=tuple(other for _, other in told.values() if other != number),
        scoring="normalised",
        chance=1 / len(told),
        evidence=(sentence.format(n=name, v=number),),
        max_output_tokens=64,
    )


NEEDLE = Task(
    name="needle",
    family="ability",
    definition="The text tells one fact of each of several kinds (a ferry, a hotel ...), with a number; it is asked.",
    right="The answer names that number and no other.",
    build=build_needle,
)
