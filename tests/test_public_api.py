"""The public names: __all__ is what is exported, every name is found, documented and cheap to import."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import kvscope

INIT = Path(kvscope.__file__).read_text(encoding="utf-8")


def test_no_name_stands_twice() -> None:
    assert len(kvscope.__all__) == len(set(kvscope.__all__))


@pytest.mark.parametrize("name", kvscope.__all__)
def test_every_public_name_is_there_and_documented(name: str) -> None:
    assert getattr(kvscope, name).__doc__
    assert name in dir(kvscope)


def test_a_type_checker_sees_the_same_names_as_a_program() -> None:
    """What is imported for type checkers alone, and at once, against what is found when first used."""
    imported = {
        alias.name
        for node in ast.walk(ast.parse(INIT))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kvscope")
        for alias in node.names
    }
    assert imported == set(kvscope.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = kvscope.nothing


@pytest.mark.parametrize("name", sorted(set(kvscope.__all__) - {"predict"}))
def test_a_name_is_the_same_whatever_was_imported_before(name: str) -> None:
    """Packages and functions share names (predict): whichever is imported first, the public name is the function."""
    code = f"""
import kvscope
home = kvscope._HOME.get({name!r}, "kvscope.predict.memory")
__import__(home)
assert getattr(kvscope, {name!r}) is getattr(__import__(home, fromlist=["_"]), {name!r})
assert callable(kvscope.predict)
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
