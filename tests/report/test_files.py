"""Writing a file: whole or not at all, and only ever the file that was named."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner
from study_rows import whole_lab, write_record

from kvscope.cli.main import cli
from kvscope.errors import OutputExists, RecordUnwritable
from kvscope.report.files import write_file


def test_a_link_stays_and_its_target_is_written(tmp_path: Path) -> None:
    target, link = tmp_path / "real.html", tmp_path / "link.html"
    target.write_text("old")
    link.symlink_to(target)
    write_file(link, "new", force=True)
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_link_to_nothing_yet_and_a_ring_of_links(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "later")
    write_file(tmp_path / "link", "new", force=False)
    assert (tmp_path / "later").read_text() == "new"
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with pytest.raises(RecordUnwritable):
        write_file(tmp_path / "a", "new", force=True)


def test_a_pipe_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    write_file(pipe, "page", force=True)
    reader.join(10)
    assert read == ["page"]
    assert pipe.is_fifo()


def test_a_folder_is_named_as_one_and_left_alone(tmp_path: Path) -> None:
    with pytest.raises(RecordUnwritable, match="is a folder"):
        write_file(tmp_path, "page", force=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["report", "export"])
def test_a_record_is_never_overwritten(tmp_path: Path, command: str) -> None:
    record = write_record(tmp_path / "r.db", whole_lab())
    before = Path(record).read_bytes()
    done = CliRunner().invoke(cli, [command, "--records", str(record), "--out", str(record), "--force"])
    assert isinstance(done.exception, OutputExists)
    assert "measurements" in done.exception.message
    assert Path(record).read_bytes() == before


def test_a_full_disk_is_said_plainly() -> None:
    with pytest.raises(RecordUnwritable, match="No space left") as caught:
        write_file("/dev/full", "page" * 10_000, force=True)
    assert "space" in (caught.value.hint or "")


def test_what_was_there_keeps_its_permissions(tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")
    out.chmod(0o600)
    write_file(out, "new", force=True)
    assert out.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_completed_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    # A process may be limited in the size of what it writes: the same failure in the middle as on a full disk.
    out = tmp_path / "page.html"
    out.write_text("old")
    script = (
        "import resource, signal, sys\n"
        "from kvscope.errors import RecordUnwritable\n"
        "from kvscope.report.files import write_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n    write_file(sys.argv[1], 'x' * 100_000, force=True)\n"
        "except RecordUnwritable as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", script, str(out)], capture_output=True, text=True, check=True, timeout=60
    )
    assert "File too large" in done.stdout
    assert out.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["page.html"]


def test_a_name_that_is_no_text_is_written_escaped(tmp_path: Path) -> None:
    write_file(tmp_path / "page.html", "model-\udcff.gguf", force=False)
    assert (tmp_path / "page.html").read_text() == "model-\\udcff.gguf"


def test_export_writes_by_the_same_rules(tmp_path: Path) -> None:
    record, out = write_record(tmp_path / "r.db", whole_lab()), tmp_path / "rows.csv"
    arguments = ["export", "--records", str(record), "--format", "csv", "--out", str(out)]
    assert CliRunner().invoke(cli, arguments, standalone_mode=False).exception is None
    assert len(out.read_text().splitlines()) == 26
    again = CliRunner().invoke(cli, arguments, standalone_mode=False)
    assert isinstance(again.exception, OutputExists)
