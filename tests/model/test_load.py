"""load_model: every kind of reference, and clear words for what it cannot read."""

import os
import shutil
from pathlib import Path

import pytest
from golden_gguf import GOLDEN

from kvscope.errors import MalformedFile, ModelNotFound
from kvscope.model.load import load_model
from kvscope.model.load_stated import load_model_with_layers

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


def test_a_mapping() -> None:
    model = load_model({"model_type": "llama", "num_hidden_layers": 1})
    assert (model.source, model.file_path, len(model.layers)) == ("a mapping", None, 1)


def test_what_looks_like_a_hub_id_is_a_path_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSCOPE_OFFLINE", "1")
    monkeypatch.setenv("KVSCOPE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelNotFound, match="KVSCOPE_OFFLINE"):
        load_model("owner/name")
    with pytest.raises(ModelNotFound, match="no file or folder"):
        load_model(Path("owner/name"))  # a path is never a hub id
    folder = tmp_path / "owner" / "name"
    folder.mkdir(parents=True)
    shutil.copy(CONFIG, folder / "config.json")
    assert load_model("owner/name").name == "name"


@pytest.mark.parametrize("source", ["absent.gguf", "folder/absent.gguf", "./absent", ""])
def test_nothing_there(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelNotFound):
        load_model(source)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("a" * 300, "File name too long"),
        ("a" * 300 + "/b.gguf", "File name too long"),
        ("~nobody-of-this-name/m.gguf", "no user"),
        ("caf\udce9.gguf", "not UTF-8"),  # the bytes of Latin-1, as the system hands them over
        ("no\0name.gguf", "no file"),
    ],
)
def test_names_that_no_file_has(source: str, words: str) -> None:
    with pytest.raises(ModelNotFound, match=words) as caught:
        load_model(source)
    assert len(str(caught.value)) < 400
    str(caught.value).encode()


def test_a_file_whose_name_is_not_text_is_refused_wherever_the_name_comes_from(tmp_path: Path) -> None:
    """It could be read, but neither printed nor recorded."""
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(TINY, folder / "caf\udce9.gguf")
    for source in (folder, folder / "caf\udce9.gguf", str(folder / "caf\udce9.gguf")):
        with pytest.raises(ModelNotFound, match="not UTF-8"):
            load_model(source)
    link = tmp_path / "model.gguf"
    link.symlink_to(folder / "caf\udce9.gguf")
    assert load_model(link).name == "tiny-llama"


def test_a_config_in_a_folder_whose_name_is_not_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    shutil.copy(CONFIG, folder / "config.json")
    monkeypatch.chdir(folder)
    assert load_model("config.json").name == "caf?"


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "weights.bin"
    path.write_bytes(b"no model")
    with pytest.raises(MalformedFile, match="not a GGUF file"):
        load_model(path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"")
    with pytest.raises(MalformedFile, match="8-byte length"):
        load_model(weights)


@pytest.mark.parametrize("name", ["", " ", "\n"])
def test_an_empty_name_is_no_folder(name: str) -> None:
    with pytest.raises(ModelNotFound, match="empty"):
        load_model(name)


def test_a_config_that_is_no_regular_file_is_not_opened(tmp_path: Path) -> None:
    """A pipe would wait for its writer; a device would never end."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "zero.json").symlink_to("/dev/zero")
    for name in ("pipe.json", "zero.json"):
        with pytest.raises(ModelNotFound, match="not a regular file"):
            load_model(str(tmp_path / name))
        with pytest.raises(ModelNotFound, match="not a regular file"):
            load_model_with_layers(str(tmp_path / name), "2 x full kv_heads=1 head_dim=8")


def test_a_key_that_is_there_twice_is_said(tmp_path: Path) -> None:
    """As json in Python, transformers takes the last; another program may take the first."""
    text = CONFIG.read_text().rstrip().removesuffix("}")
    (tmp_path / "config.json").write_text(f'{text}, "num_hidden_layers": 3, "hidden_size": 4096}}')
    model = load_model(str(tmp_path / "config.json"))
    assert len(model.layers) == 3
    assert [warning for warning in model.warnings if "twice" in warning] == [
        "config.json says num_hidden_layers twice, differently; the last one counts, as in transformers."
    ]
