"""Paths in what programs wrote, without the person's name and folders: a page is mailed to others."""

import re

# /home/ann, /Users/ann, /root, C:\Users\ann: as far as the folder that is a person's own.
_HOME = re.compile(
    r"(?<![\w./\\-])(?:/(?:var/)?(?:home|Users)/[^/\s\"':]+|/root|[A-Za-z]:\\{1,2}Users\\{1,2}[^\\/\s\"':]+)"
    r"(?=[/\\\s\"':,;)]|$)"
)
# The file of a line of a traceback: what is before the package or the library is where it was installed.
_FILE = re.compile(
    r'(?m)^(\s*File ")[^"\n]*[/\\](?=(?:site-packages|dist-packages|python\d[\d.]*|src)[/\\])[^/\\"\n]+[/\\]'
)
_LOOSE_FILE = re.compile(r'(?m)^(\s*File ")(?!~|…|<)(?:[^"\n/\\]*[/\\])+(?=[^/\\"\n]+")')
# An error at the end of a traceback: its name, not indented.
_ERROR = re.compile(r"[A-Za-z_][\w.]*(?:: |$)")


def without_home(text: str) -> str:
    """The text with each folder of a person's own written ``~``, as a shell understands it."""
    return _HOME.sub("~", text)


def without_places(traceback: str) -> str:
    """A traceback in which files are named from their package on (``…/kvscope/engine/fake.py``), others by their name
    alone; in its messages folders of a person's own are ``~``."""
    return without_home(_LOOSE_FILE.sub(r"\1…/", _FILE.sub(r"\1…/", traceback)))


def last_line(traceback: str) -> str:
    """The error that the traceback ends with, by its name and the first line of what it says; else the last line."""
    lines = [line.rstrip() for line in traceback.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line)]
    return (errors or lines or [""])[-1].strip()
