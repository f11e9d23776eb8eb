"""The page: one self-contained HTML file, in every language, without any outside reference. It is complete with scripts
off; everything recorded is text."""

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kvscope import __version__
from kvscope.analysis.study import Analysis, analyse
from kvscope.language import NAMES, current, speaking
from kvscope.record.store import open_records
from kvscope.report.blocks import Chart, Download, StudyPage
from kvscope.report.charts import draw, live_patterns, paper_patterns
from kvscope.report.definitions import anchors_of
from kvscope.report.files import write_file
from kvscope.report.interactive import bundle, live_data
from kvscope.report.plain_characters import plain
from kvscope.report.sections import several_studies, study_pages
from kvscope.report.spoken import SpokenChart, in_each, said_in_each, together
from kvscope.report.spoken_chart import labelled, one_drawing
from kvscope.report.table_layout import attributes
from kvscope.report.words import say

__all__ = ["render_page", "write_file", "write_report"]

_SCRIPT = re.compile(r"(<script[^>]*>.*?</script>)", re.DOTALL)
# Characters that stay as they are in a data: address inside a single-quoted attribute.
_SAFE = ' !$"()*+,-./:;=?@[]^_`{|}~'
# Nothing may be loaded, sent or framed; scripts only by their hash.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def render_page(analysis: Analysis, *, interactive: bool = False) -> str:
    """The whole page, opened in the current language. The same analysis gives the same bytes. ``interactive``: with the
    bundle that draws its charts anew where scripts run, about 1 MB more."""
    titles = in_each(lambda: _title(analysis))
    scripts = (_asset("page.js"), *((bundle(), _asset("live.js")) if interactive else ()))
    return _plain(
        _environment()
        .get_template("page.html")
        .render(
            title=_title(analysis),
            titles=titles,
            languages={name: NAMES[name] for name in titles},
            several=said_in_each(lambda: several_studies(analysis) or ""),
            pages=together(in_each(lambda: study_pages(analysis))),
            style=Markup(_style()),
            scripts=[Markup(script) for script in scripts],
            policy=content_policy(scripts),
            version=__version__,
            interactive=interactive,
            patterns=Markup(paper_patterns() + (live_patterns() if interactive else "")),
            place=_Places(),
        )
    )


def _plain(page: str) -> str:
    """The page with characters that are no text written out; scripts stay as they are, byte for byte."""
    parts = _SCRIPT.split(page)
    return "".join(part if index % 2 else plain(part) for index, part in enumerate(parts))


def write_report(
    records_path: str | Path, out_path: str | Path, *, force: bool = False, interactive: bool = False
) -> Path:
    """Read the record, write the page, return its path.

    Raises OutputExists if the file exists and ``force`` is not set, RecordNotFound or SchemaMismatch for the record,
    RecordUnwritable if the file cannot be written. A file that was there stays whole until the new one is complete.
    """
    with open_records(records_path, snapshot=True) as records:
        text = render_page(analyse(records), interactive=interactive)
    return write_file(out_path, text, force=force)


def content_policy(scripts: Iterable[str]) -> str:
    """What the page allows a browser: its own styles, and exactly these scripts."""
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts]
    return f"{_POLICY}; script-src {' '.join(hashes)}" if hashes else _POLICY


def _title(analysis: Analysis) -> str:
    if not analysis.studies:
        return say("page.title_empty")
    first = analysis.studies[0]
    return say("page.title", model=first.model_name, engine=first.engine)


class _Places:
    """Ids for captions, counted as the page is written."""

    def __init__(self) -> None:
        self._numbers = count(1)

    def caption(self) -> str:
        """The next one."""
        return f"table-{next(self._numbers)}"


@cache
def _asset(name: str) -> str:
    return (files("kvscope.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    """The style sheet without comments and the blanks that are there for its writers."""
    sheet = re.sub(r"/\*.*?\*/", "", _asset("page.css"), flags=re.DOTALL)
    return re.sub(r"\s*([{}:;,])\s+", r"\1", re.sub(r"\s+\{", "{", sheet)).replace(";}", "}").strip() + "\n"


@cache
def _environment() -> Environment:
    from jinja2 import FunctionLoader

    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        say=lambda slug, **values: said_in_each(lambda: say(slug, **values)),
        draw=_draw,
        label=_label,
        live=_live,
        kind=lambda block: type(block).__name__,
        data_address=_data_address,
        attributes=attributes,
        defined=anchors_of,
        language=current,
    )
    return environment


def _draw(
    chart: Chart | SpokenChart, page: StudyPage, place: str, *, interactive: bool
) -> Sequence[tuple[str, Markup]]:
    """The drawings of a chart with their language, empty for one that all share. They are our own; every text in them
    was escaped as it was drawn."""
    prefix, label = f"{page.anchor}{place}-", _label(chart, page, place)
    if isinstance(chart, Chart):
        return [("", Markup(labelled(draw(chart, prefix), label)))]
    drawn = {name: labelled(draw(each, prefix), label) for name, each in chart.versions.items()}
    one = None if interactive else one_drawing(drawn)
    if one is not None:
        return [("", Markup(one))]
    return [(name, Markup(labelled(draw(each, f"{prefix}{name}-"), label))) for name, each in chart.versions.items()]


def _label(chart: Chart | SpokenChart, page: StudyPage, place: str) -> str:
    """What begins the ids of a chart's title and description, which stand beside its drawing."""
    return re.sub(r"[^a-z0-9-]", "-", f"{page.anchor}{place}-{chart.slug}".lower())


def _live(chart: Chart | SpokenChart, language: str) -> Markup:
    """What draws the chart anew: JSON in which nothing ends the script element that it stands in."""
    if isinstance(chart, Chart):
        return Markup(live_data(chart))
    with speaking(language):
        return Markup(live_data(chart.versions[language]))


def _data_address(download: Download) -> Markup:
    """The text as a data: address, so that a click saves it with scripts off. For a single-quoted attribute: quotes of
    JSON stay as they are, and nothing that could end the attribute does."""
    return Markup(f"data:{quote(download.media_type)};charset=utf-8,{quote(download.text, safe=_SAFE)}")
