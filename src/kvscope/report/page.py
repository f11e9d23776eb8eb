"""The page: one self-contained HTML file. No outside reference, no script; everything recorded is text."""

from functools import cache
from importlib.resources import files
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kvscope import __version__
from kvscope.analysis.study import Analysis, analyse
from kvscope.record.store import open_records
from kvscope.report.blocks import Block, Chart, Download, StudyPage
from kvscope.report.charts import draw
from kvscope.report.files import write_file
from kvscope.report.sections import several_studies, study_pages
from kvscope.report.words import say

__all__ = ["render_page", "write_file", "write_report"]

# Characters that stay as they are in a data: address inside a double-quoted attribute.
_SAFE = " !$'()*+,-./:;=?@[]^_`{|}~"


def render_page(analysis: Analysis) -> str:
    """The whole page. The same analysis gives the same bytes."""
    pages = study_pages(analysis)
    return (
        _environment()
        .get_template("page.html")
        .render(
            title=_title(analysis),
            several=several_studies(analysis),
            pages=pages,
            style=Markup(_asset("page.css")),
            version=__version__,
        )
    )


def write_report(records_path: str | Path, out_path: str | Path, *, force: bool = False) -> Path:
    """Read the record, write the page, return its path.

    Raises OutputExists if the file exists and ``force`` is not set, RecordNotFound or SchemaMismatch for the record,
    RecordUnwritable if the file cannot be written. A file that was there stays whole until the new one is complete.
    """
    with open_records(records_path, snapshot=True) as records:
        text = render_page(analyse(records))
    return write_file(out_path, text, force=force)


def _title(analysis: Analysis) -> str:
    if not analysis.studies:
        return say("page.title_empty")
    first = analysis.studies[0]
    return say("page.title", model=first.model_name, engine=first.engine)


@cache
def _asset(name: str) -> str:
    return (files("kvscope.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    from jinja2 import FunctionLoader

    environment = Environment(
        loader=FunctionLoader(_asset), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(say=say, draw=_draw, kind=_kind, data_address=_data_address)
    return environment


def _draw(chart: Chart, page: StudyPage, place: str) -> Markup:
    # Our own drawing, in which every text was escaped as it was drawn.
    return Markup(draw(chart, f"{page.anchor}{place}-"))


def _kind(block: Block) -> str:
    return type(block).__name__


def _data_address(download: Download) -> str:
    """The text as a data: address, so that a click saves it with scripts off."""
    return f"data:{download.media_type};charset=utf-8,{quote(download.text, safe=_SAFE)}"
