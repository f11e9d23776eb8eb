"""Models in several GGUF files. What llama.cpp makes of the same files (one mapped buffer per file, tensors of all of
them) was seen on the engine: tests/golden/llamacpp/README.md."""

from pathlib import Path
from typing import Any

import pytest
from gguf_writer import I32, U16, GgufWriter, Tensor, Typed
from golden_gguf import writer

from kvscope.errors import MalformedFile, ModelNotFound, UnsupportedArchitecture
from kvscope.model.gguf import load_gguf
from kvscope.predict.memory import predict

NAME = "tiny-qwen3"


def parts_of(tensor: Tensor) -> int:
    """Everything but the layers in the second file, the layers in the third: the first has none."""
    return 2 if tensor.name.startswith("blk.") else 1


def write_parts(folder: Path, changes: dict[int, dict[str, Any]] | None = None, stem: str = "m") -> Path:
    """The golden model in three files, none of the tensors in the first; ``changes`` to a part's own keys."""
    whole = writer(NAME)
    for part in range(3):
        own: dict[str, Any] = {
            "split.no": Typed(U16, part),
            "split.count": Typed(U16, 3),
            "split.tensors.count": Typed(I32, len(whole.tensors)),
        }
        metadata = {**(whole.metadata if part == 0 else {}), **own, **(changes or {}).get(part, {})}
        tensors = [tensor for tensor in whole.tensors if parts_of(tensor) == part]
        GgufWriter(metadata, tensors).write(folder / f"{stem}-{part + 1:05d}-of-00003.gguf")
    return folder / f"{stem}-00001-of-00003.gguf"


def test_three_files_are_the_same_model_as_one(tmp_path: Path) -> None:
    whole = load_gguf(writer(NAME).write(tmp_path / "whole.gguf"))
    split = load_gguf(write_parts(tmp_path))
    assert split.layers == whole.layers
    assert split.num_parameters == whole.num_parameters
    assert {t.name: t.num_bytes for t in split.tensors} == {t.name: t.num_bytes for t in whole.tensors}
    assert {t.part for t in split.tensors} == {1, 2}
    assert split.fingerprint != whole.fingerprint
    assert split.file_path is not None
    assert split.file_path.endswith("m-00001-of-00003.gguf")


def test_each_file_is_mapped_by_itself(tmp_path: Path) -> None:
    model = load_gguf(write_parts(tmp_path))
    found = predict(model, engine="llama.cpp", settings={"n_ctx": 512})
    spans = [b.num_bytes for b in found.buffers if b.name == "weights"]
    sizes = [sum(-(-t.num_bytes // 32) * 32 for t in model.tensors if t.part == part) for part in (1, 2)]
    assert spans == sizes  # every tensor here is a multiple of 32 B long
    whole = predict(model, engine="llama.cpp", settings={"n_ctx": 512, "load_mode": "none"})
    assert [b.num_bytes for b in whole.buffers if b.name == "weights"] == [sum(t.num_bytes for t in model.tensors)]


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFound, match=r"Part 3 of 3.*m-00003-of-00003\.gguf"):
        load_gguf(first)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({1: {"split.no": Typed(U16, 2)}}, r"m-00002-of-00003\.gguf: it should be part 2 of 3, but its split\.no is 2"),
        ({2: {"split.count": Typed(U16, 4)}}, r"m-00003-of-00003\.gguf: .*split\.count is 4, not 3"),
        ({2: {"split.no": "2"}}, r"split\.no is '2'"),
        ({0: {"split.tensors.count": Typed(I32, 99)}}, r"claims 99 tensors, all 3 parts have \d+"),
        ({0: {"split.count": Typed(I32, -3)}}, r"split\.count"),
        ({0: {"split.count": 3.0}}, r"split\.count"),
    ],
)
def test_a_part_of_another_model_is_refused(tmp_path: Path, changes: dict[int, dict[str, Any]], says: str) -> None:
    with pytest.raises(MalformedFile, match=says):
        load_gguf(write_parts(tmp_path, changes))


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first = write_parts(tmp_path)
    second = (tmp_path / "m-00002-of-00003.gguf").read_bytes()
    keys = {"split.no": Typed(U16, 2), "split.count": Typed(U16, 3)}
    twice = [tensor for tensor in writer(NAME).tensors if parts_of(tensor) == 1]
    GgufWriter(keys, twice).write(tmp_path / "m-00003-of-00003.gguf")
    assert second != (tmp_path / "m-00003-of-00003.gguf").read_bytes()
    with pytest.raises(MalformedFile, match=r"the tensor is in .*m-00002-of-00003\.gguf too"):
        load_gguf(first)


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    write_parts(tmp_path)
    with pytest.raises(UnsupportedArchitecture, match="part 2 of 3") as caught:
        load_gguf(tmp_path / "m-00002-of-00003.gguf")
    assert caught.value.hint is not None
    assert "m-00001-of-00003.gguf" in caught.value.hint


def test_a_renamed_first_part_says_that_the_others_cannot_be_found(tmp_path: Path) -> None:
    renamed = write_parts(tmp_path).rename(tmp_path / "model.gguf")
    with pytest.raises(MalformedFile, match=r"does not end in …-00001-of-00003\.gguf"):
        load_gguf(renamed)
