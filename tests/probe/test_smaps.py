"""Kinds of mappings, from lines a Linux 6 kernel wrote for a process that ran llama.cpp (SmolLM2, n_ctx 1024)."""

from kvscope.probe.base import MemoryMapping
from kvscope.probe.smaps import parse_smaps, sum_small
from kvscope.units import KIB, MIB

# Addresses and sizes as seen; of each entry only the fields that are read, and two that must be passed over.
ENTRY = "{head}\nSize: 1 kB\nRss: {rss} kB\nAnonymous: {anon} kB\nVmFlags: rd wr mr mw me ac\n"
SEEN = [
    ("5594ce526000-5594ce527000 r--p 00000000 fe:00 26723                      /usr/bin/python3.11", 4, 0),
    ("559508d07000-559508f38000 rw-p 00000000 00:00 0                          [heap]", 2172, 2172),
    ("7f6c18000000-7f6c18021000 rw-p 00000000 00:00 0 ", 4, 4),
    ("7f6c18021000-7f6c1c000000 ---p 00000000 00:00 0 ", 0, 0),
    ("7f6c1e216000-7f6c1e217000 ---p 00000000 00:00 0 ", 0, 0),
    ("7f6c1e217000-7f6c1ea17000 rw-p 00000000 00:00 0 ", 8, 8),
    ("7f6c1ea17000-7f6c223b3000 rw-p 00000000 00:00 0 ", 288, 288),
    ("7f6c223b3000-7f6c27fcf000 r--s 00000000 fe:00 5341646                    /models/with space/m.gguf", 94320, 0),
    ("7f6c2c75a000-7f6c2dffc000 rw-p 00000000 00:00 0 ", 25224, 25224),
    ("7f6c30000000-7f6c318ae000 rw-p 00000000 00:00 0 ", 24744, 24744),
    ("7f6c318ae000-7f6c34000000 ---p 00000000 00:00 0 ", 0, 0),
    ("7f6c38000000-7f6c3c000000 rw-p 00000000 00:00 0 ", 100, 100),
    ("7ffd6feb5000-7ffd6fed6000 rw-p 00000000 00:00 0                          [stack]", 60, 60),
    ("7f6c39425000-7f6c39427000 r-xp 00000000 00:00 0                          [vdso]", 4, 0),
]
TEXT = "".join(ENTRY.format(head=head, rss=rss, anon=anon) for head, rss, anon in SEEN)


def test_kinds() -> None:
    found = [(m.kind, m.name, m.size_bytes, m.resident_bytes, m.anonymous_bytes) for m in parse_smaps(TEXT)]
    assert found == [
        ("file", "/usr/bin/python3.11", 4 * KIB, 4 * KIB, 0),
        ("heap", "", 0x559508F38000 - 0x559508D07000, 2172 * KIB, 2172 * KIB),
        ("arena", "", 0x21000, 4 * KIB, 4 * KIB),
        ("stack", "", 8 * MIB, 8 * KIB, 8 * KIB),
        ("anonymous", "", 0x7F6C223B3000 - 0x7F6C1EA17000, 288 * KIB, 288 * KIB),
        ("file", "/models/with space/m.gguf", 0x7F6C27FCF000 - 0x7F6C223B3000, 94320 * KIB, 0),
        ("anonymous", "", 0x7F6C2DFFC000 - 0x7F6C2C75A000, 25224 * KIB, 25224 * KIB),
        ("arena", "", 0x7F6C318AE000 - 0x7F6C30000000, 24744 * KIB, 24744 * KIB),
        ("arena", "", 64 * MIB, 100 * KIB, 100 * KIB),  # grown to its end
        ("stack", "", 0x21000, 60 * KIB, 60 * KIB),
        ("anonymous", "", 0x2000, 4 * KIB, 0),
    ]


def test_a_stack_is_only_one_of_the_right_size_above_a_guard_page() -> None:
    guard, stack = ENTRY.format(head=SEEN[4][0], rss=0, anon=0), ENTRY.format(head=SEEN[5][0], rss=8, anon=8)
    assert [m.kind for m in parse_smaps(guard + stack)] == ["stack"]
    assert [m.kind for m in parse_smaps(stack)] == ["anonymous"]
    assert [m.kind for m in parse_smaps(guard + stack, stack_bytes=2 * MIB)] == ["anonymous"]


def test_small_ones_are_summed_and_no_byte_is_lost() -> None:
    mappings = parse_smaps(TEXT)
    kept = sum_small(mappings)
    for field in ("size_bytes", "resident_bytes", "anonymous_bytes", "count"):
        assert sum(getattr(m, field) for m in kept) == sum(getattr(m, field) for m in mappings)
    single = [m for m in kept if m.count == 1 and m.kind in ("anonymous", "file") and m.size_bytes >= MIB]
    assert [(m.kind, m.resident_bytes) for m in single] == [
        ("anonymous", 288 * KIB),
        ("anonymous", 25224 * KIB),
        ("file", 94320 * KIB),
    ]
    assert next(m for m in kept if m.kind == "arena") == MemoryMapping(
        kind="arena",
        name="",
        size_bytes=0x21000 + (0x7F6C318AE000 - 0x7F6C30000000) + 64 * MIB,
        resident_bytes=(4 + 24744 + 100) * KIB,
        anonymous_bytes=(4 + 24744 + 100) * KIB,
        count=3,
    )


def test_an_empty_text() -> None:
    assert parse_smaps("") == []
    assert sum_small([]) == ()
