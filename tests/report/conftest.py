"""What tests of reports share: one browser for all tests of a process, and pages of a whole lab."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from chromium import Chromium, require_chromium
from study_rows import whole_lab, write_record

from kvscope.analysis.study import Analysis, analyse
from kvscope.record.store import open_records
from kvscope.report.page import render_page


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    """Started by the first test that needs it."""
    require_chromium()
    with Chromium() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Of a record of all four designs of the lab, a failure among its attempts."""
    path = write_record(tmp_path_factory.mktemp("lab") / "r.db", whole_lab())
    with open_records(path) as records:
        return analyse(records)


@pytest.fixture(scope="session")
def lab_page(lab: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of the lab."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(render_page(lab), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def live_page(lab: Analysis, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same page with charts that a script draws."""
    path = tmp_path_factory.mktemp("page") / "live.html"
    path.write_text(render_page(lab, interactive=True), encoding="utf-8")
    return path
