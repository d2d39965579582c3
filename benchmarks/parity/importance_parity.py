"""Is our importance of heads the published one, do common implementations differ, and do others slice as we do?

    python benchmarks/parity/importance_parity.py --model DIR -o RESULTS.jsonl [-- PIP OPTIONS]

Head importance (Michel et al. 2019, equation 3) of a real SST-2 teacher on rows of train: by
``compress.head_importance`` and by one backward for each example without our masks, in float32 and float64; of some
heads by finite differences too. What common implementations make of the same gradients (head_gradients.py names them)
is ranked against it, and the 60% of heads that each finds lowest are masked in one step and judged on SST-2 dev. Last,
transformers 4.57, in an environment of its own ($COMPRESS_COMPETITORS, made here if it is not there), removes heads
with its own ``prune_heads``, and its logits are compared with those of our sliced model. One line of JSON is written
for each comparison; the exit status is 1 if what shall be equal is not. Data lie below --data-root or COMPRESS_DATA.
"""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from head_gradients import VARIANTS, HeadGradients, Variant, exact, finite_differences, head_gradients
from scipy.stats import spearmanr
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, PreTrainedModel, PreTrainedTokenizerFast

from compress.data import open_source
from compress.data.examples import content_sha256
from compress.data.overlap import check_roles
from compress.errors import CompressError
from compress.evaluation.metrics import ACCURACY, paired_difference
from compress.files import write_json_lines
from compress.models.model_dir import Model
from compress.pruning.evaluation import EvaluationRows, MaskedEvaluation
from compress.pruning.scoring import head_importance
from compress.recipes.pruning import units_to_remove
from compress.studies.data import find_set
from compress.surgery.remove import remove_heads
from compress.surgery.unit_masks import mask_lowest, normalised
from compress.tasks import find_task
from compress.training.training_data import Gold

sys.path.append(str(Path(__file__).resolve().parents[1]))
from competitor_environments import python_of  # noqa: I001
from script import columns, provenance, read_options  # noqa: I001

SET, MAX_LENGTH, REMOVED = "glue/SST-2", 128, "60%"
ORDERS, JUDGED_ORDERS = 20, 3  # of the rows: for ranks, and for accuracies
DIFFERENCE_ROWS, LOGIT_ROWS = 128, 16
# The largest differences allowed: of scores relative to the competitor's, of logits in themselves.
TOLERANCES = {"float32": 1e-4, "float64": 1e-5, "finite differences": 1e-5, "logits": 1e-5}
FAMILIES = ("bert", "roberta", "distilbert", "electra")
UNEVEN = {0: [0, 3, 7], 1: [2], 2: [0, 1, 2, 4, 5, 6, 7]}  # of four layers of eight heads
CLIENT = Path(__file__).with_name("transformers4_client.py")


def main() -> int:
    # The model is a BERT that was fine-tuned on SST-2; rows of train, as many as the examples, score the heads.
    given = {"data_root": os.environ.get("COMPRESS_DATA"), "examples": 1024, "seed": 0}
    arguments = read_options(__doc__, positional=("pip_options", "*"), model=str, **given)
    python = python_of("transformers-4", arguments.pip_options)
    directory = Model.open(arguments.model)
    model, tokenizer = directory.load().eval(), directory.tokenizer
    root = None if arguments.data_root is None else Path(arguments.data_root)
    train, dev = rows_of(root, arguments.examples, arguments.seed, directory.labels)
    gradients, found = importance(model, tokenizer, train)
    print(table(found), flush=True)
    compared = variants(model, tokenizer, gradients, dev, arguments.seed)
    print(table(compared), flush=True)
    lowest = mask_lowest(normalised(exact(gradients)), unmasked_heads(exact(gradients)), count_of(exact(gradients)))
    texts = [example.text for example in dev.examples[:LOGIT_ROWS]]
    batch = dict(tokenizer(texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"))
    chosen = {layer: (mask == 0).nonzero().flatten().tolist() for layer, mask in enumerate(lowest)}
    cases = [(directory.name, model, batch, chosen)]
    cases += [(f"random {family}", *random_model(family, arguments.seed), UNEVEN) for family in FAMILIES]
    removed = [removal(python, *case) for case in cases]
    print(table(removed))
    common = {
        "model": directory.name,
        "data": SET,
        "train_rows": len(train.examples),
        "dev_rows": len(dev.examples),
        "train_sha256": content_sha256(train.examples),
        "dev_sha256": content_sha256(dev.examples),
        "seed": arguments.seed,
        **provenance(),
    }
    lines = [*found, *compared, *removed]
    write_json_lines(arguments.output, [{**line, **common} for line in lines])
    return int(any(line["difference"] > line["tolerance"] for line in lines if "tolerance" in line))


def rows_of(root: Path | None, count: int, seed: int, labels: Sequence[str]) -> tuple[Gold, Gold]:
    """Return a random sample of train, without what dev holds too, and all of dev."""
    roles = {
        role: open_source(find_set(root, SET, split), role=role, labelled=True)
        for role, split in (("train", "train"), ("test", "dev"))
    }
    checked = check_roles(roles, overlap="drop").sets
    train, dev = list(checked["train"]), list(checked["test"])
    if not 0 < count <= len(train):
        raise CompressError(f"--examples {count} is not a number of the {len(train):,} rows of train; give 1 or more")
    return tuple(  # type: ignore[return-value]
        Gold(rows, find_task("classification").gold(rows, labels, name))
        for name, rows in (("train", random.Random(seed).sample(train, count)), ("dev", dev))
    )


def importance(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, train: Gold
) -> tuple[HeadGradients, list[dict[str, Any]]]:
    """Compare our scores with those of one backward for each example, and some of these with finite differences."""
    texts, labels = [example.text for example in train.examples], list(train.labels)
    lines = []
    for name, number in (("float32", model), ("float64", copy.deepcopy(model).double())):
        gradients = head_gradients(number, tokenizer, texts, labels, max_length=MAX_LENGTH)  # type: ignore[arg-type]
        pairs = list(zip(texts, map(str, labels), strict=True))
        ours = head_importance(number, pairs, tokenizer=tokenizer, max_length=MAX_LENGTH)
        lines.append(
            {
                "kind": "importance",
                "compared": "compress.head_importance and one backward for each example",
                "precision": name,
                "examples": len(texts),
                "heads": ours.numel(),
                **apart(ours, exact(gradients)),
                "tolerance": TOLERANCES[name],
            }
        )
    few = slice(DIFFERENCE_ROWS)
    scores = exact(gradients)
    places = [(layer, int(head)) for layer, row in enumerate(scores) for head in (row.argmin(), row.argmax())]
    slopes = [
        finite_differences(number, tokenizer, texts[few], labels[few], layer=layer, head=head, max_length=MAX_LENGTH)
        for layer, head in places
    ]
    backward = torch.stack([gradients.signed[few, layer, head] for layer, head in places])
    lines.append(
        {
            "kind": "importance",
            "compared": "one backward for each example and finite differences",
            "precision": "float64",
            "examples": len(texts[few]),
            "heads": len(places),
            **apart(backward.abs().mean(dim=1), torch.stack(slopes).abs().mean(dim=1)),
            "tolerance": TOLERANCES["finite differences"],
        }
    )
    return gradients, lines


def apart(ours: Tensor, theirs: Tensor) -> dict[str, float]:
    """Return the largest difference of scores, relative to theirs and in itself."""
    away = (ours.double() - theirs).abs()
    return {"difference": float((away / theirs).max()), "absolute_difference": float(away.max())}


def variants(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, gradients: HeadGradients, dev: Gold, seed: int
) -> list[dict[str, Any]]:
    """Rank heads by every variant, in several orders of the rows, and judge the model without those it finds lowest."""
    gold = np.asarray(dev.labels)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        rows = EvaluationRows(dev, ACCURACY, 2, MAX_LENGTH, find_task("classification"))
        judged = MaskedEvaluation(model, tokenizer, rows, Path(folder))
        whole = judged.value()
        for by_layer in (False, True):
            reference = exact(gradients)
            kept = masks_of(reference, by_layer)
            for variant in VARIANTS:
                drawn = orders_of(variant, len(gradients.tokens), seed)
                orders = [variant.scores(gradients.of(rows)) for rows in drawn]
                masks = [masks_of(scores, by_layer) for scores in orders]
                ranks = [rank_correlation(scores, reference, by_layer) for scores in orders]
                shared = [shared_heads(one, kept) for one in masks]
                accuracies = [judged.value({"heads": one}) for one in masks[:JUDGED_ORDERS]]
                ratio = orders[0] / reference
                against = paired_difference(
                    judged.predicted({"heads": masks[0]}),
                    judged.predicted({"heads": kept}),
                    gold,
                    metric=ACCURACY,
                    classes=2,
                )
                lines.append(
                    {
                        "kind": "variant",
                        "variant": variant.name,
                        "batch_size": variant.batch_size,
                        "normalised_by_layer": by_layer,
                        "orders": ORDERS,
                        "judged_orders": JUDGED_ORDERS,
                        **spread("rank_correlation", ranks),
                        "heads_removed": count_of(reference),
                        **spread("heads_shared", shared),
                        "ratio": float(ratio.median()),
                        "ratio_lowest": float(ratio.min()),
                        "ratio_highest": float(ratio.max()),
                        **spread("accuracy", accuracies),
                        "accuracy_whole": whole,
                        "points": against.points,
                        "points_low": against.low,
                        "points_high": against.high,
                        "mcnemar_p": against.mcnemar_p,
                    }
                )
    return lines


def orders_of(variant: Variant, rows: int, seed: int) -> list[Tensor]:
    """Return :data:`ORDERS` orders of the rows, or as many samples of them with replacement."""
    generator = torch.Generator().manual_seed(seed)
    if variant.resampled:
        return [torch.randint(rows, (rows,), generator=generator) for _ in range(ORDERS)]
    return [torch.randperm(rows, generator=generator) for _ in range(ORDERS)]


def unmasked_heads(scores: Tensor) -> list[Tensor]:
    return [torch.ones(scores.shape[1]) for _ in scores]


def count_of(scores: Tensor) -> int:
    return units_to_remove("--heads", REMOVED, [scores.shape[1]] * len(scores), "heads")


def masks_of(scores: Tensor, by_layer: bool) -> list[Tensor]:
    """Return masks ``[H]`` of each layer with the lowest heads masked; ``by_layer``: after division by its norm."""
    return mask_lowest(normalised(scores) if by_layer else scores, unmasked_heads(scores), count_of(scores))


def rank_correlation(scores: Tensor, reference: Tensor, by_layer: bool) -> float:
    one, other = (normalised(values) if by_layer else values for values in (scores, reference))
    return float(spearmanr(one.flatten(), other.flatten()).statistic)


def shared_heads(one: Sequence[Tensor], other: Sequence[Tensor]) -> int:
    """Return how many heads are masked in both."""
    return int(sum(((first + second) == 0).sum() for first, second in zip(one, other, strict=True)))


def spread(name: str, values: Sequence[float]) -> dict[str, float]:
    """Return the first value, and the lowest and highest of all orders."""
    return {name: values[0], f"{name}_lowest": min(values), f"{name}_highest": max(values)}


def random_model(family: str, seed: int) -> tuple[PreTrainedModel, dict[str, Tensor]]:
    """Return a small model with random weights, and rows of unequal length."""
    settings: dict[str, Any] = {
        "vocab_size": 200,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "pad_token_id": 1,
        "initializer_range": 0.2,
    }
    if family == "distilbert":
        settings["hidden_dim"] = settings.pop("intermediate_size")
    torch.manual_seed(seed)
    model = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(family, **settings)).eval()
    lengths = torch.arange(LOGIT_ROWS)[:, None] + 5
    mask = (torch.arange(int(lengths.max())) < lengths).long()
    return model, {"input_ids": torch.where(mask == 1, torch.randint(2, 200, mask.shape), 1), "attention_mask": mask}


@torch.no_grad()
def removal(
    python: Path, name: str, model: PreTrainedModel, batch: Mapping[str, Tensor], heads: Mapping[int, list[int]]
) -> dict[str, Any]:
    """Compare the logits of a model that we slice with those of the same model in transformers 4's ``prune_heads``."""
    with tempfile.TemporaryDirectory() as folder:
        directory, inputs, chosen, output = (Path(folder) / part for part in ("model", "in.npz", "heads", "out.npz"))
        model.save_pretrained(directory)
        np.savez(inputs, **{key: values.numpy() for key, values in batch.items()})  # type: ignore[arg-type]
        chosen.write_text(json.dumps(heads), encoding="utf-8")
        command = [str(python), str(CLIENT), *map(str, (directory, inputs, chosen, output))]
        run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        theirs = dict(np.load(output))
    sliced = copy.deepcopy(model)
    remove_heads(sliced, heads)
    whole, ours = (one(**batch).logits.numpy() for one in (model, sliced))
    left: Any = sliced.config
    return {
        "kind": "removal",
        "of": name,
        "family": model.config.model_type,
        "rows": len(ours),
        "heads_per_layer": [len(kept) for kept in left.kept_heads],
        "change": float(abs(ours - whole).max()),
        "whole_difference": float(abs(whole - theirs["whole"]).max()),
        "difference": float(abs(ours - theirs["pruned"]).max()),
        "tolerance": TOLERANCES["logits"],
        "parameters": sum(weight.numel() for weight in sliced.parameters()),
        "peer_parameters": int(theirs["parameters"]),
        "peer_versions": json.loads(run.stdout),
    }


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines of one kind as columns."""
    header = [key for key in lines[0] if key not in {"kind", "peer_versions"}]
    cells = [[line[key] for key in header] for line in lines]
    rows = [[f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row] for row in cells]
    return columns(header, rows)


if __name__ == "__main__":
    raise SystemExit(main())
