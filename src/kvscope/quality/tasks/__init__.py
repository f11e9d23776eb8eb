"""One task per file: what is planted, what is asked, and what counts as right."""

from collections.abc import Mapping

from kvscope.errors import UnknownName
from kvscope.quality.task import Task
from kvscope.quality.tasks.copy import COPY
from kvscope.quality.tasks.copy_gain import COPY_GAIN
from kvscope.quality.tasks.count import COUNT
from kvscope.quality.tasks.fidelity import FIDELITY
from kvscope.quality.tasks.keys import KEYS
from kvscope.quality.tasks.needle import NEEDLE
from kvscope.quality.tasks.reworded import REWORDED
from kvscope.quality.tasks.tool_call import TOOL_CALL
from kvscope.quality.tasks.variables import VARIABLES

TASKS: Mapping[str, Task] = {
    task.name: task for task in (NEEDLE, KEYS, VARIABLES, COPY, COUNT, REWORDED, TOOL_CALL, COPY_GAIN, FIDELITY)
}


def task_named(name: str) -> Task:
    """Raises UnknownName, with the nearest."""
    try:
        return TASKS[name]
    except KeyError:
        raise UnknownName("quality task", name, TASKS) from None
