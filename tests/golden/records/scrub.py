"""Take what belongs to one machine out of a record: folders in paths, other programs. Keeps a third of the samples."""

import re
import sqlite3
import sys

INSTALLED = re.compile(r"/\S*?/(site-packages|lib|bin)/")


def _shorten(text: str | None) -> str | None:
    return None if text is None else INSTALLED.sub(r"/opt/\1/", text)


def main(path: str) -> None:
    connection = sqlite3.connect(path)
    connection.create_function("shorten", 1, _shorten)
    connection.execute("UPDATE maps SET name = shorten(name)")
    connection.execute("UPDATE trials SET engine_log_tail = shorten(engine_log_tail), traceback = shorten(traceback)")
    connection.execute("UPDATE reported_buffers SET line = shorten(line)")
    connection.execute("UPDATE runs SET command = substr(command, 1, instr(command, ' --records') - 1)")
    connection.execute("UPDATE occupants SET name = 'another program', pid = rowid")
    connection.execute("DELETE FROM samples WHERE rowid % 9 >= 3")
    connection.commit()
    connection.execute("VACUUM")
    connection.close()


if __name__ == "__main__":
    main(sys.argv[1])
