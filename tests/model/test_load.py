"""load_model: every kind of reference, and clear words for what it cannot read."""

import shutil
from pathlib import Path

import pytest
from golden_gguf import GOLDEN

from kvscope.errors import MalformedFile, ModelNotFound
from kvscope.model.load import load_model

TINY = GOLDEN / "tiny-wq-llama-Q4_0.gguf"
CONFIG = GOLDEN.parent / "models" / "llama-3.1-8b" / "config.json"


def test_a_path_as_text_or_path() -> None:
    assert load_model(str(TINY)).name == load_model(TINY).name == "tiny-llama"
    assert load_model(TINY).file_path == str(TINY)
    assert load_model(str(CONFIG)).source_kind == "config"


def test_a_folder_with_one_model(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="neither a config"):
        load_model(tmp_path)
    shutil.copy(TINY, tmp_path / "a.gguf")
    assert load_model(tmp_path).source_kind == "gguf"
    shutil.copy(TINY, tmp_path / "b.gguf")
    with pytest.raises(ModelNotFound, match=r"a\.gguf, b\.gguf"):
        load_model(tmp_path)


def test_a_folder_with_a_config(tmp_path: Path) -> None:
    shutil.copy(CONFIG, tmp_path / "config.json")
    model = load_model(tmp_path)
    assert model.name == tmp_path.name
    assert model.tensors == ()
    shutil.copy(TINY, tmp_path / "a.gguf")
    with pytest.raises(ModelNotFound, match="several models"):
        load_model(tmp_path)


def test_a_mapping() -> None:
    model = load_model({"model_type": "llama", "num_hidden_layers": 1})
    assert (model.source, model.file_path, len(model.layers)) == ("a mapping", None, 1)


def test_a_hub_id_says_that_downloads_are_not_supported() -> None:
    with pytest.raises(ModelNotFound, match="downloads are not supported") as caught:
        load_model("HuggingFaceTB/SmolLM2-135M-Instruct")
    assert "pkg:NAME" in str(caught.value.hint)


@pytest.mark.parametrize("source", ["absent.gguf", "folder/absent.gguf", "./absent", ""])
def test_nothing_there(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound):
        load_model(source)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"no model")
    with pytest.raises(MalformedFile, match="not a GGUF file"):
        load_model(path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(ModelNotFound, match=r"weights only"):
        load_model(weights)
