"""The charts of a record as files of their own, each as SVG and as PNG.

SVG keeps words as text: whoever opens it needs the font. PNG is drawn here, with the fonts of this machine: without one
that has Hangul every Korean syllable is an empty box, so its labels are English then, and that is said.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.analysis.study import Analysis
from kvscope.language import ENGLISH, current, speaking
from kvscope.report.blocks import Chart
from kvscope.report.charts import draw_file
from kvscope.report.sections import study_pages
from kvscope.report.words import say

# Pixels of a PNG for each unit of its SVG: sharp on dense screens.
_SCALE = 2.0
_HANGUL = re.compile("[\u1100-\u11ff\u3130-\u318f\uac00-\ud7a3]")
_WRITTEN = re.compile(r"<text[^>]*>(.*?)</text>", re.DOTALL)
# Syllables that no font draws alike, unless it has neither.
_UNLIKE = ("가", "뷁")
# In the family that charts are drawn in: others may be drawn without looking for a font that has the letter.
_PROBE = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40" font-family="sans-serif">'
    '<text y="30">{text}</text></svg>'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartFiles:
    """``files``: name → content. ``doubts``: what is not as asked in them, and what to do about it."""

    files: Mapping[str, bytes]
    doubts: tuple[str, ...]


def chart_files(analysis: Analysis) -> ChartFiles:
    """Every chart of a record once, in the current language. The same chart has the same name on every run."""
    drawn = _drawn(analysis)
    pictures, doubts = drawn, list[str]()
    if _has_hangul(drawn) and not can_draw_hangul():
        if current() != ENGLISH:
            doubts.append(say("charts.no_korean_font"))
            with speaking(ENGLISH):
                pictures = _drawn(analysis)
        doubts += [say("charts.hangul_lost")] if _has_hangul(pictures) else []
    files = {f"{name}.svg": svg.encode() for name, svg in drawn.items()}
    files |= {f"{name}.png": to_png(svg) for name, svg in pictures.items()}
    return ChartFiles(files=dict(sorted(files.items())), doubts=tuple(doubts))


def to_png(svg: str) -> bytes:
    """A chart's SVG as a picture."""
    import vl_convert

    picture: bytes = vl_convert.svg_to_png(svg, scale=_SCALE)
    return picture


def can_draw_hangul() -> bool:
    """Whether a PNG made here shows Korean. Asked of the drawing itself: two syllables look alike only where both are
    the empty box of a missing one."""
    one, other = (to_png(_PROBE.format(text=each)) for each in _UNLIKE)
    return one != other


def _drawn(analysis: Analysis) -> dict[str, str]:
    """Name → SVG."""
    charts: dict[str, Chart] = {}
    for page in study_pages(analysis):
        first = [page.answer.chart] if page.answer.chart is not None else []
        blocks = [block for section in page.sections for block in section.blocks]
        for chart in (block for block in (*blocks, *first) if isinstance(block, Chart)):
            charts.setdefault(f"{page.anchor}{chart.slug}", chart)
    return {name: draw_file(chart) for name, chart in charts.items()}


def _has_hangul(drawn: Mapping[str, str]) -> bool:
    return any(_HANGUL.search(text) for svg in drawn.values() for text in _WRITTEN.findall(svg))
