"""What tests of several engines' modules share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))


@pytest.fixture(scope="session")
def transformers_child() -> "Iterator[object]":
    """A child of transformers' engine; started by the first test that needs it."""
    from transformers_models import Child

    child = Child()
    yield child
    child.stop()
