"""Labels: the teacher's logits row by row, and the same bytes whatever happened in between."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from compress.data import Example, ExampleSource, TextSource, content_sha256, open_source
from compress.errors import CompressError
from compress.inference.compute import Compute
from compress.labelling import label as label_module
from compress.labelling.label import choose_runtime, compare_precisions, plan_for, teacher_logits
from compress.labelling.label_dir import SHARD_ROWS, LabelDir, write_shard
from compress.models.model_dir import Model
from compress.tasks import default
from tests.labelling.conftest import SHARD
from tests.support import forked
from tests.support.labelling import LabelOptions, label
from tests.support.tagging import tagger
from tests.support.tiny import bilstm, classifier, examples, onnx_directory, tokenizer, torch_directory, write

ROWS = 40
BOTH = ["float32", "bfloat16"]


def text_file(path: Path, rows: int = ROWS) -> Path:
    path.write_text("".join(f"{row.text}\n" for row in examples(rows)))
    return path


def pool(path: Path) -> TextSource:
    return open_source(path, role="unlabeled", labelled=False)


def reference(directory: Path, texts: list[Any], family: str = "bert") -> np.ndarray:
    """One text at a time, without any padding, through the stock model."""
    model, tokens = Model.open(directory).load(), tokenizer(family)
    with torch.no_grad():
        rows = [model(**tokens(*text, return_tensors="pt")).logits[0] for text in texts]
    return torch.stack(rows).numpy()


def tree(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture
def shards_written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the shards that were computed, as they are written."""
    written: list[int] = []
    original = label_module.write_shard

    def counted(directory: Path, number: int, *rest: Any) -> None:
        written.append(number)
        original(directory, number, *rest)

    monkeypatch.setattr(label_module, "write_shard", counted)
    return written


def test_rows_keep_their_order_and_get_the_teachers_logits(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    made = label(teacher, pool(text_file(tmp_path / "pool.txt")), tmp_path / "labels")
    rows = list(made)
    assert [example.text for example, _ in rows] == [row.text for row in examples(ROWS)]
    logits = np.stack([logits for _, logits in rows])
    assert logits.dtype == np.float32
    np.testing.assert_allclose(logits, reference(teacher, [(e.text,) for e, _ in rows]), atol=1e-5)


@pytest.mark.parametrize("kind", ["bert", "bilstm"])
def test_the_fastest_runtime_agrees_with_torch(kind: str, tmp_path: Path) -> None:
    directory = torch_directory(kind)
    assert choose_runtime(directory, "cpu") == ("onnxruntime", "cpu")
    made = label(
        onnx_directory(kind), pool(text_file(tmp_path / "pool.txt")), tmp_path / "labels", compute=Compute(threads=1)
    )
    assert made.manifest.notes["runtime"] == "onnxruntime"
    rows = list(made)
    expected = reference(directory.path, [(e.text,) for e, _ in rows])
    np.testing.assert_allclose(np.stack([logits for _, logits in rows]), expected, atol=1e-4)


def test_the_export_of_a_torch_teacher_is_temporary(teacher: Path, tmp_path: Path, label_as_users_do: None) -> None:
    made = label(
        teacher, pool(text_file(tmp_path / "pool.txt")), tmp_path / "labels", compute=Compute(device="cpu", threads=1)
    )
    assert made.manifest.notes["runtime"] == "onnxruntime"
    assert sorted(tree(made.path)) == ["compress.json", "shard-00000.json", "shard-00000.parquet"]
    assert not (tmp_path / ".labels.partial").exists()


def test_the_manifest_says_how_and_from_what(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    source = pool(text_file(tmp_path / "pool.txt"))
    made = LabelDir.open(
        label(
            teacher, source, tmp_path / "labels", compute=Compute(threads=1), options=LabelOptions(max_length=16)
        ).path
    )
    opened = Model.open(teacher)
    assert made.rows == ROWS and made.teacher_sha256 == opened.sha256
    assert made.manifest.labels == opened.labels
    assert made.manifest.notes == {
        "runtime": "torch",
        "device": "cpu",
        "threads": 1,
        "max_length": 16,
        "precision": "float32",
        "reason": "",
        "batch_rows": 64,
        "shard_rows": SHARD,
        "windows": "",
    }
    (data,) = made.manifest.data
    assert data == {"role": "unlabeled", "name": "pool.txt", "rows": ROWS, "sha256": content_sha256(source)}


def test_every_shard_has_a_manifest_of_its_own(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    made = label(teacher, pool(text_file(tmp_path / "pool.txt", 20)), tmp_path / "labels")
    assert [pq.read_metadata(file).num_rows for file in sorted(made.path.glob("*.parquet"))] == [8, 8, 4]
    record = json.loads((made.path / "shard-00002.json").read_text())
    assert (record["shard"], record["rows"]) == (2, 4)
    assert record["teacher_sha256"] == made.teacher_sha256 and record["plan"]["runtime"] == "torch"
    assert {"sha256", "tokenizer_sha256"} <= set(record)


def test_a_shard_holds_at_most_2048_rows() -> None:
    assert label_module.Plan("torch", "cpu", 1, 64).shard_rows == SHARD_ROWS == 2048


def test_pairs_are_read_as_pairs(tmp_path: Path, small_shards: None) -> None:
    teacher = write(tmp_path / "teacher", classifier("bert"))
    pairs = [(row.text, other.text) for row, other in zip(examples(12), examples(13)[1:], strict=True)]
    lines = "".join(f"{one}\t{two}\n" for one, two in pairs)
    (tmp_path / "pairs.tsv").write_text("sentence1\tsentence2\n" + lines)
    rows = list(label(teacher, pool(tmp_path / "pairs.tsv"), tmp_path / "labels"))
    assert [(e.text, e.text_pair) for e, _ in rows] == pairs
    expected = reference(teacher, pairs)
    np.testing.assert_allclose(np.stack([logits for _, logits in rows]), expected, atol=1e-5)
    assert np.abs(expected - reference(teacher, [(one,) for one, _ in pairs])).max() > 1e-3


@pytest.mark.parametrize("task", ["classification", "tagging"])
def test_second_texts_that_nothing_reads_are_refused(task: str, tmp_path: Path, small_shards: None) -> None:
    mixed = [Example("the film"), Example("a bad", "plot")]
    model = classifier() if task == "classification" else tagger()
    said = "some are pairs of texts" if task == "classification" else "a tagger reads one text"
    with pytest.raises(CompressError, match=said):
        label(write(tmp_path / "model", model), ExampleSource(mixed, "mixed"), tmp_path / "labels")
    assert not (tmp_path / "labels").exists()
    with pytest.raises(CompressError, match="some are pairs of texts"):
        write_shard(tmp_path, 0, mixed, np.zeros((2, 2)), {}, default())


def test_a_regression_has_one_logit(tmp_path: Path, small_shards: None) -> None:
    teacher = write(tmp_path / "teacher", classifier("bert", labels=("score",)))
    made = label(teacher, pool(text_file(tmp_path / "pool.txt", 10)), tmp_path / "labels")
    assert made.manifest.task == "regression" and [logits.shape for _, logits in made] == [(1,)] * 10


def test_bfloat16_on_request_is_close_and_recorded(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    source = pool(text_file(tmp_path / "pool.txt", 20))
    made = label(
        teacher, source, tmp_path / "half", compute=Compute(threads=1), options=LabelOptions(precision="bfloat16")
    )
    assert made.manifest.notes["precision"] == "bfloat16" and made.manifest.notes["runtime"] == "torch"
    logits = np.stack([logits for _, logits in made])
    difference = np.abs(logits - reference(teacher, [(e.text,) for e, _ in made]))
    assert 0 < difference.max() < 0.1 * np.abs(logits).max()
    with pytest.raises(CompressError, match="needs a torch teacher, and .* is ONNX"):
        label(onnx_directory("bert"), source, tmp_path / "onnx", options=LabelOptions(precision="bfloat16"))


def test_auto_says_why_it_keeps_float32(teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = pool(text_file(tmp_path / "pool.txt", 20))
    monkeypatch.setattr(label_module, "supports_bfloat16", lambda *_: False)
    kept = label(teacher, source, tmp_path / "kept", compute=Compute(threads=1), options=LabelOptions(precision="auto"))
    assert kept.manifest.notes["precision"] == "float32"
    assert kept.manifest.notes["reason"] == "this hardware does not compute in bfloat16"
    kept = label(
        onnx_directory("bert"),
        source,
        tmp_path / "onnx",
        compute=Compute(threads=1),
        options=LabelOptions(precision="auto"),
    )
    assert kept.manifest.notes["reason"] == "an ONNX teacher has one precision"


def test_auto_takes_bfloat16_where_it_is_faster_and_close(
    teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the real runs; how long they take is given, because a tiny model is not faster in bfloat16."""
    source = pool(text_file(tmp_path / "pool.txt", 20))
    monkeypatch.setattr(label_module, "supports_bfloat16", lambda *_: True)
    monkeypatch.setattr(label_module, "MOST_DIFFERENCE", 0.2)  # the logits of a random model hardly differ by row
    monkeypatch.setattr(label_module.time, "perf_counter", itertools.count(0, 0.5).__next__)
    same = label(
        teacher, source, tmp_path / "same", compute=Compute(threads=1), options=LabelOptions(precision="auto")
    ).manifest.notes
    assert same["precision"] == "float32" and same["reason"].startswith("bfloat16 is x1.00 (")
    half = label(
        teacher, source, tmp_path / "half", compute=Compute(threads=1), options=LabelOptions(precision="bfloat16")
    )
    monkeypatch.setattr(label_module, "compare_precisions", lambda runs, *_, **__: (list(runs) == BOTH, "reason"))
    auto = label(teacher, source, tmp_path / "auto", compute=Compute(threads=1), options=LabelOptions(precision="auto"))
    notes = {**half.manifest.notes, "reason": "reason"}
    assert auto.manifest.notes == notes
    assert auto.manifest.files == half.manifest.files  # the reason, which tells timings, is no part of the shards


@pytest.mark.parametrize(
    ("seconds", "factor", "chosen", "reason"),
    [
        (0.001, 1.0, True, "bfloat16 is x"),
        (0.02, 1.0, False, "bfloat16 is x"),
        (0.001, 1.1, False, "bfloat16 gives the same label in 100.0% of 40, with logits that differ by 10.00%"),
        (0.001, np.nan, False, "bfloat16 fails: the model gave logits that are not finite"),
    ],
)
def test_the_faster_precision_is_chosen_if_close(
    seconds: float, factor: float, chosen: bool, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    monkeypatch.setattr(label_module.time, "perf_counter", clock.perf_counter)
    logits = np.tile(np.array([[1.0, -1.0], [-1.0, 1.0]], np.float32), (32, 1))

    def taking(seconds: float, logits: np.ndarray) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
        def run(arrays: dict[str, np.ndarray]) -> np.ndarray:
            clock.now += seconds
            return logits[: len(arrays["input_ids"])]

        return run

    runs = {"float32": taking(0.005, logits), "bfloat16": taking(seconds, factor * logits)}
    found, why = compare_precisions(runs, examples(40), tokenizer("bert"), max_length=16, task=default())
    assert found == chosen and why.startswith(reason)


@pytest.mark.parametrize(("noise", "close"), [(0.0, True), (0.01, True), (0.05, False)])
def test_logits_are_close_within_two_hundredths_of_their_spread(noise: float, close: bool) -> None:
    exact = np.stack([np.linspace(-2, 2, 400), np.linspace(2, -2, 400)], axis=1)
    errors = np.random.default_rng(0).standard_normal(exact.shape)
    found, reason = label_module.is_close(
        np.concatenate([exact, [[np.nan] * 2]]),
        np.concatenate([exact, exact[:1]]) + noise * exact.std() * np.concatenate([errors, errors[:1]]),
    )
    assert found == close and "of 400, with logits that differ by " in reason


def test_scores_have_no_labels_to_compare() -> None:
    exact = np.linspace(0, 5, 100)[:, None]
    assert label_module.is_close(exact, exact) == (True, "gives logits that differ by 0.00%")
    assert not label_module.is_close(exact, exact * 1.1)[0]


def test_logits_are_not_close_where_labels_change() -> None:
    exact = np.tile([[0.001, 0.0], [5.0, -5.0]], (100, 1))
    changed = exact.copy()
    changed[:4:2, 0] = -0.001
    assert label_module.is_close(exact, exact)[0]
    found, reason = label_module.is_close(exact, np.where(exact == 0.001, -0.001, exact))
    assert not found and "the same label in 50.0% of 200" in reason
    assert label_module.is_close(exact, changed)[0]  # two of 200


@pytest.mark.parametrize(("given", "used"), [(0, 64), (16, 16), (500, 64)])
def test_texts_are_cut_to_what_the_teacher_can_read(given: int, used: int, teacher: Path) -> None:
    opened = Model.open(teacher)
    plan = plan_for(opened, opened.tokenizer, compute=Compute(device="cpu", threads=1), max_length=given)
    assert plan.max_length == used


def test_a_text_longer_than_the_teacher_can_read_is_cut(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    (tmp_path / "pool.txt").write_text("film " * 500 + "\nplot\n")
    made = label(teacher, pool(tmp_path / "pool.txt"), tmp_path / "labels")
    expected = reference(teacher, [("film " * 62,)])
    np.testing.assert_allclose(next(iter(made))[1], expected[0], atol=1e-5)
    assert made.manifest.notes["truncated"] == [{"max_length": 64, "rows": 2, "truncated": 1}]


def test_logits_of_rows_in_memory(teacher: Path) -> None:
    rows = examples(10)
    np.testing.assert_allclose(
        teacher_logits(Model.open(teacher), rows), reference(teacher, [(r.text,) for r in rows]), atol=1e-5
    )


# Interrupted


def stop_after(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    original = label_module.write_shard

    def stopping(directory: Path, number: int, *rest: Any) -> None:
        if number == shards:
            raise KeyboardInterrupt
        original(directory, number, *rest)

    monkeypatch.setattr(label_module, "write_shard", stopping)


@pytest.fixture
def half_done(teacher: Path, tmp_path: Path, small_shards: None) -> Iterator[Path]:
    """``labels`` stopped after two of five shards; the unfinished directory."""
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, patch)
        with pytest.raises(KeyboardInterrupt):
            label(teacher, pool(text_file(tmp_path / "pool.txt")), tmp_path / "labels")
    assert not (tmp_path / "labels").exists()
    yield tmp_path / ".labels.partial"


def test_a_second_start_computes_only_what_is_missing(
    half_done: Path, teacher: Path, tmp_path: Path, shards_written: list[int]
) -> None:
    resumed = label(teacher, pool(tmp_path / "pool.txt"), tmp_path / "labels")
    assert shards_written == [2, 3, 4]
    label(teacher, pool(tmp_path / "pool.txt"), tmp_path / "whole" / "labels")
    assert tree(resumed.path) == tree(tmp_path / "whole" / "labels")


@pytest.mark.parametrize(
    "damage",
    [
        lambda shard: shard.write_bytes(shard.read_bytes()[:-20]),
        lambda shard: shard.write_bytes(shard.read_bytes()[:-1] + b"?"),
        lambda shard: shard.unlink(),
        lambda shard: shard.with_suffix(".json").unlink(),
        lambda shard: shard.with_suffix(".json").write_text('{"sha'),
    ],
)
def test_a_damaged_shard_is_made_again(
    damage: Callable[[Path], Any], half_done: Path, teacher: Path, tmp_path: Path, shards_written: list[int]
) -> None:
    damage(half_done / "shard-00000.parquet")
    resumed = label(teacher, pool(tmp_path / "pool.txt"), tmp_path / "labels")
    assert shards_written == [0, 2, 3, 4]
    np.testing.assert_allclose(
        np.stack([logits for _, logits in resumed]), reference(teacher, [(r.text,) for r in examples(ROWS)]), atol=1e-5
    )


def test_text_that_changed_in_between_is_labelled_again(
    half_done: Path, teacher: Path, tmp_path: Path, shards_written: list[int]
) -> None:
    lines = (tmp_path / "pool.txt").read_text().splitlines()
    (tmp_path / "pool.txt").write_text("\n".join(["the very first film", *lines]) + "\n")
    resumed = label(teacher, pool(tmp_path / "pool.txt"), tmp_path / "labels")
    assert [e.text for e, _ in resumed] == ["the very first film", *lines]
    assert shards_written == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("change", ["teacher", "file", "length"])
def test_another_request_is_refused(change: str, half_done: Path, teacher: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"teacher": teacher, "unlabeled": pool(tmp_path / "pool.txt")}
    given["output"] = tmp_path / "labels"
    if change == "teacher":
        given["teacher"] = write(tmp_path / "other", classifier("bert", seed=1))
    elif change == "file":
        given["unlabeled"] = pool(text_file(tmp_path / "other.txt", 9))
    else:
        given["options"] = LabelOptions(max_length=12)
    with pytest.raises(CompressError, match="holds unfinished work of another command"):
        label(**given)
    assert label(**given, force=True).rows == (9 if change == "file" else ROWS)


def test_a_resumed_run_keeps_the_plan_of_the_first(
    half_done: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a host where the rule now gives something else, half of the rows must not come from another runtime."""
    monkeypatch.setattr(
        label_module, "plan_for", lambda *given, **named: label_module.Plan("onnxruntime", "cpu", 7, 64)
    )
    assert label(teacher, pool(tmp_path / "pool.txt"), tmp_path / "labels").manifest.notes["runtime"] == "torch"


KILLED = """
import functools, os, random, signal, sys, traceback
from dataclasses import replace
from pathlib import Path
import torch, transformers, pyarrow.parquet, compress.models.saving, compress.inference.runtimes.torch
from compress.data import open_source

teacher, text, folder, seed = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
from compress.labelling import label as label_module
from compress.requests.labelling import Label
plan = label_module.plan_for
label_module.plan_for = lambda *given, **named: replace(plan(*given, **named), shard_rows=8)
label_module.choose_runtime = lambda model, device, **_: ("torch", "cpu")
log = folder / "shards.log"

def counted(write, directory, number, *rest):
    with log.open("a") as handle:
        handle.write(f"{number}\\n")
    write(directory, number, *rest)

label_module.write_shard = functools.partial(counted, label_module.write_shard)

def kill_after(operations):
    # SIGKILL before the n-th change of a directory, or half way through the n-th file that is written.
    left = [operations]
    def armed(original, half):
        def method(*given, **named):
            left[0] -= 1
            if left[0] == 0:
                if half and len(given) > 1 and isinstance(given[1], (str, bytes)):
                    original(given[0], given[1][: len(given[1]) // 2], **named)
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*given, **named)
        return method
    for name in ("replace", "rename", "unlink", "mkdir", "write_text", "rmdir"):
        setattr(Path, name, armed(getattr(Path, name), name == "write_text"))
    for name in ("rmdir", "unlink"):
        setattr(os, name, armed(getattr(os, name), False))

def start(output, operations=0):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if operations:
                kill_after(operations)
            source = open_source(text, role="unlabeled", labelled=False)
            label_module.label(Label(teacher, unlabeled=source, output=output, threads=1))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

assert start(folder / "whole" / "labels") == 0
log.unlink()
draw, kills = random.Random(seed), 0
while not (folder / "labels").exists():
    code = start(folder / "labels", draw.randint(2, 20))
    assert code in (0, -signal.SIGKILL), code
    kills += code != 0
    assert kills < 100
print(kills)
"""


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_again_and_again_it_ends_with_the_same_bytes(seed: int, teacher: Path, tmp_path: Path) -> None:
    text_file(tmp_path / "pool.txt")
    run = forked.run(["-c", KILLED, str(teacher), str(tmp_path / "pool.txt"), str(tmp_path), str(seed)])
    assert run.returncode == 0, run.stderr[-2000:]
    kills = int(run.stdout)
    assert kills >= 3
    left = {name: data for name, data in tree(tmp_path / "labels").items() if not name.startswith((".work/", ".lock"))}
    assert left == tree(tmp_path / "whole" / "labels")
    assert len((tmp_path / "shards.log").read_text().split()) <= ROWS // SHARD + kills  # at most one shard a kill
    LabelDir.open(tmp_path / "labels")


# Errors


def test_text_without_any_row_leaves_nothing_behind(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    (tmp_path / "pool.csv").write_text('text,n\n" ",1\n"",2\n')
    with pytest.raises(CompressError, match="pool.csv holds no text"):
        label(teacher, pool(tmp_path / "pool.csv"), tmp_path / "labels")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pool.csv"]


def test_a_length_that_tokenizers_do_not_cut_to_is_refused(teacher: Path, tmp_path: Path) -> None:
    for given, message in (
        (65, "--max-length 65 is more than the 64 tokens that"),
        (2**20 + 1, "must be at most 1048576"),
    ):
        with pytest.raises(CompressError, match=message):
            label(
                teacher,
                pool(text_file(tmp_path / "pool.txt", 5)),
                tmp_path / "labels",
                options=LabelOptions(max_length=given),
            )
    with pytest.raises(CompressError, match="max_length = 7 must be at least 8"):
        label(
            teacher, pool(text_file(tmp_path / "pool.txt", 5)), tmp_path / "labels", options=LabelOptions(max_length=7)
        )


def test_a_finished_directory_is_refused(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    source = pool(text_file(tmp_path / "pool.txt", 5))
    label(teacher, source, tmp_path / "labels")
    with pytest.raises(CompressError, match="already exists"):
        label(teacher, source, tmp_path / "labels")


def test_damaged_weights_are_noticed(teacher: Path, tmp_path: Path, small_shards: None) -> None:
    broken = classifier("bert")
    with torch.no_grad():
        broken.classifier.weight[0, 0] = float("nan")
    path = write(tmp_path / "broken", broken)
    with pytest.raises(CompressError, match="weights that are not finite numbers .classifier.weight"):
        label(path, pool(text_file(tmp_path / "pool.txt", 5)), tmp_path / "labels")
    assert not (tmp_path / "labels").exists()


@pytest.mark.parametrize(("device", "message"), [("tpu", "use auto, cpu or cuda"), ("cuda", "no usable GPU")])
def test_devices_that_are_not_there(device: str, message: str, teacher: Path) -> None:
    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this host has a GPU")
    with pytest.raises(CompressError, match=message):
        choose_runtime(Model.open(teacher), device)


@pytest.mark.parametrize("path", ["missing", "teacher"])
def test_what_is_not_a_label_directory(path: str, teacher: Path, tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="is not a finished label directory"):
        LabelDir.open(teacher if path == "teacher" else tmp_path / path)


def test_a_model_is_not_a_label_directory(tmp_path: Path) -> None:
    with pytest.raises(CompressError, match="is a directory of kind 'model', not of labels"):
        LabelDir.open(onnx_directory("bert").path)


def test_a_bilstm_can_be_a_teacher_too(tmp_path: Path, small_shards: None) -> None:
    path = write(tmp_path / "bilstm", bilstm())
    rows = list(label(path, pool(text_file(tmp_path / "pool.txt", 10)), tmp_path / "labels"))
    np.testing.assert_allclose(
        np.stack([logits for _, logits in rows]), reference(path, [(e.text,) for e, _ in rows]), atol=1e-5
    )
