"""A model folder: config.json, safetensors with or without an index, GGUF files, adapters, merged into one ModelSpec.

Which file says what:
- layers come from config.json, weights from the safetensors headers, and the two are held against each other;
- a GGUF beside safetensors is a conversion of them: it is only compared. A GGUF beside a config.json alone is the
  model, and the config is compared;
- adapters (LoRA) and projectors (mmproj) are named in a warning, and not counted.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kvscope.errors import KvscopeError, MalformedFile, ModelError, ModelNotFound
from kvscope.model.cross_check import disagreements, with_tensors
from kvscope.model.gguf import load_gguf
from kvscope.model.hf_config import load_config
from kvscope.model.safetensors import SafetensorsIndex, read_index, read_safetensors
from kvscope.model.spec import ModelSpec, TensorInfo

CONFIG = "config.json"
MAIN_INDEX = "model.safetensors.index.json"
MAIN_FILE = "model.safetensors"
SPLIT_GGUF = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_ADAPTER = re.compile(r"adapter_.*\.safetensors|adapter_model\..*")
_OTHER_WEIGHTS = ("*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack")
_LISTED = 5
_PASS_ONE = "Pass one of them by path."


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The tensors of a set of safetensors files. ``where`` names them in messages and sources."""

    tensors: tuple[TensorInfo, ...]
    where: str
    hashes: tuple[str, ...]
    warnings: tuple[str, ...] = ()


def load_folder(folder: Path, source: str) -> ModelSpec:
    """The model in a folder. Raises ModelNotFound, MalformedFile, MissingField, UnsupportedArchitecture."""
    config = folder / CONFIG
    ggufs, projectors = gguf_models(folder)
    weights = _weight_files(folder)
    if len(ggufs) > 1 and not (config.is_file() and weights):
        names = [path.name for path in ([config] if config.is_file() else []) + ggufs]
        raise ModelNotFound(f"The folder {folder} holds several models: {_listing(names)}.", hint=_PASS_ONE)
    if config.is_file() and (weights or not ggufs):
        model = load_with_weights(config, weights, source)
        model = _compared(model, ggufs)
    elif ggufs:
        model = load_gguf(ggufs[0], source=source)
        if config.is_file():
            model = _with_config_compared(model, config)
    else:
        raise _nothing(folder, weights)
    return _with_warnings(model, [*_left_out(folder, projectors), *_unread(folder, weights, ggufs)])


def load_with_weights(config: Path, weights: Sequence[Path], source: str) -> ModelSpec:
    """A config.json with the safetensors files ``weights`` (an index, or the files themselves; none: config alone)."""
    model = load_config(config, source=source)
    if not weights:
        return model
    checkpoint = read_checkpoint(weights)
    model = with_tensors(model, checkpoint.tensors, checkpoint.where, checkpoint.hashes)
    return _with_warnings(model, checkpoint.warnings)


def load_safetensors(path: Path, source: str) -> ModelSpec:
    """A .safetensors file (or its index), with the config.json beside it. Alone it does not say what its layers keep:
    ModelNotFound then."""
    config = path.parent / CONFIG
    weights = _whole_set(path)
    if config.is_file():
        return load_with_weights(config, weights, source)
    checkpoint = read_checkpoint(weights)
    total = sum(tensor.num_bytes for tensor in checkpoint.tensors)
    raise ModelNotFound(
        f"{path} holds weights only ({len(checkpoint.tensors)} tensors, {total} B); what its layers keep is not in it.",
        hint="Put the model's config.json beside it, or state the layers by hand with --layers.",
    )


def gguf_models(folder: Path) -> tuple[list[Path], list[Path]]:
    """(the GGUF models in a folder, each by its first file; projectors of multimodal models)."""
    models, projectors = [], []
    for path in sorted(folder.glob("*.gguf")):
        part = SPLIT_GGUF.fullmatch(path.name)
        if "mmproj" in path.name.lower():
            projectors.append(path)
        elif part is None or int(part[2]) == 1 or not _with_number(path, 1).exists():
            models.append(path)
    # The parts of a set without its first are one model too, whose reader says what is missing.
    incomplete: dict[str, Path] = {}
    for path in models:
        part = SPLIT_GGUF.fullmatch(path.name)
        incomplete.setdefault(path.name if part is None else f"{part[1]}-of-{part[3]}", path)
    return list(incomplete.values()), projectors


def _with_number(path: Path, number: int) -> Path:
    part = SPLIT_GGUF.fullmatch(path.name)
    assert part is not None
    return path.with_name(f"{part[1]}-{number:05d}-of-{part[3]}{path.suffix}")


def read_checkpoint(weights: Sequence[Path]) -> Checkpoint:
    """All tensors of an index (one path ending in .json) or of these files. Raises MalformedFile, ModelNotFound."""
    if weights[0].suffix == ".json":
        return _read_indexed(read_index(weights[0]))
    headers = [read_safetensors(path) for path in weights]
    tensors = tuple(tensor for header in headers for tensor in header.tensors)
    seen: set[str] = set()
    for header in headers:
        for tensor in header.tensors:
            if tensor.name in seen:
                raise MalformedFile(header.path, tensor.name, "the tensor is in two of the files")
            seen.add(tensor.name)
    names = [path.name for path in weights]
    return Checkpoint(tensors=tensors, where=_files(names), hashes=tuple(header.sha256 for header in headers))


def _read_indexed(index: SafetensorsIndex) -> Checkpoint:
    folder = Path(index.path).parent
    found: dict[str, TensorInfo] = {}
    hashes, unlisted = [index.sha256], 0
    for shard in index.shards:
        if not (folder / shard).exists():
            raise ModelNotFound(
                f"{index.path} names the file {shard}, which is not there.",
                hint="The download is incomplete: get the missing file, or the whole model again.",
            )
        header = read_safetensors(folder / shard)
        hashes.append(header.sha256)
        for tensor in header.tensors:
            if index.weight_map.get(tensor.name) == shard:
                found[tensor.name] = tensor
            else:
                unlisted += 1
    absent = [name for name in index.weight_map if name not in found]
    if absent:
        shard = index.weight_map[absent[0]]
        raise MalformedFile(index.path, f"weight_map.{absent[0][:80]}", f"the tensor is not in {shard}")
    return Checkpoint(
        tensors=tuple(found.values()),
        where=_files(list(index.shards)),
        hashes=tuple(hashes),
        warnings=tuple(_index_warnings(index, found, unlisted)),
    )


def _index_warnings(index: SafetensorsIndex, found: dict[str, TensorInfo], unlisted: int) -> list[str]:
    name = Path(index.path).name
    total = sum(tensor.num_bytes for tensor in found.values())
    warnings = []
    if index.total_size is not None and index.total_size != total:
        difference = total - index.total_size
        warnings.append(
            f"{name} says a total_size of {index.total_size} B, but its tensors take {total} B ({difference:+d} B)."
        )
    if unlisted:
        warnings.append(
            f"The files named by {name} hold {unlisted} tensors that it does not list; they are not counted."
        )
    return warnings


def _weight_files(folder: Path) -> list[Path]:
    """The safetensors that are the model: an index, or files. As transformers does, model.safetensors goes first."""
    if (folder / MAIN_FILE).is_file():
        return [folder / MAIN_FILE]
    indexes = (
        [folder / MAIN_INDEX] if (folder / MAIN_INDEX).is_file() else sorted(folder.glob("*.safetensors.index.json"))
    )
    if len(indexes) == 1:
        return indexes
    files = sorted(path for path in folder.glob("*.safetensors") if not _ADAPTER.fullmatch(path.name))
    if len(files) > 1:
        files = [path for path in files if not path.name.startswith("consolidated")] or files
    sets = {match[1] if (match := _SHARD.fullmatch(path.name)) else path.name for path in files}
    if len(sets) > 1 or len(indexes) > 1:
        names = [path.name for path in indexes + files]
        raise ModelNotFound(f"The folder {folder} holds several sets of weights: {_listing(names)}.", hint=_PASS_ONE)
    return _whole_set(files[0]) if files else []


def _whole_set(path: Path) -> list[Path]:
    """The files that ``path`` is one of: those of an index that names it, or its numbered set."""
    if path.suffix == ".json":
        return [path]
    for index in sorted(path.parent.glob("*.safetensors.index.json")):
        if path.name in read_index(index).shards:
            return [index]
    part = _SHARD.fullmatch(path.name)
    if part is None:
        return [path]
    count = int(part[3])
    if not 1 <= int(part[2]) <= count:
        problem = f"its name says file {int(part[2])} of {count}, which no set of files has"
        raise MalformedFile(path, "its name", problem, hint="Give the file the name it was published with.")
    names = [f"{part[1]}-{number:05d}-of-{part[3]}.safetensors" for number in range(1, count + 1)]
    there = {beside.name for beside in path.parent.iterdir()}  # asked once: a name may claim 99,999 files
    missing = [name for name in names if name not in there]
    if missing:
        raise ModelNotFound(
            f"{path} is one of {count} files, and {missing[0]} is not beside it"
            + (f" (nor are {len(missing) - 1} more)." if len(missing) > 1 else "."),
            hint="The download is incomplete: get the missing files.",
        )
    return [path.parent / name for name in names]


def _compared(model: ModelSpec, ggufs: Sequence[Path]) -> ModelSpec:
    """``model`` from config and safetensors, with what the GGUFs beside it say differently as warnings."""
    warnings = []
    for path in ggufs:
        try:
            other = load_gguf(path)
        except KvscopeError as error:
            warnings.append(f"{path.name} beside it was not compared: {error}")
            continue
        warnings.append(f"{path.name} beside it is not counted: the weights are those of the safetensors files.")
        warnings += disagreements(model, other, CONFIG, path.name)
    return _with_warnings(model, warnings)


def _with_config_compared(model: ModelSpec, config: Path) -> ModelSpec:
    """``model`` from a GGUF, with what the config beside it says differently as warnings."""
    assert model.file_path is not None
    try:
        other = load_config(config)
    except ModelError as error:
        return _with_warnings(model, [f"config.json beside the GGUF was not compared: {error}"])
    return _with_warnings(model, disagreements(model, other, Path(model.file_path).name, CONFIG))


def _left_out(folder: Path, projectors: Sequence[Path]) -> list[str]:
    warnings = [f"{path.name} (a projector for images or sound) is not counted." for path in projectors]
    adapters = sorted(path for path in folder.glob("adapter_*") if _ADAPTER.fullmatch(path.name))
    for path in adapters:
        warnings.append(f"{path.name} (an adapter, {path.stat().st_size} B) is not counted.")
    return warnings


def _unread(folder: Path, weights: Sequence[Path], ggufs: Sequence[Path]) -> list[str]:
    if weights or ggufs:
        return []
    others = sorted(path.name for pattern in _OTHER_WEIGHTS for path in folder.glob(pattern))
    if not others:
        return []
    return [
        f"The weights beside config.json ({_listing(others)}) are not read: their bytes are derived from the config."
    ]


def _nothing(folder: Path, weights: Sequence[Path]) -> ModelError:
    if (folder / "adapter_config.json").is_file():
        return ModelNotFound(
            f"The folder {folder} holds an adapter, not a model.", hint="Pass the base model that it adapts."
        )
    if weights:
        return ModelNotFound(
            f"The folder {folder} holds weights ({_files([path.name for path in weights])}) but no config.json.",
            hint="Add the model's config.json, which says what its layers are, or state the layers with --layers.",
        )
    return ModelNotFound(
        f"The folder {folder} holds neither a config.json nor a .gguf file.",
        hint="Pass a .gguf file, a config.json, a model folder, or pkg:NAME for a model inside a Python package.",
    )


def _with_warnings(model: ModelSpec, warnings: Sequence[str]) -> ModelSpec:
    return replace(model, warnings=(*model.warnings, *warnings)) if warnings else model


def _files(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{len(names)} files ({names[0]} to {names[-1]})"


def _listing(names: Sequence[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more
