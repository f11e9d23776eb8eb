"""The Korean catalogues: complete, certain, with the values of the English, in the terms and the style of the glossary
that they were written by."""

import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from string import Formatter
from types import ModuleType

import pytest
from babel.messages.pofile import read_po

ROOT = Path(__file__).parent.parent
LOCALE = ROOT / "src" / "kvscope" / "locale"
CATALOGUES = sorted((LOCALE / "ko").glob("*.po"))
HANGUL = re.compile(r"[가-힣]")
# What has no Korean: units, symbols, formats, names of products and of what the field writes in Latin letters.
LATIN = frozenset(
    "B BOS CPU CSV GPU GPUs GiB HTTP ID ITL JSON KV KL KiB MLA MiB NaN Python RAM SGLang TPOT TTFT URL base64 "
    "client_limited config dtype kvscope llama.cpp ms nat rope vLLM vocab".split()
)
FORBIDDEN = {
    "캐쉬": "캐시",
    "KV캐시": "KV 캐시",
    "사전 채움": "프리필",
    "미리 채우기": "프리필",
    "유추": "추론",
    "메세지": "메시지",
    "데이타": "데이터",
    "하십시오": "하세요",
    "되어지": "되",
    "당신": "",
    "을(를)": "a noun after the value",
    "이(가)": "a noun after the value",
    "은(는)": "a noun after the value",
    "와(과)": "a noun after the value",
    "(으)로": "a noun after the value",
    "메가바이트": "MiB",
    "그룹화된": "그룹",
    "매개변수": "파라미터",
    "마이크로 배치": "마이크로배치",
    "토크나이져": "토크나이저",
    "컨텍스트 윈도": "컨텍스트 창",
    "베이스라인": "기준선",
    "히트율": "적중률",
    "플래시 어텐션": "FlashAttention",
    "연구": "실험",
    "설계": "실험",
    " 사본": "복사본",
}
# An English term, and what the Korean of its sentence holds.
TERMS = {
    r"\bKV cache": "KV 캐시",
    r"(?<!over the )\bcontext limits?\b": "컨텍스트 한도",
    r"\bcompute buffers?\b": "연산 버퍼|연산·출력 버퍼|연산 버퍼와",
    r"\bhost prompt cache\b": "호스트 프롬프트 캐시",
    r"\bcontext checkpoints?\b": "컨텍스트 체크포인트",
    r"\bmicrobatch\b": "마이크로배치",
    r"\bchat template\b": "채팅 템플릿",
    r"\btokenizer\b": "토크나이저",
    r"\bsliding windows?\b": "슬라이딩 윈도",
    r"\bwarm-ups?\b": "워밍업",
    r"\bmedian\b": "중앙값",
    r"\bleak\b": "누수",
    r"\bunexplained\b": "설명되지 않은|설명되지 않았",
    r"\bprefill\b": "프리필",
    r"\bslots?\b": "슬롯",
    r"\bvocabulary\b": "어휘",
    r"\brecurrent state\b": "순환 상태",
    r"\bquanti[sz]ation\b": "양자화",
    r"\bsystem prompt\b": "시스템 프롬프트",
}
# The same, in every catalogue: the terms that a study is told in. A value in braces is the term's own name.
EVERYWHERE = {
    r"\b(?:this|one|the|of another|other) designs?\b(?! grid)": "실험",
    r"\bstudy file\b": "실험 파일",
    r"\bsittings?\b": "측정 회차|kvscope compare",
    r"\b(?:further|several|old|earlier) trials?\b|\btrials \(": "시행",
    r"\bbaseline\b(?!,? (?:first|cell))": "기준|메모리\\(기저\\)",
    r"\bmicrobatch\b": "마이크로배치|kvscope measure",
    r"\bflash attention\b": "FlashAttention|어텐션",
    r"\bprefix cach": "접두사 캐시",
    r"\bpassages?\b": "구절|글|passage",
    r"\bpool of\b": "풀",
}
SPOKEN = re.compile(r"(?<!세)(?<!까)요[.?!](?:\s|$)")  # 해요체
PLAIN = re.compile(r"(?<!니)(?:한|했|된|됐|있|없|않|는|였|었|았|이)다[.](?:\s|$)")  # 해라체
ENGLISH_SENTENCE = re.compile(r"(?:\b[a-z]{2,} ){3,}[a-z]{2,}\b")
# Commands, options and quoted or recorded text stay as they are.
VERBATIM = re.compile(
    r"`[^`]*`|'[^']*'|\"[^\"]*\"|\b(?:kvscope|pip install|apt install|python|uv|sudo|ollama|vllm|curl)\b[^가-힣.;]*"
)


# What engines themselves say is quoted as they say it.
QUOTING = re.compile(r"(?:llama\.cpp|vLLM|transformers|SGLang|Ollama) refuses this: |: system, user, assistant")


def values(text: str) -> set[tuple[str, str]]:
    """The placeholders of a template, with how each is written."""
    return {(name, form or "") for _, name, form, _ in Formatter().parse(text) if name is not None}


def catalogue(path: Path) -> dict[tuple[str, str], str]:
    with path.open("rb") as file:
        found = read_po(file)
    return {(m.context or "", str(m.id)): str(m.string) for m in found if m.id}


ALL = {(path.stem, *key): text for path in CATALOGUES for key, text in catalogue(path).items() if text}


def failing(check: "re.Pattern[str] | str") -> list[str]:
    return [f"{place}: {text}" for place, text in ALL.items() if re.search(check, text)]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    sys.path.insert(0, str(ROOT / "tools"))
    found = spec_from_file_location("messages", ROOT / "tools" / "messages.py")
    assert found is not None
    assert found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_every_text_of_the_code_is_translated(tool: ModuleType) -> None:
    assert len(ALL) > 2500
    assert tool.missing() == [], "python tools/messages.py missing"


def test_catalogues_are_as_the_tool_writes_them(tool: ModuleType) -> None:
    """Sorted, without texts that the code no longer has, without dates: a change of one text is one line of a diff."""
    extracted = tool.extracted()
    assert {path.stem for path in CATALOGUES} == {name for name, keys in extracted.items() if keys}
    for path in CATALOGUES:
        known = tool.translated(path)
        assert path.read_bytes() == tool.written("ko", {key: known.get(key, "") for key in extracted[path.stem]}), (
            f"python tools/messages.py update {path.stem}"
        )


@pytest.mark.parametrize("path", CATALOGUES, ids=lambda path: path.stem)
def test_nothing_is_doubtful(path: Path) -> None:
    with path.open("rb") as file:
        assert [str(m.id) for m in read_po(file) if m.fuzzy] == []
    assert "fuzzy" not in path.read_text(encoding="utf-8").replace('"', "")


def test_the_compiled_catalogue_is_that_of_the_sources(tool: ModuleType) -> None:
    import compile_messages

    compiled = (LOCALE / "ko" / compile_messages.COMPILED).read_bytes()
    assert compiled == compile_messages.compiled(LOCALE / "ko"), "python tools/messages.py compile"


def test_both_sides_hold_the_same_values() -> None:
    assert [place for place, text in ALL.items() if values(place[2]) != values(text)] == []


def test_both_sides_have_as_many_lines() -> None:
    assert [place for place, text in ALL.items() if place[2].count("\n") != text.count("\n")] == []


def test_korean_is_written_where_there_are_words() -> None:
    """A translation without Hangul is one of units, symbols and names alone."""

    def words(text: str) -> set[str]:
        return set(re.findall(r"[A-Za-z][\w.]+", re.sub(r"\{[^}]*\}", "", text)))

    silent = {place: text for place, text in ALL.items() if not HANGUL.search(text) and words(text) - LATIN}
    # A command or a flag to type is the same in every language.
    silent = {p: t for p, t in silent.items() if not VERBATIM.search(t) and not re.search(r"--[a-z]|[A-Z]{2}|[_=/]", t)}
    assert silent == {place: text for place, text in silent.items() if place[1] in ("factor.flash_attn", "tip.x")}


def test_no_english_sentence_is_left() -> None:
    asked = {place: text for place, text in ALL.items() if not QUOTING.search(place[2])}
    assert {place: text for place, text in asked.items() if ENGLISH_SENTENCE.search(VERBATIM.sub("", text))} == {}


@pytest.mark.parametrize("word", FORBIDDEN)
def test_words_that_the_glossary_refuses(word: str) -> None:
    assert failing(re.escape(word)) == []


def test_windows_of_attention_are_spelled_as_the_glossary_does() -> None:
    """윈도, not 윈도우: the latter is the operating system's name, which is left in Latin letters."""
    assert failing("윈도우") == []


def test_sentences_are_polite_and_formal() -> None:
    assert failing(SPOKEN) == []
    assert failing(PLAIN) == []
    # The mark of a doubt stands before its words; nothing is called out.
    assert failing("[^ (]!") == []


@pytest.mark.parametrize("english", EVERYWHERE)
def test_one_english_term_has_one_korean_word_in_every_catalogue(english: str) -> None:
    asked = {place: text for place, text in ALL.items() if re.search(english, re.sub(r"\{[^}]*\}", "", place[2]))}
    assert asked
    assert {place[1:]: text for place, text in asked.items() if not re.search(EVERYWHERE[english], text)} == {}


@pytest.mark.parametrize("english", TERMS)
def test_one_english_term_has_one_korean_word(english: str) -> None:
    asked = {p: t for p, t in ALL.items() if p[0] in ("report", "terminal") and re.search(english, p[2])}
    other = {place[1]: text for place, text in asked.items() if not re.search(TERMS[english], text)}
    assert other == {}


def test_numbers_are_written_as_korean_writes_them() -> None:
    assert failing(r"\d %") == []  # the percent sign is attached
    assert failing(r"\d (?:토큰|회|개|초|바이트)(?![가-힣])") == []  # and so are counters
    assert failing(r"\}(?: )(?:토큰|회|개|초|바이트|쌍|턴)(?![가-힣])") == []
    assert failing(r"\d[만억]") == []
    assert failing(r"[\d}] (?:MiB|GiB|KiB)") == []  # a Latin unit stays on the line of its number
