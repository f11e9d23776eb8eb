"""Pages of text. Both are conventions of publishing, counted from characters: neither is measured on paper.

A standard page has 1,800 characters, spaces included (30 lines of 60: the German *Normseite*). A sheet of Korean
manuscript paper (200자 원고지) has 200.
"""

CHARACTERS_OF_A_PAGE = 1800
CHARACTERS_OF_A_MANUSCRIPT_SHEET = 200
CONVENTION = "1 page = 1,800 characters; 1 Korean manuscript sheet = 200 characters (conventions, not measurements)"


def pages(characters: int) -> float:
    """Standard pages of so many characters."""
    return characters / CHARACTERS_OF_A_PAGE


def manuscript_sheets(characters: int) -> int:
    """Sheets of Korean manuscript paper that so many characters begin."""
    return -(-characters // CHARACTERS_OF_A_MANUSCRIPT_SHEET)
