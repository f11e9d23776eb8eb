"""Where in a study file a key stands, so that what is wrong can be pointed at. The parser does not say it."""

import re

_HEADER = re.compile(r"\s*(\[{1,2})\s*([^\]\s][^\]]*?)\s*\]{1,2}\s*(#.*)?$")


class StudyLines:
    """The lines of a file's text, by study and key."""

    def __init__(self, text: str) -> None:
        self._lines: list[tuple[int, int, str, str]] = []  # number, study, table, text
        self._headers: dict[int, int] = {}
        study, table = -1, ""
        brackets = set()
        for number, line in enumerate(text.splitlines(), start=1):
            header = _HEADER.match(line)
            if header is not None:
                table = header[2].replace(" ", "")
                if table == "study":
                    brackets.add(header[1])
                if table == "study" and (header[1] == "[[" or study < 0):
                    study += 1
                    self._headers[study] = number
            self._lines.append((number, study, table, line))
        # ``[study]`` and ``[[study]]`` in one file.
        self.has_both_headers = len(brackets) == 2

    def of_study(self, number: int) -> int | None:
        """The line at which the study of this number (from 0) begins; None where it is not found."""
        return self._headers.get(number)

    def of_key(self, study: int | None, key: str, table: str | None = None) -> int | None:
        """The line of a key (or of the table of that name) in a study, or in the file; None where it is not found."""
        assigned = re.compile(rf"(^|[\s{{,.]|\")({re.escape(key)})\"?\s*=")
        header = re.compile(rf"\s*\[{{1,2}}\s*(study\s*\.\s*)?{re.escape(key)}\s*[\].]")
        for number, of_study, of_table, line in self._lines:
            inside = table is None or of_table == f"study.{table}" or table in line.split("=")[0]
            if (study is None or of_study == study) and inside and (header.match(line) or assigned.search(line)):
                return number
        return None if study is None else self.of_study(study)
