"""Charts as files: both forms under stable names, and Korean only where it can be drawn."""

import re
import shutil
import struct
import subprocess
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from study_rows import whole_lab, write_record

from kvscope.analysis.study import Analysis, analyse
from kvscope.cli.main import cli
from kvscope.errors import OutputExists
from kvscope.language import KOREAN, speaking
from kvscope.record.store import open_records
from kvscope.report import chart_files as module
from kvscope.report.chart_files import can_draw_hangul, chart_files

HANGUL = re.compile("[가-힣]")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_record(tmp_path_factory.mktemp("c") / "r.db", whole_lab())


@pytest.fixture(scope="module")
def analysis(record: Path) -> Analysis:
    with open_records(record) as records:
        return analyse(records)


def words(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>(.*?)</text>", svg)


def test_each_chart_as_svg_and_as_png_of_twice_its_size(analysis: Analysis) -> None:
    made = chart_files(analysis)
    stems = {name.rpartition(".")[0] for name in made.files}
    assert {"memory-by-context", "first-token", "later-tokens", "completion", "memory-after-conversations"} <= stems
    assert set(made.files) == {f"{stem}.{form}" for stem in stems for form in ("svg", "png")}
    assert made.doubts == ()
    for stem in stems:
        root = ElementTree.fromstring(made.files[f"{stem}.svg"])
        picture = made.files[f"{stem}.png"]
        assert picture.startswith(b"\x89PNG\r\n\x1a\n")
        # A PNG's width and height stand at 16 and 20, the highest byte first (RFC 2083, 11.2.1).
        assert struct.unpack(">II", picture[16:24]) == tuple(2 * int(root.attrib[side]) for side in ("width", "height"))


def test_a_chart_alone_has_its_finding_above_it(analysis: Analysis) -> None:
    svg = chart_files(analysis).files["completion.svg"].decode()
    title = ElementTree.fromstring(svg).find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text is not None
    lines = re.findall(r"<tspan[^>]*>(.*?)</tspan>", words(svg)[-1])
    assert " ".join(lines) == title.text.replace("\u00a0", " ")


@pytest.mark.parametrize("has_font", [True, False])
def test_a_png_has_english_labels_where_no_font_has_hangul(
    analysis: Analysis, monkeypatch: pytest.MonkeyPatch, has_font: bool
) -> None:
    drawn: list[str] = []
    monkeypatch.setattr(module, "can_draw_hangul", lambda: has_font)
    monkeypatch.setattr(module, "to_png", lambda svg: drawn.append(svg) or b"")
    with speaking(KOREAN):
        made = chart_files(analysis)
    assert any(HANGUL.search(word) for word in words(made.files["completion.svg"].decode()))
    has_korean = any(HANGUL.search(word) for svg in drawn for word in words(svg))
    assert has_korean == has_font
    assert len(made.doubts) == (0 if has_font else 1)
    assert has_font or "fonts-nanum" in made.doubts[0]


def test_the_drawing_is_asked_whether_it_has_hangul() -> None:
    """Held against what fontconfig finds, where it is installed."""
    if shutil.which("fc-list") is None:
        pytest.skip("no fc-list on this machine")
    listed = subprocess.run(["fc-list", ":lang=ko"], capture_output=True, text=True, check=True).stdout.strip()
    assert can_draw_hangul() == bool(listed)


def run(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(cli, ["report", *arguments], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.stdout, result.stderr


def test_written_by_the_command_and_not_over_what_is_there(record: Path, tmp_path: Path) -> None:
    folder = tmp_path / "charts"
    out, told = run("--records", str(record), "--charts", str(folder))
    assert out == ""
    names = sorted(path.name for path in folder.iterdir())
    assert f"Wrote {len(names) // 2} charts" in told
    with pytest.raises(OutputExists):
        run("--records", str(record), "--charts", str(folder))
    run("--records", str(record), "--charts", str(folder), "--force")
    assert sorted(path.name for path in folder.iterdir()) == names
