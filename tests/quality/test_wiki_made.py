"""The pages and questions of the bundled wiki are what tools/make_wiki.py makes of its texts, byte for byte."""

import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "kvscope" / "quality" / "wiki"


@pytest.fixture(name="tool", scope="module")
def fixture_tool() -> Iterator[ModuleType]:
    before = list(sys.path)
    spec = spec_from_file_location("make_wiki", ROOT / "tools" / "make_wiki.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.path[:] = before


def test_the_wiki_is_made_again_byte_for_byte(tool: ModuleType) -> None:
    made = {name: text.encode("utf-8") for name, text in tool.made_files().items()}
    there = {
        path.relative_to(PACKAGE).as_posix(): path.read_bytes()
        for path in PACKAGE.rglob("*")
        if path.is_file() and path.suffix in (".md", ".json", ".jsonl") and path.name != "LICENSE.md"
    }
    assert sorted(made) == sorted(there), "run: python tools/make_wiki.py"
    assert [name for name in made if made[name] != there[name]] == [], "run: python tools/make_wiki.py"


@pytest.mark.usefixtures("tool")
def test_draws_are_the_same_on_every_machine() -> None:
    from wiki.grammar import Draws, Pool, filled

    # As sha256sum says: the first eight bytes of "a/1".
    assert Draws("a").below(1000) == int.from_bytes(bytes.fromhex("773232abe9343f0e"), "big") % 1000
    text = "{~boat:b} and {b}, not {~boat}: {3-5:n}, {n}, {0.5-0.5}, {x|x}, {who}"
    words = {"boat": ["Wend", "Dunlin"]}
    said = filled(text, {"who": "Ilsa"}, words, Draws("page"))
    first, second = ("Wend", "Dunlin") if said.startswith("Wend") else ("Dunlin", "Wend")
    number = said.split(": ")[1][0]
    assert said == f"{first} and {first}, not {second}: {number}, {number}, 0.5, x, Ilsa"
    pool = Pool(["a", "b", "c"], Draws("pool"))
    taken = [block for _ in range(4) for block in pool.take(3)]
    assert all(sorted(taken[at : at + 3]) == ["a", "b", "c"] for at in (0, 3, 6, 9))


@pytest.mark.usefixtures("tool")
@pytest.mark.parametrize(
    ("marked", "right"),
    [
        ("제빙기(은/는) 새벽종호(을/를) 등(과/와) 갈치(과/와)", "제빙기는 새벽종호를 등과 갈치와"),
        ("물양장(으로/로) 제빙소(으로/로) 빨래터 물(으로/로)", "물양장으로 제빙소로 빨래터 물로"),
        ("가-7(을/를) 가-5(을/를) 다-3(이/가) 나-1(으로/로)", "가-7을 가-5를 다-3이 나-1로"),  # 칠을, 오를, 삼이, 일로
        ("벨트(이었/였)습니다 여과망(이었/였)습니다", "벨트였습니다 여과망이었습니다"),
        ("고래(자동차/배)", "고래(자동차/배)"),
    ],
)
def test_particles_follow_the_sound_before_them(marked: str, right: str) -> None:
    from wiki.korean import with_particles

    assert with_particles(marked) == right
