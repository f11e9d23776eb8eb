"""Korean of the bundled wiki: particles fit the sound before them. These rules are written without those of tools."""

import re
from collections.abc import Callable

import pytest

from kvscope.quality.wiki import wiki

KOREAN = wiki("large", "ko")
TEXTS = {document.name: document.text for document in KOREAN.corpus.documents}
TEXTS["questions"] = "\n".join(question.text for question in KOREAN.questions.asked)

# Words whose last syllable only looks like a particle.
NO_OBJECT = {"마을", "가을", "노을", "고을", "지을"}
NO_TOGETHER = {"결과", "효과", "사과", "여과", "다과", "치과", "초과", "지나", "무과"}
NO_WAY = {"난로", "통로", "항로", "경로", "진로", "종로", "가로", "세로"}
# Names, machines and places, which every particle is held against: of other words 는 and 가 may be endings.
NOUNS = (
    "보리 씨;다온 씨;가람 씨;해솔 씨;미르 선장;단비 씨;이랑 씨;여울 씨;누리 씨;하늬 씨;소담 씨;"
    "새찬 군;미루 씨;별 씨;달래 씨;"
    "여강두 어르신;맹초롱;간솔뫼;도마루;팽나래;시두레;위노을;설다미;채고운;좌버들;예그린;"
    "궉한별;탄두리 할머니;호새벽;뇌보슬;마한울;"
    "갈매빛호;두물호;첫서리호;새벽종호;은비늘호;모래톱호;바위섬호;늦반달호;솔바람호;꽃게잡이호;세가람호;큰누이호;"
    "고등어;전어;꽃게;주꾸미;병어;갈치;숭어;오징어;소라;도다리;벨트;센서;밀봉;밸브;조임쇠;조절기;접촉기;여과망;베어링;패킹;날개바퀴;스위치;"
    "물양장;경사로;방파제;급유대;창고;제빙소;공방;앞마당;관제실;빨래터;대합실;제빙기;냉동기;건조기;절단기;세척기;압연기;"
    "주기관;발전기;구조정;기관;윈치;크레인;급유기;펌프;세탁기;조합원;조합장;총무;사서;식당;도서관;도선;사다리"
).split(";")


def _final(syllable: str) -> int:
    """Which final consonant: 0 none, 8 ㄹ (the order of Unicode's syllables)."""
    return (ord(syllable) - 0xAC00) % 28


def _wrong(pattern: str, is_wrong: object) -> list[str]:
    assert callable(is_wrong)
    return [
        f"{name}: {found[0]}" for name, text in TEXTS.items() for found in re.finditer(pattern, text) if is_wrong(found)
    ]


def test_objects_are_marked_as_their_last_sound_asks() -> None:
    after = r"(?=[\s,.?!”’)*|]|$)"
    assert _wrong(rf"[가-힣]*([가-힣])를{after}", lambda found: _final(found[1]) != 0) == []
    open_end = _wrong(
        rf"[가-힣]*([가-힣])을{after}", lambda found: _final(found[1]) == 0 and found[0][-2:] not in NO_OBJECT
    )
    assert open_end == []


def test_together_and_ways_are_marked_as_their_last_sound_asks() -> None:
    after = r"(?=[\s,.?!]|$)"
    assert _wrong(rf"[가-힣]*([가-힣])와{after}", lambda found: _final(found[1]) != 0) == []
    assert (
        _wrong(rf"[가-힣]*([가-힣])과{after}", lambda found: _final(found[1]) == 0 and found[0][-2:] not in NO_TOGETHER)
        == []
    )
    assert _wrong(rf"[가-힣]*([가-힣])으로{after}", lambda found: _final(found[1]) in (0, 8)) == []
    closed = _wrong(
        rf"[가-힣]*([가-힣])로{after}",
        lambda found: _final(found[1]) not in (0, 8) and found[0][-2:] not in NO_WAY and found[1] != "으",
    )
    assert closed == []


def test_names_and_things_carry_the_right_topic_and_subject() -> None:
    seen = 0
    for noun in NOUNS:
        closed = _final(noun[-1]) != 0
        right = {"은", "이", "을", "과"} if closed else {"는", "가", "를", "와"}
        wrong = {"는", "가", "를", "와"} if closed else {"은", "이", "을", "과"}
        for name, text in TEXTS.items():
            found = re.findall(rf"(?<![가-힣]){re.escape(noun)}([은는이가을를과와])(?=[\s,.])", text)
            assert not set(found) & wrong, f"{name}: {noun} {found}"
            seen += sum(each in right for each in found)
    assert seen > 1000


def test_numbers_carry_the_particle_that_they_are_read_with() -> None:
    """가-5 is read 오, 가-7 칠: 가-5를, 가-7을."""
    open_digits, liquid = set("2459"), set("178")
    for name, text in TEXTS.items():
        for digit, particle in re.findall(r"-[0-9]*([0-9])(은|는|이|가|을|를|과|와|으로|로)(?=[\s,.])", text):
            if particle in ("으로", "로"):
                assert (particle == "로") == (digit in open_digits | liquid), f"{name}: {digit}{particle}"
            else:
                assert (particle in ("는", "가", "를", "와")) == (digit in open_digits), f"{name}: {digit}{particle}"


def test_it_is_written_in_a_written_style() -> None:
    """Sentences of prose end as wikis do: 합니다, 한다, or a noun form (함, 둠) in logs; talk (해요) is quoted."""
    for name, text in TEXTS.items():
        if name != "questions":
            unquoted = re.sub(r"“[^”]*”", "", text)
            assert re.findall(r"[가-힣]*(?<!세)(?<!필)(?<!아니)요\.", unquoted) == [], name


@pytest.mark.parametrize(
    ("wrong", "rule"),
    [
        ("펌프을 켭니다.", test_objects_are_marked_as_their_last_sound_asks),
        ("등를 켭니다.", test_objects_are_marked_as_their_last_sound_asks),
        ("벨트과 함께", test_together_and_ways_are_marked_as_their_last_sound_asks),
        ("등와 함께", test_together_and_ways_are_marked_as_their_last_sound_asks),
        ("물으로 갑니다.", test_together_and_ways_are_marked_as_their_last_sound_asks),
        ("물양장로 갑니다.", test_together_and_ways_are_marked_as_their_last_sound_asks),
        ("미르 선장가 왔습니다.", test_names_and_things_carry_the_right_topic_and_subject),
        ("크레인는 섰습니다.", test_names_and_things_carry_the_right_topic_and_subject),
        ("자리는 가-7를 씁니다.", test_numbers_carry_the_particle_that_they_are_read_with),
        ("오늘은 쉬어요. 안 해요.", test_it_is_written_in_a_written_style),
    ],
)
def test_each_rule_finds_what_is_wrong(wrong: str, rule: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TEXTS, "wrong", wrong)
    with pytest.raises(AssertionError):
        rule()
