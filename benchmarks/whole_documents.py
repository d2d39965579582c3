"""Students that read whole documents, against the same students that read the first tokens: paired intervals.

    python benchmarks/whole_documents.py --teacher DIR --labels DIR --validation FILE --test FILE --work FOLDER
        -o benchmarks/results/whole-documents.jsonl [--students ngram cnn] [--lengths 512 100000 128 256] [--steps 200]
        [--batch-size 64]
    python benchmarks/whole_documents.py --split FILE [--exclude FILE] -o FOLDER

All students learn the same logits, of --labels (an output of ``compress label``), in as many steps of as many rows;
they differ in the tokens that a text is cut to, in training and in the test. Each line has the accuracy of one and its
difference from that of the first of --lengths, on all rows and on those that this one cuts. Students that are in the
folder of --work are not trained again. Tables have the columns label and text, in the classes of the teacher or their
numbers. The second form draws test.tsv (the 5,000 rows of ``long_documents.py``), validation.tsv (1,000) and pool.tsv
(the others) of a table, without the ids that the second column of --exclude names.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
from long_documents import measured, read_table
from script import columns, provenance, read_options, replace_line

from compress.data import Example, open_source, read_examples
from compress.inference.compute import Compute
from compress.inference.predict import load
from compress.models.model_dir import Model
from compress.recipes import StudentRecipe, load_recipe
from compress.requests.compression import export
from compress.requests.training import distill


def rows_of(path: str, role: str) -> list[Example]:
    return read_examples(
        open_source(path, role=role, labelled=True, format="tsv-unquoted", text_column="text", label_column="label")
    )


def split(data: Path, exclude: Path | None, folder: Path) -> None:
    table = read_table(data, exclude)
    test = random.Random(0).sample(table, 5000)
    texts = {row["text"] for row in test}
    others = [row for row in table if row["text"] not in texts]
    random.Random(1).shuffle(others)
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("test", test), ("validation", others[:1000]), ("pool", others[1000:])):
        lines = ["id\tlabel\ttext", *("\t".join(row[key] for key in ("id", "label", "text")) for row in rows)]
        (folder / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    options = read_options(
        __doc__,
        split=None,
        exclude=None,
        teacher=None,
        labels=None,
        validation=None,
        test=None,
        work="",
        students=["ngram", "cnn"],
        lengths=[512, 100_000, 128, 256],
        steps=200,
        batch_size=64,
        output=Path,
    )
    if options.split:
        split(Path(options.split), options.exclude and Path(options.exclude), options.output)
        return
    teacher, work = Model.open(options.teacher), Path(options.work)
    validation, test = rows_of(options.validation, "validation"), rows_of(options.test, "test")
    gold, table = np.array(teacher.task.gold(test, teacher.labels, "test")), list[list[str]]()
    for name in options.students:
        recipe: StudentRecipe = load_recipe("students", name)
        training = replace(recipe.training, max_steps=options.steps, batch_size=options.batch_size, evaluations=4)
        predictions, long = dict[int, np.ndarray](), np.zeros(len(test), bool)
        for length in options.lengths:
            path, cut = work / f"{name}-{length}", options.lengths[0]
            if not (path / "onnx").exists():
                given = {"labels": [options.labels], "validation": validation, "max_length": length, "threads": 1}
                distill(teacher, replace(recipe, training=training), path / "torch", device="cpu", **given)
                export(path / "torch", path / "onnx")
            model = load(path / "onnx", compute=Compute("cpu", 1))
            found = model.predict([row.text for row in test])
            predictions[length] = np.array([model.labels.index(one["label"]) for one in found])
            long = np.array([one.get("truncated", False) for one in found]) if length == cut else long
            seconds = Model.open(path / "torch").manifest.notes["seconds"]
            line = {
                "student": name,
                "max_length": length,
                "cut_rows": sum(one.get("truncated", False) for one in found),
                "steps": options.steps,
                "batch_size": options.batch_size,
                "seconds": seconds,
                "all": measured(predictions[length], predictions[cut], gold),
                "longer": measured(predictions[length][long], predictions[cut][long], gold[long]),
                **provenance(),
            }
            replace_line(options.output, line, "student", "max_length")
            shown = ["{accuracy} {points:+} {points_interval}".format(**line[rows]) for rows in ("all", "longer")]
            table.append([name, f"{length:,}", f"{line['cut_rows']:,}", *shown])
            print(json.dumps({key: line[key] for key in ("student", "max_length", "all", "longer")}), flush=True)
    print(columns(["student", "tokens", "cut", f"all {len(gold):,}", f"longer than {options.lengths[0]:,}"], table))


if __name__ == "__main__":
    main()
