#!/bin/sh
# Build the wheel once, install it alone into a clean environment and use it away from the sources, with no engine.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$BUILD_PYTHON" -m build --wheel --outdir "$work/dist" "$root" >"$work/build.log" 2>&1 || { cat "$work/build.log"; exit 1; }
"$PYTHON" -m venv "$work/venv"
"$work/venv/bin/python" -m pip --disable-pip-version-check --quiet install "$work"/dist/*.whl

cd "$work"
kvscope="$work/venv/bin/kvscope"
"$kvscope" --help >/dev/null
"$kvscope" predict "$root/tests/golden/gguf/tiny-gemma3.gguf" --engine llama.cpp --tokens 1k --json >predicted.json
"$work/venv/bin/python" -c 'import json; assert json.load(open("predicted.json"))["totals"]["kv_cache_bytes"] > 0'
# A config that leaves out most fields: the class defaults are in the wheel too.
"$kvscope" show "$root/tests/golden/models/gemma-3-12b-it/config.json" --json >shown.json
grep -q "class default of transformers" shown.json
"$kvscope" fit "$root/tests/golden/gguf/tiny-gemma3.gguf" --budget 1GiB >/dev/null
"$kvscope" explain "failed to allocate buffer of size 137438953504" | grep -q 1048576
"$kvscope" report --records "$root/tests/golden/records/lab.db" --out report.html
grep -q "</html>" report.html
"$kvscope" export --records "$root/tests/golden/records/lab.db" --format csv --out rows.csv
# The truth server in C is in the wheel, and compiles from there.
"$work/venv/bin/python" -c 'from kvscope.selftest.native import SOURCE; assert SOURCE.with_name("truth_answers.h").exists()'
if command -v cc >/dev/null; then
    "$work/venv/bin/python" -c 'import os; from kvscope.selftest.native import compile_server; os.fstat(compile_server())'
fi
# So is the wiki, pages and questions.
"$work/venv/bin/python" -c 'from kvscope.quality.wiki import wiki; w = wiki("large"); assert len(w.corpus.documents) > 200 and len(w.questions.asked) == 60'
# With no engine installed, asking for one says so and what to install.
code=0; "$kvscope" lab --model "$root/tests/golden/gguf/tiny-gemma3.gguf" 2>lab.err || code=$?
[ "$code" = 2 ] && grep -q "pip install" lab.err || { echo "kvscope lab without an engine: exit $code"; cat lab.err; exit 1; }
echo "wheel check passed: $(ls "$work"/dist)"
