"""The catalogue: names as people write them, figures with a source, and what is not known."""

import pytest

from kvscope.errors import UnknownName
from kvscope.predict.devices import DEVICES, device_named
from kvscope.units import GIB, MIB


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("h100", "H100 80GB"),
        ("NVIDIA-H100-80GB", "H100 80GB"),
        ("RTX 3060", "RTX 3060 12GB"),
        ("AMD Instinct MI300X", "MI300X"),
        ("apple m4 max", "M4 Max 128GB"),
    ],
)
def test_names_as_people_write_them(name: str, expected: str) -> None:
    assert device_named(name).name == expected


@pytest.mark.parametrize("name", ["A100", "RTX 4095", "", "gb"])
def test_what_is_unknown_or_could_be_two(name: str) -> None:
    with pytest.raises(UnknownName) as caught:
        device_named(name)
    assert "A100 40GB, A100 80GB" in (caught.value.hint or "")


def test_a_near_name_is_suggested() -> None:
    with pytest.raises(UnknownName) as caught:
        device_named("rtx 409")
    assert "Did you mean RTX 4090" in (caught.value.hint or "")


def test_the_drivers_figure_and_the_nominal_one_are_told_apart() -> None:
    """nvidia-smi shows 143,771 MiB for an H200, not 141 × 10⁹ B, and 24,564 MiB of an RTX 4090's 24 GiB."""
    assert device_named("H200").memory_bytes == 143_771 * MIB
    assert device_named("RTX 4090").memory_bytes == 24_564 * MIB < 24 * GIB
    assert not device_named("H200").memory_is_nominal
    assert device_named("MI325X").memory_is_nominal


def test_every_device_has_its_source() -> None:
    assert len(DEVICES) >= 25
    for device in DEVICES.values():
        assert device.source
        assert 8 * GIB < device.memory_bytes < 1024 * GIB
        assert 100e9 < device.bandwidth_bytes_per_s < 10e12
        assert ("nominal" in device.source or "shared" in device.source) == device.memory_is_nominal
