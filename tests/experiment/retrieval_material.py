"""A few documents and questions for the tests of retrieval: each fact stands once, and every document has rivals."""

import json
from pathlib import Path

HOUSES = ("Alder", "Birch", "Cedar", "Maple", "Rowan", "Willow")
NUMBERS = dict(zip(HOUSES, ("41873", "90264", "57311", "23986", "68102", "75540"), strict=True))


def fact(house: str) -> str:
    return f"The storage number of the {house} house is {NUMBERS[house]}."


def write_documents(folder: Path) -> Path:
    """One document a house: what is told of it before and behind the fact says nothing of numbers."""
    folder.mkdir()
    for house in HOUSES:
        before = f"The gate of the {house} house was painted in spring. The porter of {house} keeps the lamps there."
        behind = f"Visitors to {house} bring bread on Monday. The road to {house} was mended by the warden in autumn."
        (folder / f"{house.lower()}.md").write_text(f"# {house}\n\n{before} {fact(house)} {behind}\n", encoding="utf-8")
    return folder


def write_questions(path: Path, *, without_answer: tuple[str, ...] = ()) -> Path:
    """One question a house, with its answer and its evidence."""
    lines = []
    for number, house in enumerate(HOUSES, start=1):
        line = {"id": f"q{number}", "question": f"What is the storage number of the {house} house?"}
        if house not in without_answer:
            line |= {"answer": NUMBERS[house], "evidence": fact(house), "document": f"{house.lower()}.md"}
        lines.append(json.dumps(line))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
