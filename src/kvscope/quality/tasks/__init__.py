"""One task per file: what is planted, what is asked, and what counts as right."""

from collections.abc import Mapping

from kvscope.errors import UnknownName
from kvscope.quality.task import Task
from kvscope.quality.tasks.copy_gain import COPY_GAIN
from kvscope.quality.tasks.fidelity import FIDELITY
from kvscope.quality.tasks.keys import KEYS

TASKS: Mapping[str, Task] = {task.name: task for task in (KEYS, COPY_GAIN, FIDELITY)}


def task_named(name: str) -> Task:
    """Raises UnknownName, with the nearest."""
    try:
        return TASKS[name]
    except KeyError:
        raise UnknownName("quality task", name, TASKS) from None
