"""Which devices a trial has for itself."""

import socket
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.registry import EngineChoice
from kvscope.experiment import devices_used as module
from kvscope.experiment.device_lock import Device
from kvscope.experiment.devices_used import devices_used, visible_accelerators

CPU = Device(name="cpu")
GPUS = (Device(name="nvidia0"), Device(name="nvidia1"))


NAMES = {"example.org": ("203.0.113.9", "203.0.113.7"), "this-one": ("127.0.1.1",), "by-itself": ("203.0.113.7",)}


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> None:
    """What names stand for (203.0.113.0/24 is nobody's: RFC 5737), and all else as it is without a network."""
    real = socket.getaddrinfo

    def look_up(host: str, port: int, **more: Any) -> Any:
        found = NAMES.get(host)
        if found is not None:
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in found]
        return real(host, port, **more, flags=socket.AI_NUMERICHOST)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "visible_accelerators", lambda: ("nvidia0", "nvidia1"))


@pytest.mark.parametrize(
    ("choice", "settings", "devices"),
    [
        (EngineChoice(name="fake"), {}, ()),
        (EngineChoice(name="llama.cpp"), {"n_gpu_layers": 0}, (CPU,)),
        # It computes on the processor as well, whatever it puts on an accelerator.
        (EngineChoice(name="llama.cpp"), {}, (CPU, *GPUS)),
        (EngineChoice(name="transformers"), {}, (CPU,)),
        (EngineChoice(name="transformers"), {"device": "cuda:1"}, (Device(name="cpu", shared=True), *GPUS)),
        (EngineChoice(name="vllm"), {}, (Device(name="cpu", shared=True), *GPUS)),
        (
            EngineChoice(name="openai", url="https://Example.org/v1"),
            {},
            tuple(Device(name=f"server-{each}-443") for each in ("203.0.113.7", "203.0.113.9", "example.org")),
        ),
        (
            EngineChoice(name="vllm", url="http://localhost:8000"),
            {},
            (CPU, Device(name="server-localhost-8000")),
        ),
        (EngineChoice(name="ollama"), {}, (CPU, Device(name="server-localhost-11434"))),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_devices(choice: EngineChoice, settings: dict[str, int | str], devices: tuple[Device, ...]) -> None:
    assert devices_used(choice, settings) == devices


def own_address() -> str:
    """An address of this machine that is not a loopback one; that, where it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        try:
            one.connect(("203.0.113.1", 9))  # nothing is sent
        except OSError:
            return "127.0.0.1"
        return str(one.getsockname()[0])


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.", "127.0.0.1", "127.9.9.9", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "this-one", None],
)
def test_a_server_here_is_one_device_whatever_it_is_called(host: str | None) -> None:
    url = f"http://{host or own_address()}:8080"
    expected = (CPU, Device(name="server-localhost-8080"))
    assert devices_used(EngineChoice(name="openai", url=url), {}) == expected


@pytest.mark.parametrize("host", ["by-itself", "203.0.113.7", "[::ffff:203.0.113.7]"])
def test_a_server_elsewhere_is_met_under_each_of_its_names(host: str) -> None:
    by_name = devices_used(EngineChoice(name="openai", url="http://example.org:8080"), {})
    other = devices_used(EngineChoice(name="openai", url=f"http://{host}:8080"), {})
    assert Device(name="server-203.0.113.7-8080") in set(by_name) & set(other)
    assert CPU not in (*by_name, *other)
    # All take them in one order, so that no two wait for one another.
    assert [each.name for each in by_name] == sorted(each.name for each in by_name)


def test_a_name_that_nobody_knows_is_a_device_all_the_same() -> None:
    choice = EngineChoice(name="openai", url="http://not-known.invalid:8080")
    assert devices_used(choice, {}) == (Device(name="server-not-known.invalid-8080"),)


def test_without_an_accelerator_the_processor_is_not_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "visible_accelerators", lambda: ())
    assert devices_used(EngineChoice(name="vllm"), {}) == (CPU,)


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("", ("renderD129",)),
        ("-1", ("renderD129",)),
        ("1", ("nvidia3", "renderD129")),
        ("1, 0,9", ("nvidia0", "nvidia3", "renderD129")),
        ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", ("nvidia0", "nvidia3", "renderD129")),
    ],
)
def test_accelerators_by_their_drivers_files(tmp_path: Path, chosen: str, names: tuple[str, ...]) -> None:
    for name in ("nvidia0", "nvidia3", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    for name, vendor in (("renderD128", "0x8086"), ("renderD129", "0x1002")):
        (tmp_path / name / "device").mkdir(parents=True)
        (tmp_path / name / "device" / "vendor").write_text(vendor + "\n")
    assert visible_accelerators(tmp_path, tmp_path, chosen) == names
