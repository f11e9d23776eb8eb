"""What tests of reports share: one browser for all tests of a process."""

from collections.abc import Iterator

import pytest
from chromium import Chromium, require_chromium


@pytest.fixture(scope="session")
def browser() -> Iterator[Chromium]:
    """Started by the first test that needs it."""
    require_chromium()
    with Chromium() as chromium:
        yield chromium
