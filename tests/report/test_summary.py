"""``kvscope report --json`` says what the text says, in one language whatever is spoken."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvscope.analysis.study import Analysis, analyse
from kvscope.cli.main import cli
from kvscope.language import speaking
from kvscope.record.store import open_records
from kvscope.report.summary import summary
from kvscope.report.text import render_text

LAB = Path(__file__).parents[1] / "golden" / "records" / "lab.db"


@pytest.fixture(scope="module")
def lab() -> Analysis:
    with open_records(LAB) as records:
        return analyse(records)


def test_what_the_text_says_is_in_the_json(lab: Analysis) -> None:
    (study,) = summary(lab)["studies"]
    text = " ".join(render_text(lab).split())
    assert " ".join(", ".join(study["about"]).split()) in text
    assert study["answer"] in text
    assert study["formula"] in text
    assert study["failed"] == sum(group["attempts"] for group in study["failures"])
    for group in study["failures"]:
        assert f"{group['name']} × {group['attempts']}" in text
    doubts = [check for check in study["checks"] if check["passed"] is False and check["slug"] != "failures"]
    assert doubts
    assert all(check["next_step"] for check in doubts)
    assert any(check["next_step"] in text for check in doubts)


def test_findings_say_what_else_could_be_and_how_to_check(lab: Analysis) -> None:
    (study,) = summary(lab)["studies"]
    found = {finding["slug"]: finding for finding in study["findings"]}
    agrees = found["reported_agrees"]
    assert agrees["also_possible"]
    assert agrees["how_to_check"] == "compare_log"
    assert any("To check:" in remark for remark in agrees["remarks"])


def test_json_is_the_same_in_every_language(lab: Analysis) -> None:
    english = json.dumps(summary(lab), default=str)
    with speaking("ko"):
        assert json.dumps(summary(lab), default=str) == english
    done = CliRunner().invoke(cli, ["report", "--records", str(LAB), "--json"])
    assert json.loads(done.stdout)["schema"] == "kvscope.report/1"
