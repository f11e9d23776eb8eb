"""What is said on stderr while an experiment runs."""

import pytest

from kvscope.cli.progress import show_progress
from kvscope.experiment.device_lock import Busy
from kvscope.experiment.runner import Progress


def test_it_says_for_whom_it_waits(capsys: pytest.CaptureFixture[str]) -> None:
    busy = Busy(device="cpu", pid=4711, program="kvscope", since="12:00:01")
    show_progress(
        Progress(design="turns", done=1, total=3, kept=0, result=None, next_trial=None, left_s=None, waiting_for=busy)
    )
    said = capsys.readouterr().err
    assert said == ("  Waiting: cpu is being measured by another kvscope, process 4711 (kvscope) since 12:00:01.\n")


def test_what_a_killed_one_left_behind_is_said_as_such() -> None:
    busy = Busy(device="nvidia0", pid=4711, program="llama-server", is_left_behind=True)
    assert str(busy) == "nvidia0 is in use by process 4711 (llama-server), which another kvscope left behind"
    assert str(Busy(device="cpu")) == "cpu is being measured by another kvscope"
