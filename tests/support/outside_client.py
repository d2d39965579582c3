"""Open our ONNX directories as somebody else would: without compress, with the transformers 4 that optimum-onnx needs.

    python tests/support/outside_client.py DIRECTORY [DIRECTORY ...] [--environment FOLDER]

It makes a virtual environment with optimum-onnx (kept in ``--environment`` and used again), stores the logits that
our own runtime gives for a few texts, and lets the other environment compare them with two readings of its own:
``ORTModelForSequenceClassification`` with ``AutoTokenizer``, and ONNX Runtime alone. Exit code 1 if any differ.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

REQUIREMENTS = ("transformers==4.57.6", "optimum-onnx[onnxruntime]==0.1.0", "torch==2.13.0")
TEXTS = (
    "a gorgeous , witty , seductive movie .",
    "too slow , too long and too little happens .",
    "fine",
    "Unbelievably naïve — and yet 100% honest; it isn't the director's best, but who'd complain?",
)
# int8 kernels of another version of ONNX Runtime may round otherwise; one step of the largest activation is allowed.
TOLERANCES = {"fp32": 1e-4, "int8": 0.05}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    parser.add_argument("--environment", type=Path, default=Path(tempfile.gettempdir()) / "compress-outside-client")
    parser.add_argument("--expected", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.expected:
        return compare(json.loads(arguments.expected.read_text(encoding="utf-8")))
    python = make_environment(arguments.environment)
    with tempfile.TemporaryDirectory() as scratch:
        expected = Path(scratch) / "expected.json"
        expected.write_text(json.dumps([expect(path.resolve()) for path in arguments.directories]), encoding="utf-8")
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        command = [python, str(Path(__file__).resolve()), "--expected", str(expected), *map(str, arguments.directories)]
        return subprocess.run(command, env={**clean, "HF_HUB_OFFLINE": "1"}, cwd=scratch).returncode


def make_environment(folder: Path) -> str:
    """Return the interpreter of a virtual environment with the outside client, made if need be."""
    python = folder / "bin" / "python"
    complete = folder / "complete"
    if not complete.is_file() or complete.read_text() != "\n".join(REQUIREMENTS):
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *REQUIREMENTS], check=True)
        complete.write_text("\n".join(REQUIREMENTS))
    return str(python)


def expect(directory: Path) -> dict[str, object]:
    """Return what our own tokenizer and runtime make of the texts, one by one: int8 depends on the batch."""
    from compress import plugins
    from compress.data.examples import Example
    from compress.data.tokenization import encode, maximum_length
    from compress.inference.batching import logits_of
    from compress.models.model_dir import ModelDir

    model = ModelDir.open(directory)
    tokenizer = model.load_tokenizer()
    limit = maximum_length(tokenizer, model.config)
    run = plugins.find("runtimes", "onnxruntime").function(directory, threads=1, device="cpu")
    rows = [Example(text) for text in TEXTS]
    logits = [logits_of([row], run, tokenizer, max_length=limit)[0].tolist() for row in rows]
    precision = str(model.manifest.notes.get("precision", "fp32"))
    return {
        "directory": str(directory),
        "labels": list(model.labels),
        "precision": precision,
        "input_ids": encode(tokenizer, rows, limit)["input_ids"],
        "logits": logits,
    }


def compare(entries: list[dict[str, object]]) -> int:
    """Run inside the other environment; print one line a directory and return the exit code."""
    import numpy as np
    import onnxruntime
    import transformers
    from optimum.onnxruntime import ORTModelForSequenceClassification
    from transformers import AutoTokenizer

    assert "compress" not in sys.modules
    print(f"transformers {transformers.__version__}, onnxruntime {onnxruntime.__version__}")
    failed = 0
    for entry in entries:
        directory = str(entry["directory"])
        model = ORTModelForSequenceClassification.from_pretrained(directory)
        tokenizer = AutoTokenizer.from_pretrained(directory)
        session = onnxruntime.InferenceSession(str(Path(directory) / "model.onnx"), providers=["CPUExecutionProvider"])
        expected = np.array(entry["logits"])
        with_optimum, alone, same_ids = [], [], True
        for text, ids in zip(TEXTS, entry["input_ids"], strict=True):  # type: ignore[call-overload]
            encoded = tokenizer(text, truncation=True, return_tensors="pt")
            same_ids = same_ids and encoded["input_ids"][0].tolist() == ids
            with_optimum.append(model(**encoded).logits[0].numpy())
            # Nothing is filtered: the tokenizer must give exactly the inputs of the graph.
            alone.append(session.run(["logits"], {name: value.numpy() for name, value in encoded.items()})[0][0])
        differences = [float(np.abs(np.array(found) - expected).max()) for found in (with_optimum, alone)]
        labels = [model.config.id2label[index] for index in range(len(model.config.id2label))]
        good = (
            same_ids
            and labels == entry["labels"]
            and max(differences) <= TOLERANCES[str(entry["precision"])]
            and bool((np.array(with_optimum).argmax(1) == expected.argmax(1)).all())
        )
        failed += not good
        print(
            f"{'ok  ' if good else 'FAIL'} {directory}: {entry['precision']}, same token ids {same_ids}, "
            f"logits differ by {differences[0]:.2g} (optimum) and {differences[1]:.2g} (onnxruntime alone)"
        )
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
