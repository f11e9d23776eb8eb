"""Ollama's store, written here by its documented layout: no Ollama was run."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from golden_gguf import GOLDEN

from kvscope.errors import MalformedFile, ModelNotFound, UnsupportedArchitecture
from kvscope.model.load import load_model
from kvscope.model.ollama_store import ollama_template

TINY = (GOLDEN / "tiny-wq-llama-Q4_0.gguf").read_bytes()
LIBRARY = "registry.ollama.ai/library"
MEDIA = "application/vnd.ollama.image."


class Store:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs").mkdir(parents=True)
        (folder / "manifests").mkdir()

    def blob(self, kind: str, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.folder / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"mediaType": MEDIA + kind, "digest": f"sha256:{digest}", "size": len(content)}

    def manifest(self, place: str, layers: Any) -> Path:
        path = self.folder / "manifests" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
            "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": "sha256:0", "size": 1},
            "layers": layers,
        }
        path.write_text(json.dumps(content))
        return path


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "store"))
    return Store(tmp_path / "store")


def test_a_model_with_its_parameters(store: Store) -> None:
    layers = [
        store.blob("model", TINY),
        store.blob("template", b"{{ .Prompt }}"),
        store.blob("license", b"Apache"),
        store.blob("params", json.dumps({"num_ctx": 8192, "stop": ["<end>"]}).encode()),
    ]
    store.manifest(f"{LIBRARY}/tiny/latest", layers)
    store.manifest(f"{LIBRARY}/tiny/1b", layers[:1])
    model = load_model("ollama:tiny")
    assert (model.name, model.source, model.source_kind) == ("tiny-llama", "ollama:tiny", "gguf")
    assert model.file_path is not None
    assert Path(model.file_path).read_bytes() == TINY
    assert model.sources["ollama.num_ctx"].startswith("8192")
    assert model.stored_settings == {"num_ctx": 8192, "stop": ["<end>"]}
    assert ollama_template("ollama:tiny") == "{{ .Prompt }}"
    assert load_model("ollama:tiny:1b").tensors == model.tensors
    assert (load_model("ollama:tiny:1b").stored_settings, ollama_template("ollama:tiny:1b")) == ({}, None)


@pytest.mark.parametrize(
    ("place", "reference"),
    [
        ("registry.ollama.ai/someone/tiny/latest", "ollama:someone/tiny"),
        ("hf.co/owner/Tiny-GGUF/Q4_K_M", "ollama:hf.co/owner/Tiny-GGUF:Q4_K_M"),
        ("localhost:5000/own/tiny/v1", "ollama:localhost:5000/own/tiny:v1"),
    ],
)
def test_models_from_elsewhere(store: Store, place: str, reference: str) -> None:
    store.manifest(place, [store.blob("model", TINY)])
    assert load_model(reference).name == "tiny-llama"


def test_projectors_and_adapters_are_named(store: Store) -> None:
    layers = [store.blob("model", TINY), store.blob("projector", b"12345"), store.blob("adapter", b"123")]
    store.manifest(f"{LIBRARY}/llava/latest", layers)
    warnings = load_model("ollama:llava").warnings
    assert "Beside the model, ollama:llava has a layer 'projector' of 5 B, which is not counted." in warnings
    assert "Beside the model, ollama:llava has a layer 'adapter' of 3 B, which is not counted." in warnings


def test_what_the_store_does_not_hold(store: Store) -> None:
    with pytest.raises(ModelNotFound, match="holds no models") as caught:
        load_model("ollama:tiny")
    assert "ollama pull tiny:latest" in str(caught.value.hint)
    for tag in ("latest", "1b"):
        store.manifest(f"{LIBRARY}/llama3.2/{tag}", [store.blob("model", TINY)])
    store.manifest("registry.ollama.ai/me/other/v1", [store.blob("model", TINY)])
    with pytest.raises(ModelNotFound, match=r"does not hold llama3\.2:3b") as caught:
        load_model("ollama:llama3.2:3b")
    hint = str(caught.value.hint)
    assert "Did you mean llama3.2:1b?" in hint
    assert "It holds: llama3.2:1b, llama3.2:latest, me/other:v1." in hint


def test_no_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "absent"))
    with pytest.raises(ModelNotFound, match="no Ollama store in"):
        load_model("ollama:tiny")
    monkeypatch.delenv("OLLAMA_MODELS")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(ModelNotFound, match=r"\.ollama/models"):
        load_model("ollama:tiny")


@pytest.mark.parametrize(
    "reference",
    ["ollama:", "ollama:../x", "ollama:a/../b", "ollama:a:b:c", "ollama:a/b/c/d", "ollama:x:../y", "ollama:~"],
)
def test_names_that_leave_the_store_or_are_none(store: Store, reference: str) -> None:
    store.manifest(f"{LIBRARY}/tiny/latest", [store.blob("model", TINY)])
    with pytest.raises(ModelNotFound, match=r"no name of an Ollama model|does not hold"):
        load_model(reference)


def test_a_blob_that_is_missing_or_cut(store: Store) -> None:
    layer = store.blob("model", TINY)
    store.manifest(f"{LIBRARY}/tiny/latest", [layer])
    blob = store.folder / "blobs" / layer["digest"].replace(":", "-")
    blob.write_bytes(TINY[:-1])
    with pytest.raises(MalformedFile, match=rf"has {len(TINY) - 1} bytes; its manifest says {len(TINY)}"):
        load_model("ollama:tiny")
    blob.unlink()
    with pytest.raises(ModelNotFound, match="model of tiny:latest is missing") as caught:
        load_model("ollama:tiny")
    assert "ollama pull" in str(caught.value.hint)


def test_a_model_stored_otherwise_is_refused_by_kind(store: Store) -> None:
    store.manifest(f"{LIBRARY}/mlx/latest", [store.blob("tensor", b"x"), store.blob("json", b"{}")])
    with pytest.raises(UnsupportedArchitecture, match="but json, tensor"):
        load_model("ollama:mlx")
    store.manifest(f"{LIBRARY}/empty/latest", [])
    with pytest.raises(UnsupportedArchitecture, match="but nothing"):
        load_model("ollama:empty")


GOOD = {"mediaType": MEDIA + "model", "digest": "sha256:" + "0" * 64, "size": 1}


@pytest.mark.parametrize(
    ("layers", "where"),
    [
        (None, "layers"),
        ({}, "layers"),
        ([7], "layers[0]"),
        ([{**GOOD, "mediaType": 7}], "layers[0].mediaType"),
        ([GOOD, {**GOOD, "digest": "sha256:../../etc/passwd"}], "layers[1].digest"),
        ([{**GOOD, "digest": None}], "layers[0].digest"),
        ([{**GOOD, "size": -1}], "layers[0].size"),
        ([{**GOOD, "size": "1"}], "layers[0].size"),
        ([{**GOOD, "size": True}], "layers[0].size"),
    ],
)
def test_manifests_that_cannot_be(store: Store, layers: Any, where: str) -> None:
    store.manifest(f"{LIBRARY}/tiny/latest", layers)
    with pytest.raises(MalformedFile) as caught:
        load_model("ollama:tiny")
    assert caught.value.where == where


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"[" * 99_999])
def test_manifests_that_are_no_json(store: Store, content: bytes) -> None:
    path = store.manifest(f"{LIBRARY}/tiny/latest", [])
    path.write_bytes(content)
    with pytest.raises(MalformedFile):
        load_model("ollama:tiny")
    path.write_bytes(b"{" + b" " * 5_000_000)
    with pytest.raises(MalformedFile, match="larger than"):
        load_model("ollama:tiny")


def test_parameters_that_are_no_object(store: Store) -> None:
    store.manifest(f"{LIBRARY}/tiny/latest", [store.blob("model", TINY), store.blob("params", b"[1]")])
    with pytest.raises(MalformedFile, match="object"):
        load_model("ollama:tiny")


def test_a_folder_of_that_name_is_no_model_of_the_store(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prefix decides; a path with a colon is written ./ollama:tiny."""
    monkeypatch.chdir(tmp_path)
    shutil.copy(GOLDEN / "tiny-wq-llama-Q4_0.gguf", "ollama:tiny")
    with pytest.raises(ModelNotFound, match="holds no models"):
        load_model("ollama:tiny")
    assert load_model("./ollama:tiny").name == "tiny-llama"
