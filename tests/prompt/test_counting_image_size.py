"""Width and height from a picture's own header, against Pillow, which writes the files here."""

import base64
import io
import random
import urllib.parse

import pytest

from kvscope.prompt.counting.image_size import size_of_address, size_of_bytes

PIL_Image = pytest.importorskip("PIL.Image")

KINDS = {
    "PNG": {},
    "GIF": {},
    "JPEG": {},
    "JPEG progressive": {"progressive": True, "comment": b"\xff\xc0" * 500, "exif": b"Exif\x00\x00" + b"\x01" * 9000},
    "WEBP": {"lossless": False},
    "WEBP lossless": {"lossless": True},
    "WEBP extended": {"lossless": False, "exif": b"Exif\x00\x00II*\x00\x08\x00\x00\x00\x00\x00"},
}


def picture(kind: str, width: int, height: int) -> bytes:
    file = io.BytesIO()
    image = PIL_Image.effect_noise((width, height), 50).convert("RGB")
    image.save(file, format=kind.split()[0], **KINDS[kind])
    return file.getvalue()


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_are_those_the_picture_was_written_with(kind: str) -> None:
    rng = random.Random(kind)
    for _ in range(10):
        size = (rng.randint(1, 700), rng.randint(1, 700))
        data = picture(kind, *size)
        assert size_of_bytes(data) == size
        coded = base64.b64encode(data).decode()
        assert size_of_address(f"data:image/x;base64,{coded}") == size
        assert size_of_address(f"DATA:image/x;charset=x;BASE64,{urllib.parse.quote(coded)}") == size


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_ends_too_early_or_is_damaged_raises_nothing(kind: str) -> None:
    rng = random.Random(kind)
    data = picture(kind, 40, 30)
    for length in [*range(64), *(rng.randrange(len(data)) for _ in range(200))]:
        assert size_of_bytes(data[:length]) in (None, (40, 30))
    for _ in range(300):
        broken = bytearray(data)
        broken[rng.randrange(min(len(data), 64))] = rng.randrange(256)
        size = size_of_bytes(bytes(broken))
        assert size is None or min(size) > 0


def test_other_addresses_have_no_size() -> None:
    for address in ("https://example.org/a.png", "data:image/png;base64,%%%", "data:text/plain,hello", "data:", ""):
        assert size_of_address(address) is None
    gif = b"GIF89a\x05\x00\x07\x00"
    assert size_of_address("data:image/gif," + urllib.parse.quote_from_bytes(gif)) == (5, 7)
    assert size_of_bytes(b"GIF89a\x00\x00\x07\x00") is None
