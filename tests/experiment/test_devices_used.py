"""Which devices a trial has for itself."""

from pathlib import Path

import pytest

from kvscope.engine.registry import EngineChoice
from kvscope.experiment import devices_used as module
from kvscope.experiment.device_lock import Device
from kvscope.experiment.devices_used import devices_used, visible_accelerators

CPU = Device(name="cpu")
GPUS = (Device(name="nvidia0"), Device(name="nvidia1"))


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
            (Device(name="server-example.org-443"),),
        ),
        (
            EngineChoice(name="vllm", url="http://localhost:8000"),
            {},
            (CPU, Device(name="server-localhost-8000")),
        ),
        (EngineChoice(name="ollama"), {}, (CPU, Device(name="server-127.0.0.1-11434"))),
    ],
)
@pytest.mark.usefixtures("two_gpus")
def test_devices(choice: EngineChoice, settings: dict[str, int | str], devices: tuple[Device, ...]) -> None:
    assert devices_used(choice, settings) == devices


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
