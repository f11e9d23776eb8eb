"""Which designs were asked for the answers' sake: their headline is what was answered, and not memory or time."""

from kvscope.record.rows import DesignRow

TASK_FACTOR = "quality_task"
RETRIEVAL = "retrieval"


def is_of_tasks(design: DesignRow) -> bool:
    """Whether levels are tasks (of a grid one factor is): they do different work, so their times compare nothing."""
    return TASK_FACTOR in design.factor


def is_of_answers(design: DesignRow) -> bool:
    """Whether nothing but answers, and what they cost, was asked for."""
    return is_of_tasks(design) or design.name == RETRIEVAL
