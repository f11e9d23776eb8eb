"""A Mac's footprint through the real ctypes path, against a stand-in of libproc compiled here. Not run on a Mac."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.errors import ProbeLost, ProbeUnavailable
from kvscope.probe.apple import FootprintProbe


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler here")
    folder = tmp_path_factory.mktemp("libproc")
    source = Path(__file__).with_name("libproc_standin.c")
    subprocess.run([compiler, "-shared", "-fPIC", "-o", "libproc.so", str(source)], cwd=folder, check=True)
    return folder / "libproc.so"


def test_the_tree_is_summed_and_one_that_ended_is_left_out(library: Path) -> None:
    probe = FootprintProbe(lambda: (7,), library=library)
    assert probe.unavailable() is None
    assert probe.tree() == (7, 8, 9)
    assert probe.read() == {
        "footprint_bytes": 15_000_000,
        "resident_bytes": 45_000_000,
        "footprint_peak_bytes": 75_000_000,
    }


def test_one_that_has_gone(library: Path) -> None:
    with pytest.raises(ProbeLost, match="5"):
        FootprintProbe(lambda: (5,), library=library).read()


def test_another_users(library: Path) -> None:
    with pytest.raises(ProbeUnavailable, match="66 may not be read"):
        FootprintProbe(lambda: (66,), library=library).read()


def test_where_there_is_no_libproc(tmp_path: Path) -> None:
    assert "cannot be loaded" in str(FootprintProbe(lambda: (), library=tmp_path / "none").unavailable())
    if sys.platform != "darwin":
        assert FootprintProbe(lambda: ()).unavailable() == "This is not a Mac."
