"""The most that the C library's allocator had in use: against blocks of a known size that this process takes itself."""

import ctypes
import importlib.util
import platform
from pathlib import Path
from types import ModuleType

import pytest

MIB = 1024**2
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallinfo2 is of glibc")


@pytest.fixture
def heap() -> ModuleType:
    path = Path(__file__).parents[2] / "src" / "kvscope" / "engine" / "transformers_heap.py"
    spec = importlib.util.spec_from_file_location("heap_of_a_worker", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_block_that_was_given_back_is_in_the_peak(heap: ModuleType) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    watch = heap.HeapPeak()
    assert watch.figures() == {}
    before = heap.heap()
    with watch:
        block = libc.malloc(64 * MIB)
        watch._look()  # whether its thread woke in between is no matter of this test
        libc.free(block)
    after = heap.heap()
    used = [found["heap_in_use_bytes"] + found["heap_mmapped_bytes"] for found in (before, after)]
    grown = watch.figures()["heap_peak_bytes"] - used[0]
    assert 64 * MIB <= grown < 66 * MIB
    assert used[1] - used[0] < 2 * MIB


def test_each_request_has_a_peak_of_its_own(heap: ModuleType) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    libc.malloc.argtypes = [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    watch = heap.HeapPeak()
    with watch:
        block = libc.malloc(64 * MIB)
        watch._look()
        libc.free(block)
    first = watch.figures()["heap_peak_bytes"]
    with watch:
        pass
    assert watch.figures()["heap_peak_bytes"] <= first - 60 * MIB
