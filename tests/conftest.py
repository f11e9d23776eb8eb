"""What all tests share."""

import os
import signal
import threading
from pathlib import Path

import pytest

# A shell starts what it runs in the background with SIGINT ignored, and programs inherit that: tests of Ctrl-C would
# then test nothing. With a handler here, what is started from here begins with the system's default.
if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What is said follows the locale; tests hold the English, wherever they run, and name another language where they mean
# it. Programs that are started here inherit it.
os.environ["LC_ALL"] = "C.UTF-8"


@pytest.fixture(scope="session", autouse=True)
def locks_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Devices are locked in a folder of this test process: its trials do not wait for those of others, nor others for
    them. Programs that are started here inherit it."""
    folder = tmp_path_factory.mktemp("locks")
    os.environ["KVSCOPE_LOCKS"] = str(folder)
    return folder


@pytest.fixture(scope="session", autouse=True)
def no_calibration() -> None:
    """Nothing is measured on a tiny model before a trial, but where a test is of that."""
    os.environ["KVSCOPE_CALIBRATION"] = "off"
