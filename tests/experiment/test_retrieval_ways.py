"""The levels of ``given`` as they are written, and what is none."""

import pytest

from kvscope.errors import BadDesign, UnknownName
from kvscope.experiment.retrieval_ways import EXAMPLES, Way, way_named


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("whole", Way(name="whole", gives="whole")),
        ("whole/question-first", Way(name="whole/question-first", gives="whole", is_volatile_first=True)),
        ("passages=3", Way(name="passages=3", gives="passages", passages=3)),
        (
            "passages=12/size=64/passages-first",
            Way(
                name="passages=12/size=64/passages-first",
                gives="passages",
                passages=12,
                passage_tokens=64,
                is_volatile_first=True,
            ),
        ),
        ("evidence/size=32", Way(name="evidence/size=32", gives="evidence", passage_tokens=32)),
        ("nothing", Way(name="nothing", gives="nothing")),
    ],
)
def test_a_way_is_what_its_name_says(name: str, way: Way) -> None:
    assert way_named(name) == way


def test_every_example_is_one() -> None:
    assert [way_named(name).name for name in EXAMPLES] == list(EXAMPLES)


@pytest.mark.parametrize(
    "name",
    [
        "all",
        "passages",
        "passages=",
        "passages=-1",
        "passages=3/size=64/size=32",
        "whole/size=64",
        "whole/passages-first",
        "nothing/size=32",
        "passages=3/question-first",
        "passages=3/",
        "evidence/passages-first",
        "",
    ],
)
def test_what_is_no_way_is_refused_with_what_there_is(name: str) -> None:
    with pytest.raises(UnknownName) as found:
        way_named(name)
    assert "passages=3" in (found.value.hint or "") or "whole" in (found.value.hint or "")


@pytest.mark.parametrize("name", [3, True, "passages=0", "passages=3/size=2"])
def test_what_cannot_be_is_refused(name: object) -> None:
    with pytest.raises(BadDesign):
        way_named(name)
