"""Recipes: what is shipped loads, and a faulty one names all its faults at once."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from compress import plugins, recipes
from compress.errors import CompressError
from compress.recipes import Choice, Phase, StudentRecipe, StudyPrune, StudyRecipe, TeacherRecipe, Training
from compress.recipes.student import ROUNDING

SHIPPED = [(kind, name) for kind in recipes.RECIPE_KINDS for name in recipes.recipe_names(kind)]
STUDENT: dict[str, Any] = {
    "description": "a student",
    "architecture": {"name": "bilstm", "hidden_size": 8},
    "phases": [{"losses": [{"name": "kl", "weight": 2, "temperature": 3.0}]}],
}
STUDY: dict[str, Any] = {
    "title": "a study",
    "description": "of something",
    "data": {"train": {"set": "a"}, "validation": {"set": "b"}, "test": {"set": "c"}, "unlabeled": [{"set": "d"}]},
    "teacher": {"recipe": "minilm-l6"},
    "students": [{"recipe": "bilstm"}],
}


def faults(kind: type, table: dict[str, Any]) -> str:
    with pytest.raises(CompressError) as caught:
        recipes.parse(kind, table, source="mine.toml")
    return str(caught.value)


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_shipped_recipe_loads_and_fits_a_manifest(kind: Any, name: str) -> None:
    recipe = recipes.load_recipe(kind, name)
    assert isinstance(recipe, recipes.RECIPE_KINDS[kind].recipe) and recipe.name == name
    assert json.loads(json.dumps(recipes.resolved(recipe)))["name"] == name


def test_the_folders_are_not_empty() -> None:
    assert {"bilstm", "distilbert-6", "tinybert-4", "minilm-3"} <= set(recipes.recipe_names("students"))
    assert "minilm-l6" in recipes.recipe_names("teachers")
    assert {"quickstart", "sst2"} <= set(recipes.recipe_names("benchmarks"))


@pytest.mark.parametrize("study", recipes.recipe_names("benchmarks"))
def test_every_recipe_that_a_shipped_study_names_exists(study: str) -> None:
    recipe = recipes.load_recipe("benchmarks", study)
    for plan in recipe.students:
        student = recipes.load_recipe("students", plan.recipe)
        assert recipes.replace_training(student.training, plan.training, source=study)
    if recipe.teacher.recipe:
        assert recipes.load_recipe("teachers", recipe.teacher.recipe)


def test_a_choice_keeps_its_options_apart_from_name_and_weight() -> None:
    recipe = recipes.parse(StudentRecipe, STUDENT, source="mine.toml")
    assert recipe.architecture == Choice("bilstm", 1.0, {"hidden_size": 8})
    assert recipe.losses == (Choice("kl", 2.0, {"temperature": 3.0}),)
    assert recipe.training == Training()


def test_all_faults_come_at_once() -> None:
    message = faults(
        StudentRecipe,
        {
            "descripton": "typo",
            "zzz": 1,
            "architecture": {"name": "bilstn"},
            "phases": [{"losses": [{"name": "kl", "temprature": 2.0}, {"weight": 1.0}]}],
            "training": {"epochs": "three", "schedule": "exponential"},
        },
    )
    assert message.startswith("mine.toml has 8 faults: ")
    assert "?; unknown key zzz; description is missing; architecture: unknown architecture 'bilstn'" in message
    for fault in (
        "unknown key descripton. Did you mean 'description'?",
        "description is missing",
        "unknown architecture 'bilstn'",
        "loss 'kl' has no option 'temprature'; it has temperature. Did you mean 'temperature'?",
        "phases[0].losses[1] = {'weight': 1.0} is not a table with a name, such as { name = '...' }",
        "training.epochs = 'three' is not of type float",
        "training.schedule = 'exponential' is not one of 'linear', 'cosine' or 'constant'",
    ):
        assert fault in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"descriptio": "x"}, "unknown key descriptio. Did you mean 'description'?"),
        ({"training": {"epoch": 1}}, "unknown key training.epoch. Did you mean 'epochs'?"),
        ({"training": {"batch_size": 8.5}}, "training.batch_size = 8.5 is not of type int"),
        ({"training": {"batch_size": True}}, "training.batch_size = True is not of type int"),
        ({"training": 3}, "training = 3 is not a table"),
        ({"description": 3}, "description = 3 is not of type str"),
        ({"phases": [{"losses": {"name": "kl"}}]}, "losses = {'name': 'kl'} is not a list; write it in brackets"),
        ({"phases": {"losses": [{"name": "kl"}]}}, "]} is not a list; write [phases] as [[phases]]"),
        ({"architecture": "cnn"}, "architecture = 'cnn' is not a table with a name, such as { name = 'cnn' }"),
        ({"phases": []}, "phases is empty; a student needs at least one"),
        ({"phases": [{"losses": []}]}, "phases[0]: losses is empty; a phase needs at least one"),
        ({"phases": [{"losses": [{"name": "kl"}], "share": 0.0}]}, "phases[0]: share = 0.0 must be above 0"),
        ({"phases": [{"losses": [{"name": "kl", "temperature": 0.0}]}]}, "kl: temperature = 0.0 must be above 0"),
        ({"phases": [{"losses": [{"name": "kl", "weight": 0.0}]}]}, "kl: weight = 0.0 must be above 0"),
        ({"phases": [{"losses": [{"name": "kl"}], "masking": 1.0}]}, "masking = 1.0 must be at least 0 and below 1"),
        ({"phases": [{"losses": [{"name": "kl"}], "teacher": "encoder"}]}, "which an encoder does not give"),
        ({"phases": [{"losses": [{"name": "kl"}], "training": {"epochs": 2.0}}]}, "epochs cannot differ"),
        ({"phases": [{"losses": [{"name": "kl"}], "training": {"max_length": 64}}]}, "max_length cannot differ"),
        ({"phases": [{"losses": [{"name": "kl"}], "training": {"batch": 2}}]}, "unknown key batch"),
        ({"phases": [{"losses": [{"name": "kl"}], "frozen": ["body"]}]}, "frozen[0] = 'body' is not one of"),
        ({"phases": [{"losses": [{"name": "kl"}], "modifier": {"name": "x"}}]}, "unknown modifier 'x'"),
        (
            {"phases": [{"losses": [{"name": "kl"}], "modifier": {"name": "gradual-pruning", "heads": 4}}]},
            "gradual-pruning masks units that a student would keep all the same; 'compress prune' removes them",
        ),
        ({"vocabulary": {"size": 5}}, "vocabulary: size = 5 must be at least 100"),
        (
            {"vocabulary": {"size": 500}, "phases": [{"losses": [{"name": "hidden-cosine"}]}]},
            "use losses on logits of whole text only",
        ),
        (
            {"phases": [{"losses": [{"name": "kl", "weight": "two"}]}]},
            "phases[0].losses[0]: weight = 'two' is not a number",
        ),
        ({"phases": [{"losses": [{"name": "kll"}]}]}, "unknown loss 'kll'"),
        ({"architecture": {"name": "bilstm", "weight": 2.0}}, "architecture 'bilstm' has no option 'weight'"),
        ({"augmentation": {"by": {"name": "masking", "weight": 2.0}}}, "augmenter 'masking' has no option 'weight'"),
        ({"architecture": {"name": "bilstm", "hidden_size": "wide"}}, "hidden_size = 'wide' is not of type int"),
        ({"training": {"epochs": 0}}, "training: epochs = 0 must be above 0"),
        ({"training": {"epochs": float("nan")}}, "training.epochs = nan is not a number below"),
        ({"training": {"learning_rate": -1.0}}, "training: learning_rate = -1.0 must be above 0"),
        ({"training": {"max_length": 7}}, "training: max_length = 7 must be at least 8"),
        ({"training": {"warmup_share": 1.0}}, "training: warmup_share = 1.0 must be at least 0 and below 1"),
        ({"training": {"max_steps": -1}}, "training: max_steps = -1 must be at least 0"),
        ({"training": {"patience": -1}}, "training: patience = -1 must be at least 0"),
        ({"augmentation": {"by": {"name": "x"}}}, "unknown augmenter 'x'"),
    ],
)
def test_one_fault_of_a_student(change: dict[str, Any], message: str) -> None:
    assert message in faults(StudentRecipe, {**STUDENT, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"students": [], "prune": []}, "a study needs at least one of students and prune"),
        ({"data": {key: STUDY["data"][key] for key in ("train", "validation", "test")}}, "give data.unlabeled"),
        (
            {
                "data": {key: STUDY["data"][key] for key in ("train", "validation", "test")},
                "students": [],
                "prune": [{"heads": "60%"}],
                "budgets": {"small": {"rows": 9}},
            },
            "budgets.small.rows is of unlabelled sets, and there is none",
        ),
        ({"benchmark": {"pruning_steps": True}}, "no prune has two kinds of them; leave it out"),
        ({"teacher": {}}, "teacher: needs a recipe or a model"),
        ({"data": {**STUDY["data"], "validation_slice": {"share_of_train": 0.1}}}, "either validation or"),
        ({"data": {key: STUDY["data"][key] for key in ("train", "test", "unlabeled")}}, "either validation or"),
        ({"data": {**STUDY["data"], "corpus": "books"}}, "data.corpus = 'books' is not one of '' or 'docstrings'"),
        ({"data": {**STUDY["data"], "train": {"sett": "a"}}}, "unknown key data.train.sett. Did you mean"),
        ({"benchmark": {"batch_sizes": [1, "x"]}}, "benchmark.batch_sizes[1] = 'x' is not of type int"),
        ({"benchmark": {"runtimes": ["torch", "onxruntime"]}}, "unknown runtime 'onxruntime'"),
        ({"teacher": {"model": "../secret"}}, "model = '../secret' is not a name below the model root"),
        ({"teacher": {"model": "/secret"}}, "model = '/secret' is not a name below the model root"),
        ({"seed": 10**30}, "seed = 1000000000000000000000000000000 is not a number below"),
        ({"seed": -1}, "seed -1 must be from 0 to 4294967295"),
        (
            {"students": [{"recipe": "cnn", "name": "labels"}]},
            "'labels' is what a study calls a part of its own",
        ),
        ({"students": [{"recipe": "cnn", "name": "x" * 250}]}, "use at most 100 letters"),
        ({"students": [{"recipe": "cnn", "seeds": [2**32]}]}, "seed 4294967296 must be from 0"),
        ({"data": {**STUDY["data"], "test": {"set": "a", "rows": -1}}}, "rows = -1 must be at least 0"),
    ],
)
def test_one_fault_of_a_study(change: dict[str, Any], message: str) -> None:
    assert message in faults(StudyRecipe, {**STUDY, **change})


def test_a_sound_study_has_no_fault() -> None:
    assert recipes.parse(StudyRecipe, STUDY, source="mine.toml").seed == 0


def test_a_teacher_needs_a_place_to_come_from() -> None:
    assert "a teacher needs hub or package" in faults(TeacherRecipe, {"description": "x"})


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(CompressError, match=r"unknown student 'bilsm'; there is .*Did you mean 'bilstm'\?"):
        recipes.load_recipe("students", "bilsm")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist; student recipes here: .*bilstm"),
        (b"a = = 1", "not valid TOML"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_recipe(tmp_path: Path, text: bytes | None, message: str) -> None:
    path = tmp_path / "mine.toml"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(CompressError, match=message):
        recipes.load_recipe("students", str(path))


def test_a_file_with_a_byte_order_mark_is_read_by_its_path_and_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('\ufeffdescription = "d"\nhub = "a/b"\n[training]\nepochs = 1\n')
    recipe = recipes.load_recipe("teachers", str(path))
    assert (recipe.name, recipe.hub, recipe.training.epochs) == ("mine", "a/b", 1)


def test_a_study_like_another_has_all_that_it_does_not_say(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('like = "table2"\ntitle = "mine"\nseed = 3\n', encoding="utf-8")
    base, mine = recipes.load_recipe("benchmarks", "table2"), recipes.load_recipe("benchmarks", str(path))
    assert mine == dataclasses.replace(base, name="mine", title="mine", seed=3)


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ("tabel2", r"like = 'tabel2' is no study; there is .*\. Did you mean 'table2'\?"),
        ("table2-ag-news", "like = 'table2-ag-news' is itself like another; name 'table2'"),
        (3, "like = 3 is no study"),
        ("../students/cnn", "is no study"),
    ],
)
def test_a_study_that_is_like_no_other(like: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"like = {like!r}\n", encoding="utf-8")
    with pytest.raises(CompressError, match=message):
        recipes.load_recipe("benchmarks", str(path))


@pytest.mark.parametrize("kind", ["teachers", "students", "benchmarks"])
def test_a_recipe_of_another_kind_is_called_by_its_kind(kind: recipes.Kind, tmp_path: Path) -> None:
    commands = {"minilm-l6": ("teacher", "finetune --teacher"), "cnn": ("student", "distill --student")}
    commands["quickstart"] = ("study", "run")
    for folder, name in (("teachers", "minilm-l6"), ("students", "cnn"), ("benchmarks", "quickstart")):
        path = tmp_path / f"{name}.toml"
        path.write_text((recipes.folder(folder) / path.name).read_text(encoding="utf-8"), encoding="utf-8")  # type: ignore[arg-type]
        if folder == kind:
            assert recipes.load_recipe(kind, str(path)).name == name
            continue
        called, command = commands[name]
        said = f"{path.name} is the recipe of a {called}, which 'compress {command}' takes; give that of a "
        with pytest.raises(CompressError, match=re.escape(said)):
            recipes.load_recipe(kind, str(path))


def test_replaced_training_values_are_checked() -> None:
    changed = recipes.replace_training(Training(), {"epochs": 0.5}, source="study")
    assert changed == Training(epochs=0.5)
    with pytest.raises(CompressError, match="study has 1 fault: unknown key epoch"):
        recipes.replace_training(Training(), {"epoch": 1}, source="study")


def test_other_phases_remove_the_published_figures() -> None:
    pd = recipes.load_recipe("students", "pd")
    other = recipes.in_phases(pd, [Phase((Choice("kl"),))], source="a study")
    assert pd.published and pd.survey and pd.paper and pd.missing and pd.limits
    assert (other.published, other.survey, other.paper, other.missing, other.limits) == ((), (), "", (), "")
    assert other.architecture == pd.architecture and [choice.name for choice in other.losses] == ["kl"]


def test_prose_decides_no_model() -> None:
    pd = recipes.load_recipe("students", "pd")
    told = dataclasses.replace(pd, description="", paper="", missing=(), limits="", published=(), survey=())
    assert told != pd and recipes.deciding(told) == recipes.deciding(pd)
    assert recipes.deciding(dataclasses.replace(pd, phases=pd.phases[:1])) != recipes.deciding(pd)


def test_quantizing_modifiers_are_listed_with_their_students() -> None:
    assert set(plugins.names("modifiers")) > ROUNDING
    rounded = {name for name in recipes.recipe_names("students") if recipes.load_recipe("students", name).is_rounded}
    assert rounded == {"int8-half", "q8bert", "q-bert"}


def test_phases_must_suit_the_student() -> None:
    small = recipes.load_recipe("students", "bert-48")
    with pytest.raises(CompressError, match=r"a study: with \[vocabulary\] student and teacher read other tokens"):
        recipes.in_phases(small, [Phase((Choice("hidden-mse"),))], source="a study")


@pytest.mark.parametrize(
    ("asked", "several"),
    [
        ({"heads": "50%"}, False),
        ({"heads": "50%", "ffn": "50%"}, True),
        ({"heads": "50%", "speedup": 2.0}, False),
        ({"speedup": 2.0}, True),  # may take heads and neurons
        ({"layers": "2", "vocabulary": True}, True),
        ({"hidden": "25%"}, False),
    ],
)
def test_how_many_kinds_of_things_go(asked: dict[str, Any], several: bool) -> None:
    assert StudyPrune(name="p", **asked).removes_several is several
