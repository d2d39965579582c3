"""A model directory: what every stage reads and writes.

It is an ordinary Hugging Face directory (or an ONNX one) plus ``compress.json``, the manifest. A directory without
a manifest, such as a teacher that somebody else fine-tuned, opens too. Weights are safetensors or ONNX only.

A cascade is a directory of models of which the first answers what it is sure of, and the next what is left. Its folder
``members`` holds copies of the model directories, ``1`` the first. ``cascade.json`` has their names and the confidence
from which each but the last answers. The manifest has the hash of every file, those of the members too.
"""

import functools
import hashlib
import importlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias, cast, overload

from compress.data.examples import Example, among, content_sha256, row_key, row_keys, without_label
from compress.data.stored_tokenizer import TOKENIZER_NAME, AnyTokenizer, PlainTokenizer
from compress.data.tokenization import maximum_length
from compress.data.windows import WINDOWS_KEY, Windows, windows_of
from compress.errors import CompressError, refuse, some_of
from compress.escaping import markup_text
from compress.files import printable_name, read_json_table
from compress.models.compute import Compute
from compress.models.graph_files import check_graph, found_graphs, graph_file, graph_with_data
from compress.models.loading import (
    PICKLES,
    check_files,
    check_foreign,
    check_opened_tokenizer,
    count_weights,
    load_config,
    load_network,
    load_tokenizer,
    read_config,
    sigmoid_of,
    unfit,
    weight_files,
)
from compress.models.manifest import (
    MANIFEST_NAME,
    NATIVE_NAME,
    ONNX_NAME,
    PACKED_NAME,
    VOCABULARIES,
    WEIGHTS_NAME,
    Manifest,
    describe_files,
    verify_files,
)
from compress.models.modeling import ENDINGS
from compress.progress import logger, quiet_libraries
from compress.tasks import labels_of, of_config

if TYPE_CHECKING:
    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from compress.tasks import Task

Prediction: TypeAlias = dict[str, Any]
TextGiven: TypeAlias = str | tuple[str, str] | Example
_HEAD_PARTS = {"classifier", "head", "pre_classifier", "pooler"}
_SETFIT = ("config_setfit.json", "model_head.pkl")


@dataclass(frozen=True, repr=False)
class Model:
    """A model on disk, which opens what it needs of its directory once.

    Every stage makes one; :func:`compress.load` and :meth:`open` open one that is there. ``manifest`` is empty, without
    a stage, where others made the model. ``compute`` says where and with how many threads it predicts.
    ``given_windows`` are in place of those of its config.
    """

    path: Path
    manifest: Manifest = Manifest(stage="")
    compute: Compute = field(default=Compute(), kw_only=True)
    given_windows: Windows | None = field(default=None, kw_only=True)

    @classmethod
    def open(cls, path: "Model | str | os.PathLike[str]", *, classifier: bool = True, verify: bool = True) -> "Model":
        """Open and check a local model directory, or fetch a Hugging Face hub name; one that is open stays as it is.

        Raises:
            CompressError: nothing is there, it is not a model or not a classifier, its weights are pickled, cut
                short or not the ones the manifest names.
        """
        if isinstance(path, Model):
            if path.manifest.kind == "cascade":
                raise CompressError(cascade_refusal(path.path))
            return path
        directory = _local_directory(path)
        check_files(directory)
        model = cls(directory, Manifest.read(directory / MANIFEST_NAME))
        kind = model.manifest.kind
        use = "; 'compress distill' and 'compress prune' take it as --labels" if kind == "labels" else ""
        refuse(
            (kind == "cascade", cascade_refusal(directory)),
            (kind == "search", f"{path} is what a search found; its model is {directory / 'best'}"),
            (kind != "model", f"{path} is a directory of {kind}, not a model{use}"),
        )
        if verify:
            verify_files(directory, model.manifest)
        if not (directory / "config.json").is_file():
            raise CompressError(f"{path} is not a model directory: it has no config.json")
        if not model.is_onnx:
            check_foreign(directory)
        model.check_weights()
        if classifier:
            names = ", ".join(model.config.get("architectures") or ["none named"])
            refuse(
                (
                    any((directory / name).is_file() for name in _SETFIT),
                    f"{directory} is a SetFit model, an encoder with a pickled head, which is not opened; let setfit "
                    "write a table of texts with the probabilities of their classes, make labels of it with 'compress "
                    "labels import TABLE --probabilities A,B -o labels', and use these: "
                    f"--teacher {directory} --labels labels",
                ),
                (
                    not model.is_classifier,
                    f"{directory} is not a sequence classifier or a tagger of words (its architecture: {names}); "
                    "fine-tune it first with 'compress finetune --teacher ...'",
                ),
            )
            model.task.check_config(model.config, directory)
            sigmoid_of(model.config)
        return model

    @property
    def name(self) -> str:
        return self.manifest.name or self._hub_name or Path(os.path.abspath(self.path)).name  # of "." too

    @property
    def _hub_name(self) -> str:
        """The name in the hub; empty for a folder outside its cache, models--OWNER--NAME/snapshots/COMMIT."""
        repository = self.path.parent.parent.name
        is_cached = self.path.parent.name == "snapshots" and repository.startswith("models--")
        return repository.rpartition("--")[2] if is_cached else ""

    @cached_property
    def config(self) -> dict[str, Any]:
        return {**read_config(self.path), **self._changes}

    @property
    def _changes(self) -> dict[str, str]:
        return {WINDOWS_KEY: str(self.given_windows)} if self.given_windows else {}

    def with_windows(self, windows: "Windows | str | None") -> Self:
        """Return the model as it reads long documents by windows, such as ``256,128,mean``; None leaves it as it is."""
        if windows is None:
            return self
        made = replace(self, given_windows=Windows.read(windows))
        return made if made.windows else self

    @cached_property
    def windows(self) -> Windows | None:
        """The windows that it reads long documents by; None where it reads a text at once.

        Raises:
            CompressError: it cannot read such windows.
        """
        windows = windows_of(self.config, self.path)
        if windows:
            native = f"{self.path} is a native model, which reads no windows; use an ONNX or torch one"
            refuse((self.is_native, native))
            longest = maximum_length(self.plain_tokenizer, self.config)
            windows.check(self.path, longest, len(self.labels), by_word=self.task.by_word)
        return windows

    @property
    def is_onnx(self) -> bool:
        return graph_file(self.path).is_file()

    @property
    def is_native(self) -> bool:
        """Whether it is a container of the native library alone."""
        return (self.path / NATIVE_NAME).is_file() and not self.is_onnx and not weight_files(self.path)

    @property
    def form(self) -> str:
        return "an ONNX" if self.is_onnx else "a native" if self.is_native else "a torch"

    @property
    def is_packed(self) -> bool:
        """Whether weights of few bits are packed in a file that only this project reads."""
        return (self.path / PACKED_NAME).is_file()

    @property
    def is_classifier(self) -> bool:
        return any(name.endswith(ENDINGS) for name in self.config.get("architectures") or ())

    @property
    def labels(self) -> tuple[str, ...]:
        """Label names in the order of the logits; one name for a regression model."""
        return labels_of(self.config)

    @property
    def task(self) -> "Task":
        """The kind of answer that it gives; it equals its name, such as ``classification``."""
        return of_config(self.config)

    @cached_property
    def sha256(self) -> str:
        """Fingerprint of the directory's files but for manifest and card.

        The log of a training, which holds times, is one of them: a training that is repeated has another fingerprint.
        """
        files = self.manifest.files if self.manifest.stage else describe_files(self.path)
        return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()

    @property
    def size_bytes(self) -> int:
        """Size of the weights: the ONNX graph with its data, or the safetensors files."""
        files = graph_with_data(graph_file(self.path)) if self.is_onnx else weight_files(self.path)
        files = [self.path / NATIVE_NAME] if self.is_native else files
        return sum(file.stat().st_size for file in files)

    @cached_property
    def parameters(self) -> int:
        """Number of weights, from the headers of the files; without a manifest, all of a graph or container."""
        if "parameters" in self.manifest.architecture:
            return int(self.manifest.architecture["parameters"])
        if self.is_native:
            return int(_above("compress.inference.native", "NativeRunner")(self.path).core.weights)
        if not self.is_onnx:
            return count_weights(weight_files(self.path))[1]
        import onnx

        graph = onnx.load(str(graph_file(self.path)), load_external_data=False).graph
        return sum(math.prod(tensor.dims) for tensor in graph.initializer)

    def check_weights(self) -> None:
        if self.is_onnx:
            check_graph(graph_file(self.path))
            weights = next(self.path.glob("*.safetensors"), None)
            if weights and not {weights.name, ONNX_NAME} <= self.manifest.files.keys():
                _say_which_answers(weights)
            return
        files = weight_files(self.path)
        if not files and not self.is_native:
            pickles = [file.name for file in self.path.iterdir() if file.suffix in PICKLES]
            graphs = found_graphs(self.path)
            names = some_of([str(graph.relative_to(self.path)) for graph in graphs])
            pickled = "; pickled weights are not fetched: save the model again with save_pretrained"
            refuse(
                (
                    pickles,
                    f"{self.path} holds pickled weights ({some_of(pickles)}), which can run code when opened; "
                    "save the model again with save_pretrained, which writes model.safetensors",
                ),
                (
                    graphs,
                    f"{self.path} has several ONNX graphs ({names}), and none of them is {ONNX_NAME}; choose one: "
                    f"cp {next(iter(graphs), '')} {self.path / ONNX_NAME}",
                ),
            )
            raise CompressError(
                f"{self._hub_name or self.path} has neither {WEIGHTS_NAME} nor {ONNX_NAME}"
                f"{pickled if self._hub_name else ''}"
            )
        if files:  # counting needs a package that the light installation is without
            count_weights(files)

    def check_trainable(self) -> None:
        """Refuse a model without a network in torch."""
        advice = "use the directory it was exported from"
        refuse(
            (self.form != "a torch", f"{self.path} is {self.form} model, which cannot be trained or pruned; {advice}")
        )

    def load(self, *, plain: bool = False) -> "PreTrainedModel":
        """Load the torch model in eval mode, float32; ``plain`` refuses one with a function on its score."""
        refuse(
            (
                plain and sigmoid_of(self.config),
                f"{self.path} is a cross-encoder, whose score is the sigmoid of its logit; it labels, predicts and is "
                "exported, and a student of its labels can be pruned: 'compress label', then 'compress distill'",
            )
        )
        self.check_trainable()
        quiet_libraries()
        config = load_config(self.path)
        for name, value in self._changes.items():  # which transformers takes for fields that it knows alone
            setattr(config, name, value)
        if config.is_encoder_decoder:
            start, end = (getattr(config, f"{name}_token_id", None) for name in ("decoder_start", "eos"))
            refuse(
                (
                    start is None,
                    f"{self.path}: config.json lacks decoder_start_token_id, with which its decoder begins",
                ),
                (
                    end not in self.tokenizer.backend_tokenizer.encode("a").ids,
                    f"the tokenizer of {self.path} does not end a text with the token that this model answers at "
                    f"(eos_token_id = {end} in config.json); copy the tokenizer that belongs to these weights",
                ),
            )
        model, found = load_network(self.task.auto_model(), self.path, config)
        if names := unfit(found):  # transformers would go on with random ones
            raise CompressError(
                f"{self.path} has no weights of its model, or in another shape ({names[0]}); copy or make it again"
            )
        if sigmoid_of(self.config):
            model.register_forward_hook(_sigmoid_of_logits)
        return cast("PreTrainedModel", model.eval())

    def with_head(self, labels: Sequence[str], task: "Task") -> "PreTrainedModel":
        """Load an encoder with a head of these labels: its own where it has one of as many classes, else a random one.

        Raises:
            CompressError: more than the head would start at random.
        """
        return self._load_encoder(task.auto_model(), num_labels=len(labels), **task.head_settings(labels))

    def body(self) -> "PreTrainedModel":
        """Load an encoder without its head."""
        from transformers import AutoModel

        return self._load_encoder(AutoModel)

    def give_body(self, student: "PreTrainedModel") -> None:
        """Give a student the embeddings and layers of this encoder of its family and shape; its head stays as it is.

        Raises:
            CompressError: another family or shape, or weights of the encoder are missing.
        """
        body = self.body()
        theirs, ours = (
            {name: value for name, value in base.state_dict().items() if not set(name.split(".")) & _HEAD_PARTS}
            for base in (body, student.base_model)
        )
        has, wants = (
            {"type": model.config.model_type, **{name: list(value.shape) for name, value in weights.items()}}
            for model, weights in ((body, theirs), (student, ours))
        )
        for name in {**has, **wants}:
            own, wanted = has.get(name, "absent"), wants.get(name, "absent")
            refuse(
                (
                    own != wanted,
                    f"{self.path} has another shape than this student ({name} is {own} and not {wanted}); make it with "
                    "'compress pretrain' from the encoder of this teacher, for the same student",
                )
            )
        student.base_model.load_state_dict(theirs, strict=False)

    def _load_encoder(self, opener: Any, **settings: Any) -> "PreTrainedModel":
        """Load an encoder, with other settings in its config, of which no more than a head may start at random."""
        model, found = load_network(opener, self.path, load_config(self.path, **settings))
        fresh = [key for key in unfit(found) if not set(key.split(".")) & _HEAD_PARTS]
        refuse(
            (
                fresh,
                f"{self.path} lacks weights of its own architecture ({len(fresh)}, such as {''.join(fresh[:1])}), "
                "which would start at random; save the encoder again with save_pretrained",
            )
        )
        return model

    def check_vocabulary(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        """Refuse a checkpoint that would take the teacher's token ids for other pieces."""
        own, theirs = self.tokenizer.get_vocab(), tokenizer.get_vocab()
        different = sum(own.get(piece) != index for piece, index in theirs.items())
        refuse(
            (
                own != theirs,
                f"{self.path} has another vocabulary than the teacher ({different} of the teacher's {len(theirs)} "
                "pieces are absent or have another number), and a student reads the teacher's token ids; choose a "
                "checkpoint of the teacher's vocabulary, or fine-tune this one with 'compress finetune --teacher ...'",
            )
        )

    @cached_property
    def network(self) -> "PreTrainedModel":
        """The torch model of :meth:`load`, loaded once and shared: for reading, in eval mode and with its weights."""
        return self.load()

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerFast":
        """The tokenizer as transformers reads it, loaded and checked once; whoever changes it takes a copy."""
        return self._load_tokenizer()

    def word_tokenizer(self) -> "PreTrainedTokenizerFast":
        """Return the tokenizer for single words: one of bytes then reads each as it does within a text."""
        if getattr(self.tokenizer, "add_prefix_space", None) is not False:
            return self.tokenizer
        return self._load_tokenizer(add_prefix_space=True)  # RoBERTa's pieces begin with the space

    def _load_tokenizer(self, **options: Any) -> "PreTrainedTokenizerFast":
        if not any((self.path / name).is_file() for name in VOCABULARIES):  # transformers would make an empty one
            advice = "use the directory it was exported from: a native model predicts, and nothing else"
            advice = advice if self.is_native else "copy its files beside the weights"
            raise CompressError(f"{self.path} has no tokenizer ({VOCABULARIES[0]}); {advice}")
        tokenizer = load_tokenizer(self.path, **options)
        check_opened_tokenizer(tokenizer, self.path, self.config)
        return cast("PreTrainedTokenizerFast", tokenizer)

    @cached_property
    def plain_tokenizer(self) -> AnyTokenizer:
        """The tokenizer for inference: without transformers where the model runs without it."""
        if not self.is_onnx or not (self.path / TOKENIZER_NAME).is_file():
            return self.tokenizer
        tokenizer = PlainTokenizer.read(self.path, segments=int(self.config.get("type_vocab_size") or 0) > 1)
        check_opened_tokenizer(tokenizer, self.path, self.config)
        return tokenizer

    # In Python

    @cached_property
    def runner(self) -> Any:
        """The model, loaded to predict; a cascade with all its members."""
        native = _above("compress.inference.native", "native_runner")(self, self.compute)
        return native or _above("compress.inference.runners", "load_graph")(self, self.compute)

    @cached_property
    def _predict(self) -> Callable[[Any, bool], Any]:
        found: Callable[[Any, bool], Any] = _above("compress.inference.predict", "predictor")(self)
        return found

    @property
    def max_length(self) -> int:
        """How many tokens of a text it reads; 0 where it reads texts whole."""
        read = [int(one.max_length) for one in getattr(self.runner, "members", [self.runner])]
        return min(filter(None, read), default=0)

    @overload
    def predict(self, texts: TextGiven, *, probabilities: bool = False) -> Prediction: ...  # type: ignore[overload-overlap]
    @overload
    def predict(self, texts: Iterable[TextGiven], *, probabilities: bool = False) -> list[Prediction]: ...
    def predict(self, texts: Any, *, probabilities: bool = False) -> Prediction | list[Prediction]:
        """Return the prediction of a text, or one for each of many, in order.

        A prediction is ``{"label", "probability"}``, or ``{"score"}`` for regression; of several labels a text it is
        ``{"labels", "probabilities"}``, those above 0.5, the likeliest first; of a tagger it is ``{"words", "tags",
        "probabilities"}``, one tag a word, null for a word that was cut off, and where tags are of entities
        ``entities``, each with ``"start"``, ``"end"``, ``"label"``, ``"text"`` and ``"probability"``. A classifier
        that was calibrated with a share to be right adds ``"accepted"``: whether the probability reaches the threshold,
        or which labels do. Of a text that was cut, because the model does not read all of it, it has ``"truncated":
        True`` and ``"unread_tokens"``, how many tokens that is.

        Args:
            texts: a text, a pair of texts as a tuple, or an example; or many of one kind: a list, an array, or a table
                such as a ``datasets.Dataset`` or a data frame. A tagger splits a text into words; those of an
                example have spaces between.
            probabilities: add ``"probabilities"``, those of all labels of a classifier.

        Raises:
            CompressError: one is no text, or texts and pairs are mixed.
        """
        return cast("Prediction | list[Prediction]", self._predict(texts, probabilities))

    def predict_proba(self, texts: TextGiven | Iterable[TextGiven]) -> "np.ndarray":
        """Return probabilities ``[N, C]`` float32 of ``labels``, as scikit-learn's classifiers do; N is 1 for one text.

        Raises:
            CompressError: as :meth:`predict`, or the model is no classifier of texts.
        """
        return cast("np.ndarray", _above("compress.inference.predict", "label_probabilities")(self, texts))

    def quantize(self, *output: Any, **settings: Any) -> "Model":
        """Make an int8 model of it; see :func:`compress.quantize`."""
        return cast(Model, _above("compress", "quantize")(self, *output, **settings))

    def prune(self, *output: Any, **settings: Any) -> "Model":
        """Remove heads, neurons, layers or subword tokens; see :func:`compress.prune`."""
        return cast(Model, _above("compress", "prune")(self, *output, **settings))

    def calibrate(self, *output: Any, **settings: Any) -> "Model":
        """Make its probabilities right; see :func:`compress.calibrate`."""
        return cast(Model, _above("compress", "calibrate")(self, *output, **settings))

    def export(self, *output: Any, **settings: Any) -> "Model":
        """Write it as ONNX, or for C or JavaScript; see :func:`compress.export`."""
        return cast(Model, _above("compress", "export")(self, *output, **settings))

    def push_to_hub(self, name: str, *, private: bool = False) -> str:
        """Upload the directory to the Hugging Face hub, with the token of this machine, and return its address there.

        Args:
            name: ``OWNER/NAME``; the repository is made where it is not there.

        Raises:
            CompressError: the hub refuses, or cannot be reached.
        """
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError

        try:
            made = HfApi().create_repo(name, private=private, exist_ok=True)
            HfApi().upload_folder(repo_id=made.repo_id, folder_path=self.path, commit_message=f"Upload {self.name}")
        except (HfHubHTTPError, HFValidationError, OSError) as error:
            raise CompressError(
                f"{self.path} could not be uploaded as {name} ({type(error).__name__}); check the name, the network "
                "and the token ('hf auth login')"
            ) from error
        return str(made)

    def _facts(self) -> dict[str, str]:
        shown, kind = list(self.labels), self.form.split()[1]
        return {
            "name": self.name,
            "task": f"{self.task}: {', '.join(shown[:5])}{', ...' * (len(shown) > 5)}",
            "weights": f"{self.parameters / 1e6:.3g} million, {self.size_bytes / 1e6:.3g} MB, {kind}",
            **({"made by": f"compress {self.manifest.stage}"} if self.manifest.stage else {}),
            "directory": str(self.path),
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'; '.join(self._facts().values())})"

    def _repr_html_(self) -> str:
        rows = (f"<tr><th>{name}</th><td>{markup_text(value)}</td></tr>" for name, value in self._facts().items())
        return f"<table>{''.join(rows)}</table>"


def _above(module: str, name: str) -> Any:
    """Return a function of a layer above, which this one may not import: what a model does in Python is done there."""
    return getattr(importlib.import_module(module), name)


def _sigmoid_of_logits(model: Any, inputs: Any, outputs: Any) -> Any:
    outputs.logits = outputs.logits.sigmoid()
    return outputs


def parent_entry(role: str, model: Model) -> dict[str, Any]:
    """Return what a manifest records of the model that another was made from."""
    return {"role": role, "name": model.name, "sha256": model.sha256}


@functools.cache
def _say_which_answers(weights: Path) -> None:
    """Say once what a directory with two models is read as."""
    logger.warning(
        f"{weights.parent} holds {ONNX_NAME} and {weights.name}, and nothing says that they are one model: {ONNX_NAME} "
        "answers; move the other one away"
    )


def cascade_refusal(directory: Path) -> str:
    """Say why a command does not take a cascade."""
    return (
        f"{directory} is a cascade of models, which is classified with and measured, and neither trained, calibrated, "
        f"pruned nor quantized; give one of its members, such as {directory / 'members' / '1'}"
    )


def _local_directory(path: str | os.PathLike[str]) -> Path:
    directory, text = Path(path), str(path)
    if directory.is_dir():
        shown = printable_name(place := os.path.abspath(directory))
        refuse((shown != place, f"{shown} has a name that is not UTF-8, which no library opens a model by; rename it"))
        return directory
    refuse(
        (directory.exists(), f"{path} is a file; a model is a directory with config.json and {WEIGHTS_NAME}"),
        (
            text.count("/") > 1 or text.startswith((".", "/", "~")) or "\\" in text,
            f"{path} does not exist; give a model directory or a Hugging Face name",
        ),
    )
    try:
        refuse(*_recipes_of(text))
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ModuleNotFoundError:  # the light installation has neither
        raise CompressError(
            f"{path} does not exist; give a model directory, or type pip install 'compress[train]' for models of the "
            "Hugging Face hub"
        ) from None
    try:
        return Path(snapshot_download(text, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"]))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CompressError(
            f"{path} is neither a directory here nor a model that the Hugging Face hub gave "
            f"({type(error).__name__}); check the path, or the name and the network"
        ) from None


def _recipes_of(name: str) -> Iterator[tuple[object, str]]:
    """Yield what is wrong with a recipe in place of a model."""
    from compress.recipes import Kind, recipe_names

    making: Mapping[Kind, str] = {
        "teachers": "finetune --teacher {} --train FILE --validation FILE",
        "students": "distill --teacher DIR --student {} --unlabeled FILE",
    }
    for kind, command in making.items():
        said = f"{name} is the recipe of a {kind[:-1]}, not a model; make the model with 'compress {command} -o NEW'"
        yield name in recipe_names(kind), f"{said.format(name)} and give NEW"


# What compress prune removes -> what the model has fewer of then.
REMOVALS: Mapping[str, str] = {
    "vocabulary": "word pieces",
    "layers": "layers",
    "heads": "heads",
    "neurons": "neurons",
    "hidden": "hidden dimensions",
}


def removals_of(model: Model) -> tuple[str, ...]:
    """Return what compress prune removed from a model, in turn; nothing where its manifest does not say.

    Raises:
        CompressError: the manifest says what no compress prune writes.
    """
    return tuple(removal for removal, _ in removal_shapes(model))


def removal_shapes(model: Model) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each removal with the config of what it left; the last one's is that of the model."""
    shapes = model.manifest.notes.get("shapes", [])
    sound = isinstance(shapes, list) and all(
        isinstance(shape, dict)
        and shape.get("removal") in (*REMOVALS, "nothing", "recovery")
        and isinstance(shape.get("config"), dict)
        for shape in shapes
    )
    fault = f"the manifest of {model.path} notes shapes that no 'compress prune' writes; make the model again"
    refuse((not sound, fault))
    return [(shape["removal"], shape["config"]) for shape in shapes if shape["removal"] in REMOVALS]


KIND = "cascade"
CASCADE_NAME, MEMBERS = "cascade.json", "members"
MOST_MEMBERS = 5


@dataclass(frozen=True)
class LanguageModelMember(Model):
    """A language model on a server, the last member of a cascade, whose directory is its path.

    ``asked`` is what it is asked, as ``cascade.json`` has it (:mod:`compress.inference.language_model`); ``opened`` is
    its runner, where that is there already.
    """

    asked: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    opened: Any = field(default=None, kw_only=True)
    form, is_onnx, size_bytes, parameters = "an asked", False, 0, 0

    @property
    def config(self) -> Mapping[str, Any]:  # type: ignore[override]
        return {"id2label": {str(number): label for number, label in enumerate(self.manifest.labels)}}

    @property
    def sha256(self) -> str:
        return hashlib.sha256(json.dumps(self.asked, sort_keys=True).encode()).hexdigest()

    @cached_property
    def runner(self) -> Any:
        opener = _above("compress.inference.language_model", "LanguageModelRunner")
        return self.opened or opener.open(self.asked, self.manifest.labels, self.path)


@dataclass(frozen=True)
class CascadeDir(Model):
    """A cascade as the models that it is compared with see it; made by :func:`open_model`."""

    @cached_property
    def members(self) -> tuple[Model, ...]:
        """The models in the order in which they are asked; their hashes are those of this manifest."""
        asked, names = self._choice.get("language_model"), self.member_names
        here = names[:-1] if asked else names
        found = [Model.open(self.path / MEMBERS / str(number + 1), verify=False) for number in range(len(here))]
        if asked:
            last = Manifest(stage="", name=names[-1], labels=found[0].labels)
            found.append(LanguageModelMember(self.path, last, asked=asked))
        return tuple(found)

    @property
    def member_names(self) -> tuple[str, ...]:
        return tuple(self._choice["members"])

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The confidence from which each member but the last answers."""
        return tuple(map(float, self._choice["thresholds"]))

    @cached_property
    def _choice(self) -> dict[str, Any]:
        """Return the names and thresholds.

        Raises:
            CompressError: the file holds none, or others.
        """
        path = self.path / CASCADE_NAME
        found = read_json_table(path)
        names, thresholds = found.get("members"), found.get("thresholds")
        if (
            not (isinstance(names, list) and isinstance(thresholds, list) and len(names) == len(thresholds) + 1)
            or not 1 < len(names) <= MOST_MEMBERS
            or not all(isinstance(name, str) for name in names)
            or not all(type(value) in (int, float) and 0 <= value <= 1 for value in thresholds)
            or not isinstance(found.get("language_model", {}), dict)
        ):
            raise CompressError(
                f"{path} has no names of 2 to {MOST_MEMBERS} members with numbers from 0 to 1 as thresholds of all but "
                "the last; make the cascade again"
            )
        return found

    @property
    def config(self) -> Mapping[str, Any]:  # type: ignore[override]
        return self.members[0].config  # whose labels all have

    @property
    def is_onnx(self) -> bool:
        return self.members[0].is_onnx  # as all are that run here

    @property
    def form(self) -> str:
        return self.members[0].form

    @property
    def size_bytes(self) -> int:
        return sum(member.size_bytes for member in self.members)

    @property
    def parameters(self) -> int:
        return sum(member.parameters for member in self.members)

    def load(self, **_: Any) -> NoReturn:
        """Refuse: there is no one network, nor one tokenizer.

        Raises:
            CompressError: always.
        """
        raise CompressError(cascade_refusal(self.path))

    @property
    def tokenizer(self) -> NoReturn:
        self.load()

    def with_windows(self, windows: Windows | str | None) -> Self:
        """Refuse windows."""
        said = f"{self.path} is a cascade, whose members have windows of their own; leave the windows out"
        refuse((windows is not None, said))
        return self


def open_model(path: Model | str | Path, *, classifier: bool = True, verify: bool = True) -> Model:
    """Open a model directory or a cascade; ``verify`` compares every file with its hash.

    Raises:
        CompressError: it is neither, or damaged, or the members of a cascade do not fit each other.
    """
    if isinstance(path, Model):
        return path
    directory = Path(path)
    if not (directory / CASCADE_NAME).is_file():
        return Model.open(path, classifier=classifier, verify=verify)
    check_files(directory)
    cascade = CascadeDir(directory, Manifest.read(directory / MANIFEST_NAME))
    if verify:
        verify_files(directory, cascade.manifest)
    check_members(cascade.members)
    return cascade


def check_members(members: Sequence[Model]) -> None:
    """Refuse models that make no cascade: too few or many, of other labels, no classifiers, or of several forms."""
    if not 1 < len(members) <= MOST_MEMBERS:
        raise CompressError(f"a cascade has 2 to {MOST_MEMBERS} members, not {len(members)}; repeat --model")
    last = members[-1]
    here = members[:-1] if isinstance(last, LanguageModelMember) else members
    for member in here:
        refuse(
            (isinstance(member, CascadeDir), f"{member.path} is a cascade itself; give its members"),
            (bool(member.task.no_cascade), f"{member.path} is made for {member.task}; {member.task.no_cascade}"),
            (
                member.labels != last.labels,
                f"{member.path} has the labels {', '.join(member.labels[:5])}, and {last.path} has "
                f"{', '.join(last.labels[:5])}; the members of a cascade have the same labels in the same order",
            ),
            (
                member.form != here[-1].form,
                f"{member.path} is {member.form} model and {here[-1].path} {here[-1].form} one; members run in one "
                "runtime: give the ONNX directories of all, which 'compress quantize' and 'compress export' write",
            ),
        )


# A manifest knows the sets of a training as wholes. Keys of single rows would tell more, and tell everybody who has the
# model whether a text was among them. So rows of a set are recognised where this set itself is given here too.
FITTING_ROLES = ("train", "unlabeled")
TRAINING_ROLES = (*FITTING_ROLES, "validation")  # with those that chose a checkpoint


def check_unseen(
    models: Iterable[Model],
    rows: Sequence[Example],
    role: str = "validation",
    seen: Collection[str] = FITTING_ROLES,
    *,
    option: str = "",
) -> None:
    """Refuse rows that a model has seen in one of these roles, with labels or without (DESIGN, decision 8).

    Args:
        option: what the rows are given with, if not with the option of their role.
    """
    for model in models:
        if found := _role_of(rows, model, seen):
            raise CompressError(
                f"the {role} rows are the {found} rows of {model.path}, so that they would say nothing; "
                f"give rows that no model has seen with --{option or role}"
            )


def tell_seen(
    models: Sequence[Model], rows: Sequence[Example], given: Mapping[str, Sequence[Example]], role: str = "test"
) -> None:
    """Say which rows are also in other sets that are given here, where a model was fitted on these or chosen by them.

    Args:
        given: these sets by role, whole.
    """
    keys = row_keys(rows)
    for name, own in given.items():
        numbers = (among(keys, map(row_key, own)).nonzero()[0] + 1).tolist()
        models_of = [model.name for model in models if _role_of(own, model, TRAINING_ROLES)] if numbers else []
        if models_of:
            logger.warning(
                "%s of the %s rows of %s (row %s) are in the %s rows that %s was made with: what is measured on them "
                "says nothing of new text",
                *(f"{len(numbers):,}", f"{len(rows):,}", role, some_of(numbers), name, some_of(models_of)),
            )


def _role_of(rows: Sequence[Example], model: Model, roles: Collection[str]) -> str | None:
    """Return in which of these roles a model has seen exactly these rows, as they were given or as they were used."""
    # A pool is fingerprinted without labels.
    fingerprints = [content_sha256(rows), content_sha256(map(without_label, rows))]
    for entry in model.manifest.data:
        if entry["role"] in roles and any(entry.get(name) in fingerprints for name in ("sha256", "given_sha256")):
            return str(entry["role"])
    return None
