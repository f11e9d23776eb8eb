"""What kind of content a stretch of text is: by rules over its lines, the same each time."""

KOREAN, ENGLISH, CODE, DIGITS, JSON, BASE64, OTHER = KINDS = (
    "korean_prose",
    "english_prose",
    "code",
    "digits",
    "json",
    "base64",
    "other",
)
