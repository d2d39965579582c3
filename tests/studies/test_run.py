"""A whole study: every stage from its own room, once, in one directory."""

from __future__ import annotations

import csv
import importlib
import json
from contextlib import ExitStack
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

from compress import recipes
from compress.benchmarking.benchmark import BenchmarkOutput
from compress.benchmarking.lockfile import read_lock
from compress.benchmarking.results.files import Results
from compress.errors import CompressError
from compress.labelling.label_dir import LabelDir
from compress.models.manifest import Manifest
from compress.models.model_dir import Model
from compress.models.output_dir import alone, finish, writing
from compress.pruning import prune as prune_module
from compress.requests.training import Run, run
from compress.studies import run as run_module
from compress.studies.data import open_study_rows
from compress.studies.journal import Stages
from compress.studies.plan import command, control_names, planned_students
from tests.support.training_data import (
    STUDY_HEAD,
    TINY_STUDENT,
    write_study_data,
)

STUDY = (
    """
title = "A tiny study"
description = "of nothing"
seed = 1
"""
    + STUDY_HEAD
    + """
[[students]]
recipe = "FOLDER/small.toml"
quantize = false
training = { epochs = 2.0 }
seeds = [1, 5]
[[prune]]
heads = "50%"
recover = 1.0
quantize = false
training = { max_steps = 2, batch_size = 32, precision = "float32" }
[benchmark]
batch_sizes = [1]
rounds = 3
runtimes = ["torch"]
"""
)


class Case:
    """A folder with data, a teacher and a study about them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data, self.models, self.out = folder, folder / "data", folder / "models", folder / "study"
        write_study_data(self.data, self.models)
        (folder / "small.toml").write_text(TINY_STUDENT)
        self.recipe = folder / "tiny.toml"
        self.recipe.write_text(STUDY.replace("FOLDER", str(folder)))

    def asked(self, **options: Any) -> dict[str, Any]:
        return {"data_root": self.data, "model_root": self.models, "device": "cpu", "threads": 1, **options}

    def run(self, **options: Any) -> Path:
        return run(str(self.recipe), self.out, **self.asked(**options))

    def rewrite(self, old: str, new: str) -> None:
        text = self.recipe.read_text()
        assert old in text
        self.recipe.write_text(text.replace(old, new))


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Case:
    case = Case(tmp_path_factory.mktemp("case"))
    assert case.run() == case.out
    return case


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def stamps(directory: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in directory.rglob("*")}


def test_every_stage_has_its_directory_and_nothing_else_is_left(finished: Case) -> None:
    assert {path.name for path in finished.out.iterdir()} == {
        "study.json",
        "labels",
        "small",
        "small-control",
        "small-seed-5",
        "small-seed-5-control",
        "pruned-50",
        "results.jsonl",
        "results.lock.json",
        "report",
    }
    journal = json.loads((finished.out / "study.json").read_text())
    assert set(journal) == {path.name for path in finished.out.iterdir()} - {"study.json", "results.lock.json"}


def test_the_stages_are_made_from_each_other(finished: Case) -> None:
    teacher = Model.open(finished.models / "tiny-bert")
    for name in ("small", "small-control", "pruned-50"):
        manifest = Model.open(finished.out / name).manifest
        assert manifest.parents[0]["sha256"] == teacher.sha256
        assert manifest.seeds == {"seed": 1}
    assert LabelDir.open(finished.out / "labels").rows == 60 + 40  # the pool and the gold rows


def test_student_and_control_took_the_same_steps(finished: Case) -> None:
    student, control = (Model.open(finished.out / name).manifest for name in ("small", "small-control"))
    assert student is not None and control is not None
    assert student.notes["planned_steps"] == control.notes["planned_steps"] == 7  # 2 * 100 / 32
    assert (student.notes["control"], control.notes["control"]) == (False, True)


def test_a_student_is_trained_once_for_each_seed(finished: Case) -> None:
    names = {"small": 1, "small-control": 1, "small-seed-5": 5, "small-seed-5-control": 5}
    manifests = {name: Model.open(finished.out / name).manifest for name in names}
    assert {name: m.seeds["seed"] for name, m in manifests.items() if m} == names
    assert Model.open(finished.out / "small").sha256 != Model.open(finished.out / "small-seed-5").sha256
    lines = Results.open(finished.out / "results.jsonl")
    fields = ("training_seed", "control_of", "control")
    assert {line.model: tuple(getattr(line, name) for name in fields) for line in lines if line.model in names} == {
        "small": (1, "", "small-control"),
        "small-control": (1, "small", ""),
        "small-seed-5": (5, "", "small-seed-5-control"),
        "small-seed-5-control": (5, "small-seed-5", ""),
    }
    assert {line.training_steps for line in lines if line.model in names} == {7}


def test_a_study_measures_baselines_fitted_on_its_training_rows(finished: Case) -> None:
    lines = Results.open(finished.out / "results.jsonl")
    baselines = {line.model for line in lines if line.kind == "baseline"}
    assert {"majority", "tfidf"} <= baselines
    lock = read_lock(finished.out / "results.lock.json")
    assert lock.train is not None and lock.train.rows == 40 and lock.settings.baselines is True


def test_the_study_replaces_values_of_the_recipes(finished: Case) -> None:
    manifest = Model.open(finished.out / "small").manifest
    assert manifest.recipe["training"]["epochs"] == 2.0
    pruned = Model.open(finished.out / "pruned-50").manifest
    assert pruned is not None and pruned.notes["recovery"]["planned_steps"] == 2
    assert pruned.notes["removed"].startswith("4 of 8 heads")


def test_every_model_is_measured_on_the_test_set(finished: Case) -> None:
    lines = [json.loads(line) for line in (finished.out / "results.jsonl").read_text().splitlines()]
    assert {"tiny-bert", "small", "small-control", "pruned-50"} <= {line["model"] for line in lines if "model" in line}
    assert {line["metric_rows"] for line in lines if "metric_rows" in line} == {24}
    assert not any(str(finished.folder) in line for line in map(json.dumps, lines))  # no paths of this host


def test_the_report_is_there(finished: Case) -> None:
    page = (finished.out / "report" / "report.html").read_text(encoding="utf-8")
    assert "<h1>A tiny study</h1>" in page
    assert "small-control" in page and "pruned-50" in page
    assert "Validation of small-seed-5" in page and "Loss of pruned-50" in page
    assert "Validation of small-control" not in page  # it is beside its student
    with (finished.out / "pruned-50" / "pruning_curve.csv").open() as handle:
        assert [row["recovered"] for row in csv.DictReader(handle)][-1] == "True"


def test_a_second_call_does_nothing(finished: Case) -> None:
    before = stamps(finished.out)
    finished.run()
    assert stamps(finished.out) == before


def test_a_changed_recipe_is_refused_and_changes_nothing(finished: Case) -> None:
    before, recipe = stamps(finished.out), finished.recipe.read_text()
    try:
        finished.rewrite("epochs = 2.0", "epochs = 3.0")
        with pytest.raises(CompressError, match="small was made from other data or settings.*--force"):
            finished.run()
    finally:
        finished.recipe.write_text(recipe)
    assert stamps(finished.out) == before


def test_changed_data_is_refused(finished: Case) -> None:
    file = finished.data / "tiny" / "train.csv"
    text = file.read_text()
    try:
        file.write_text(text + "one more row,positive\n")
        with pytest.raises(CompressError, match="was made from other data or settings"):
            finished.run()
    finally:
        file.write_text(text)


def test_a_stage_that_was_removed_is_made_again(finished: Case) -> None:
    file = finished.out / "report" / "report.html"
    before = stamps(finished.out / "small")
    for path in sorted((finished.out / "report").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    (finished.out / "report").rmdir()
    finished.run()
    assert file.is_file() and stamps(finished.out / "small") == before


def test_stopped_in_every_stage_it_goes_on_and_repeats_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    stops: set[str] = set()

    def stub(name: str, module: str) -> None:
        original = getattr(importlib.import_module(module), name)

        def replacement(*given: object, **named: object) -> object:
            called.append(name)
            if name in stops:
                raise KeyboardInterrupt
            return original(*given, **named)

        monkeypatch.setattr(f"{module}.{name}", replacement)

    stub("label", "compress.labelling.label")
    stub("distill", "compress.training.distill")
    stub("prune", "compress.pruning.prune")
    monkeypatch.setattr("compress.reporting.report.report", lambda request: Path(request.output).mkdir())

    def benchmark(*given: object, output: BenchmarkOutput, **named: object) -> None:
        called.append("benchmark")
        if "benchmark" in stops:
            raise KeyboardInterrupt
        Path(output.path or "").write_text("{}\n")

    monkeypatch.setattr(run_module, "benchmark", benchmark)
    done: set[str] = set()
    for stage in ("label", "distill", "prune", "benchmark"):
        stops = {stage}
        with pytest.raises(KeyboardInterrupt):
            case.run()
        before, done = done, {path.name for path in case.out.iterdir()}
        assert called[-1] == stage and before < done
    stops = set()
    case.run()
    assert called == ["label"] * 2 + ["distill"] * 5 + ["prune"] * 2 + ["benchmark"] * 2  # each stopped once
    assert done < {path.name for path in case.out.iterdir()} > {"results.jsonl", "report"}


def test_what_another_command_makes_is_left_for_the_end(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other command makes the student until this one begins to prune."""
    case.rewrite("quantize = false", "quantize = true")
    monkeypatch.setattr(
        "compress.quantization.quantize.quantize", lambda asked: copytree(asked.model.path, asked.output)
    )
    monkeypatch.setattr("compress.reporting.report.report", lambda request: Path(request.output).mkdir())
    monkeypatch.setattr(run_module, "benchmark", lambda *given, output, **named: output.path.write_text("{}\n"))
    prunes = prune_module.prune
    with ExitStack() as other:

        def prune(*given: Any, **named: Any) -> object:
            other.close()
            return prunes(*given, **named)

        monkeypatch.setattr(prune_module, "prune", prune)
        other.enter_context(Stages.open(case.out, False))
        other.enter_context(alone(case.out / "small.stage"))
        case.run()
    order = ["labels", "teacher-int8", "small-control", "small-seed-5", "small-seed-5-control", "pruned-50"]
    order += ["pruned-50-int8", "small", "small-int8", "results.jsonl", "report"]
    assert [*json.loads((case.out / "study.json").read_text())] == order
    assert "failed" not in caplog.text


def test_the_teacher_labels_in_the_precision_of_the_study(case: Case) -> None:
    case.rewrite('model = "tiny-bert"', 'model = "tiny-bert"\nprecision = "bfloat16"')
    case.run()
    plan = json.loads((case.out / "labels" / "compress.json").read_text())["notes"]
    assert (plan["runtime"], plan["precision"]) == ("torch", "bfloat16")
    case.rewrite("bfloat16", "float32")
    with pytest.raises(CompressError, match=r"labels was made from other data or settings .* \(changed: precision\)"):
        case.run()


def test_what_only_people_read_makes_nothing_anew(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    case.run()
    before = stamps(case.out)
    text = (case.folder / "small.toml").read_text()
    (case.folder / "small.toml").write_text(
        text.replace('"tiny"', '"as small as can be"').replace(
            "[architecture]", 'missing = ["nearly everything"]\n[architecture]', 1
        )
    )
    case.run()
    assert stamps(case.out) == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"{student}"', '"bilsm"', "Did you mean 'bilstm'"),
        ("epochs = 2.0", "epoch = 2.0", "unknown key epoch. Did you mean 'epochs'"),
        ("max_steps = 2", "max_step = 2", "unknown key max_step. Did you mean 'max_steps'"),
        ('"50%"', '"160%"', "--heads 160% is not between 0% and 100%"),
        ('["torch"]', '["toch"]', "unknown runtime 'toch'.*Did you mean 'torch'"),
        (
            'set = "tiny", split = "test"',
            'set = "tinny", split = "test"',
            "There is no set 'tinny'.*Did you mean 'tiny'",
        ),
        ('split = "test"', 'split = "train"', "All 40 rows of train also occur in test"),
        ("seeds = [1, 5]", "seeds = [1, 1]", "seeds names one twice"),
        ("seeds = [1, 5]", "rows = 10", "set control = false"),
        ("seeds = [1, 5]", 'phases = [{ losses = [{ name = "kl" }] }]', "another student: give it a name"),
        ("seeds = [1, 5]", 'name = "../other"', "'../other' is no name of a folder"),
    ],
)
def test_a_fault_shows_before_anything_is_made(old: str, new: str, message: str, case: Case) -> None:
    case.rewrite(
        str(case.folder / "small.toml") if old == '"{student}"' else old, new.strip('"') if "stud" in old else new
    )
    with pytest.raises(CompressError, match=message):
        case.run()
    assert not case.out.exists() or {path.name for path in case.out.iterdir()} <= {"study.json"}


def test_a_student_without_the_encoder_that_it_learns_from_has_nothing_made_for_it(case: Case) -> None:
    other = "[[students]]\nrecipe = 'tinybert-4'\n"  # which reads variants of the text that the teacher labels
    case.recipe.write_text(case.recipe.read_text().replace("[[prune]]", other + "[[prune]]"))
    why = "failed: tinybert-4 .*nothing says which one tiny-bert was fine-tuned from; name it with .*"
    with pytest.raises(CompressError, match=why + "nothing was measured"):
        case.run(only=("tinybert-4",))
    assert {path.name for path in case.out.iterdir()} == {"labels", "study.json"}
    case.run(only=("small",))
    assert {line.model for line in Results.open(case.out / "results.jsonl")} > {"small"}


def test_a_teacher_whose_place_is_not_known(case: Case) -> None:
    with pytest.raises(CompressError, match="give --model-root or set COMPRESS_MODELS"):
        case.run(model_root=None)


def test_a_directory_that_is_not_a_study_is_left_alone(case: Case) -> None:
    case.out.mkdir()
    (case.out / "thesis.tex").write_text("years of work")
    with pytest.raises(CompressError, match="is not empty and is not a study"):
        case.run(force=True)
    assert [path.name for path in case.out.iterdir()] == ["thesis.tex"]


def test_a_study_replaces_its_own_stages_and_nothing_else(tmp_path: Path) -> None:
    def make(path: Path, text: str) -> None:
        with writing(path, {"text": text}) as working:
            (working / "weights").write_text(text)
            finish(working, Manifest(stage="test", kind="labels"))

    forced = Stages(tmp_path / "out", force=True)
    forced.make("small", {"seed": 1}, lambda path: make(path, "first"))
    small, others = tmp_path / "out" / "small", tmp_path / "out" / "others"
    forced = Stages(tmp_path / "out", force=True)
    (small / "notes.txt").write_text("mine")
    forced.make("small", {"seed": 2}, lambda path: make(path, "second"))
    aside = tmp_path / "out" / "small.old"
    assert (aside / "notes.txt").read_text() == "mine" and (aside / "weights").read_text() == "first"
    assert (small / "weights").read_text() == "second" and not (small / "notes.txt").exists()
    make(others, "theirs")
    with pytest.raises(CompressError, match="others already exists"):
        Stages(tmp_path / "out", force=False).make("others", {}, lambda path: make(path, "ours"))
    assert (others / "weights").read_text() == "theirs"
    others.rename(tmp_path / "elsewhere")
    (tmp_path / "out" / ".others.partial").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CompressError, match="is no directory; move it away"):
        forced.make("others", {}, lambda path: make(path, "ours"))
    assert (tmp_path / "elsewhere" / "weights").read_text() == "theirs"


def test_a_study_says_how_it_is_measured(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    keys = ("threads = [2, 1]", "lengths = [16]", "baselines = false", 'reference_models = ["bert-base"]')
    case.rewrite("rounds = 3", "\n".join(("rounds = 3", *keys)))
    recipe = recipes.load_recipe("benchmarks", str(case.recipe))
    assert recipe.benchmark.thread_counts == (2, 1)
    given: dict[str, Any] = {}

    def benchmark(teacher: object, models: object, data: object, settings: object, **named: Any) -> None:
        given.update(vars(settings) | named)
        named["output"].path.write_text("{}\n")

    monkeypatch.setattr(run_module, "benchmark", benchmark)
    request = Run("tiny", case.out, **case.asked(teacher=case.models / "tiny-bert"))
    study = run_module.Study(request, recipe, Stages(case.out, force=False))
    said = command(request, recipe, ["small"])
    study.measured(Model.open(case.models / "tiny-bert"), [], said)
    assert given["output"].command == said == "compress run tiny --teacher tiny-bert --only small"
    assert given["threads"] == (2, 1) and given["lengths"] == (16,) and given["reference_models"] == ("bert-base",)
    assert given["baselines"] is False and given["train"] is study.rows.train and given["pruning_steps"] is False


def test_a_study_takes_removals_apart_where_a_model_had_several(
    case: Case, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    case.rewrite("rounds = 3", "rounds = 3\npruning_steps = true")
    with pytest.raises(CompressError, match="no prune has two kinds of them"):
        recipes.load_recipe("benchmarks", str(case.recipe))
    case.rewrite('heads = "50%"', 'heads = "50%"\nlayers = "1"')
    recipe = recipes.load_recipe("benchmarks", str(case.recipe))
    asked: list[bool] = []

    def benchmark(teacher: object, models: object, data: object, settings: Any, **named: Any) -> None:
        asked.append(settings.pruning_steps)
        named["output"].path.write_text("{}\n")

    monkeypatch.setattr(run_module, "benchmark", benchmark)
    study = run_module.Study(Run("tiny", case.out, **case.asked()), recipe, Stages(case.out, force=False))
    teacher = Model.open(case.models / "tiny-bert")
    shapes = [{"removal": name, "config": {}} for name in ("nothing", "layers", "heads")]
    study.measured(teacher, [Model(teacher.path, Manifest(stage="prune", notes={"shapes": shapes}))], "")
    assert asked == [True] and "none of these models had two" not in caplog.text
    other = Manifest(stage="prune", notes={"shapes": shapes[:2]}, files={"other": {}})
    study.measured(teacher, [Model(teacher.path, other)], "")
    assert asked == [True, False] and "none of these models had two" in caplog.text


def add_student(case: Case, more: str) -> None:
    case.rewrite("[[prune]]", f'[[students]]\nrecipe = "{case.folder / "small.toml"}"\n{more}\n[[prune]]')


def test_a_student_may_learn_in_phases_of_the_study(case: Case) -> None:
    """It is another student than the recipe's, of nothing that was published, with the same control."""
    phases = 'phases = [{ losses = [{ name = "kl", temperature = 4.0 }] }]'
    add_student(case, f'name = "softened"\nseeds = [1, 5]\ntraining = {{ epochs = 2.0 }}\n{phases}')
    recipe = recipes.load_recipe("benchmarks", str(case.recipe))
    students = planned_students(recipe)
    first, second = (student.recipe for student in students)
    assert (first.name, second.name) == ("small", "softened")
    (loss,) = second.losses
    assert (loss.name, loss.options) == ("kl", {"temperature": 4.0})
    assert second.architecture == first.architecture and second.training == first.training
    assert set(control_names(students).values()) == {"small-control", "small-seed-5-control"}


def test_a_pruned_model_recovers_on_train_without_other_text(case: Case) -> None:
    case.rewrite('unlabeled = [{ set = "tiny", split = "unlabeled", rows = 60 }]\n', "")
    student = case.recipe.read_text().partition("[[students]]")[2].partition("[[prune]]")[0]
    case.rewrite(f"[[students]]{student}", "")
    (case.data / "tiny" / "unlabeled.txt").unlink()
    case.run()
    assert {path.name for path in case.out.iterdir() if path.is_dir()} == {"labels", "pruned-50", "report"}
    manifest = Model.open(case.out / "pruned-50").manifest
    assert manifest.notes["removed"].startswith("4 of 8 heads")
    assert [data["name"] for data in manifest.data if data["role"] == "unlabeled"] == ["train"]


@pytest.mark.parametrize("more", ['heads = "50"', 'heads = "10%"\nname = "small"'])
def test_two_models_of_one_name_are_refused(case: Case, more: str) -> None:
    case.rewrite("[benchmark]", f"[[prune]]\n{more}\n[benchmark]")
    with pytest.raises(CompressError, match="names two models '(pruned-50|small)'; give the other a name"):
        case.run()


def test_two_students_of_one_name_are_refused(case: Case) -> None:
    add_student(case, "seeds = [7]")
    with pytest.raises(CompressError, match="names two models 'small'; give the other a name"):
        case.run()


def test_validation_may_be_a_slice_of_train_in_whole_groups(case: Case) -> None:
    case.rewrite('validation = { set = "tiny", split = "validation" }', "validation_slice = { share_of_train = 0.2 }")
    recipe = recipes.load_recipe("benchmarks", str(case.recipe))
    rows = open_study_rows(recipe, None, case.data)
    assert len(rows.train) + len(rows.validation) == 40 and len(rows.validation) > 0
    assert not {row.text for row in rows.train} & {row.text for row in rows.validation}


def test_rows_that_one_role_leaves_are_another_roles(case: Case) -> None:
    case.rewrite('train = { set = "tiny", split = "train" }', 'train = { set = "tiny", split = "train", rows = 27 }')
    case.rewrite('test = { set = "tiny", split = "test" }', 'test = { set = "tiny", split = "train", beyond = 27 }')
    rows = open_study_rows(recipes.load_recipe("benchmarks", str(case.recipe)), None, case.data)
    train, test = ({row.text for row in role} for role in (rows.train, rows.test))
    assert len(train) == 27 and len(test) == 13 and not train & test
    with pytest.raises(CompressError, match="beyond = -1 must be at least 0"):
        case.rewrite("beyond = 27", "beyond = -1")
        recipes.load_recipe("benchmarks", str(case.recipe))
