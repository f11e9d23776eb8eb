"""Makes the files of this folder from full observation files: see README.md. Usage: trim.py SOURCE_FOLDER NAME ..."""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def trim(content: dict[str, Any]) -> dict[str, Any]:
    return {
        "engine": content["build"]["package"],
        "cpu": content["build"]["cpu"],
        "source": content["source"],
        "sha256": content["sha256"],
        "file_bytes": content["tensor_summary"]["file_bytes"],
        "metadata": {key: value for key, value in content["gguf_metadata"].items() if _matters(key)},
        "tensors": [[t["name"], t["shape"], t["type"], t["bytes"]] for t in content["tensors"]],
        "observations": [observation(entry) for entry in content["observations"]],
    }


def _matters(key: str) -> bool:
    is_text = key.startswith("tokenizer.") and not key.endswith(".length")
    return not is_text and key not in ("general.tags", "general.languages")


def observation(entry: dict[str, Any]) -> dict[str, Any]:
    log = entry["log"]
    if not log["compute_buffers"]:
        return {"settings": entry["settings"], "refused": log["errors"][0]}
    return {
        "settings": entry["settings"],
        "kv": [
            [c["kind"], c["cells"], c["streams"], c["layers"], c["buffers"][0].get("bytes")] for c in log["kv_caches"]
        ],
        "rs": [
            [c["cells"], c["layers"], c["buffers"][0].get("bytes"), c["r_mib"], c["s_mib"]] for c in log["rs_caches"]
        ],
        "output": log["output_buffers"][0].get("bytes"),
        "compute": log["compute_buffers"][0].get("bytes"),
        "weights": {b["buft"]: [b["mib"], b.get("bytes")] for b in log["model_buffers"]},
        "context": {key: int(log["context"][key]) for key in ("n_ctx", "n_ctx_seq", "n_batch", "n_ubatch")},
        "slots": log["slots"],
    }


def write(trimmed: dict[str, Any], path: Path) -> None:
    """One tensor and one observation per line, so that a change shows as a line."""
    parts = []
    for key, value in trimmed.items():
        if isinstance(value, list):
            body = ",\n  ".join(json.dumps(entry, separators=(",", ":")) for entry in value)
            parts.append(f' "{key}": [\n  {body}\n ]')
        else:
            parts.append(f' "{key}": {json.dumps(value)}')
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        write(trim(json.loads((folder / f"{name}.json").read_text())), HERE / f"{name}.json")
