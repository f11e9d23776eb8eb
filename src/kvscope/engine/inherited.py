"""Open files that every engine is given when it is started, and no other program: the locks of the devices that it is
measured on. A lock is held as long as any process has its file open, so one that an engine was given cannot be had by
anybody else before the engine is gone, even where kvscope itself was killed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

_files: set[int] = set()


@contextmanager
def inherited_by_engines(file: int) -> Iterator[None]:
    """While this lasts, engines that are started inherit the open file ``file``."""
    _files.add(file)
    try:
        yield
    finally:
        _files.discard(file)


def inherited_files() -> tuple[int, ...]:
    """Files for an engine that is started now."""
    return tuple(_files)


def forget_inherited() -> None:
    """In a forked copy of kvscope, which holds no locks."""
    _files.clear()
