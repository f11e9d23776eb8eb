"""What all tests share."""

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session", autouse=True)
def locks_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Devices are locked in a folder of this test process: its trials do not wait for those of others, nor others for
    them. Programs that are started here inherit it."""
    folder = tmp_path_factory.mktemp("locks")
    os.environ["KVSCOPE_LOCKS"] = str(folder)
    return folder
