"""Do the losses give the numbers of the implementations that others maintain?

    python benchmarks/parity/loss_parity.py -o benchmarks/results/loss-parity.jsonl [-- PIP OPTIONS]

The same random outputs of a student and a teacher, three texts of unequal length, go through our losses, through those
of TextBrewer in an environment of its own ($COMPRESS_COMPETITORS, made here if it is not there) and through
transformers' own masked language model; where nobody maintains a loss any more, through the authors' formula, written
again in numpy. Where a competitor divides by something else, or gives a cross-entropy for a divergence, its value is
converted and the conversion is printed. One line of JSON is written for each comparison; the exit status is 1 if one
differs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForMaskedLM

from compress import plugins
from compress.files import write_json_lines
from compress.models.batch import NO_TARGET, Batch, Outputs
from compress.training.losses._common import VocabularyHead, split_heads

sys.path.append(str(Path(__file__).resolve().parents[1]))
from competitor_environments import python_of  # noqa: I001
from script import columns, provenance, read_options  # noqa: I001

LENGTHS, CLASSES, WIDTH, HEADS, RELATION_HEADS, VOCABULARY = (9, 6, 4), 3, 32, 4, 8, 50
TEMPERATURE, TOLERANCE, CLOSED = 3.0, 1e-5, -10000.0
SIDES = ("student", "teacher")

# Runs in the competitor's environment, which has none of our modules: arrays in, TextBrewer's losses out.
CLIENT = """
import json, sys
import numpy, torch, textbrewer
from textbrewer import losses
arrays = {name: torch.from_numpy(array) for name, array in numpy.load(sys.argv[1]).items()}
mask, temperature = arrays["mask"], float(sys.argv[2])
pairs = {name: (arrays["student_" + name], arrays["teacher_" + name])
         for name in ("logits", "hidden", "attention", "query", "key", "value")}

def entropy_free(loss, student, teacher, *rest):
    return loss(student, teacher, *rest) - loss(teacher, teacher, *rest)

def by_example(student, teacher):
    single = zip(*(tensor.split(1) for tensor in (student, teacher, mask)))
    return sum(entropy_free(losses.att_ce_loss, *example) for example in single) / len(mask)

values = {
    "kd_ce": entropy_free(losses.kd_ce_loss, *pairs["logits"], temperature),
    "kd_mse": losses.kd_mse_loss(*pairs["logits"]),
    "hid_mse": losses.hid_mse_loss(*pairs["hidden"], mask),
    "cos": losses.cos_loss(*pairs["hidden"], mask),
    "cos_first": losses.cos_loss(*(states[:, :1] for states in pairs["hidden"]), mask[:, :1]),
    "pkd": losses.pkd_loss(*pairs["hidden"]),
    "att_mse": losses.att_mse_loss(*pairs["attention"], mask),
    **{"att_ce_" + name: by_example(*pairs[name]) for name in ("attention", "query", "key", "value")},
}
print(json.dumps({"version": textbrewer.__version__, "torch": torch.__version__,
                  "values": {name: float(value) for name, value in values.items()}}))
"""


@dataclass(frozen=True)
class Comparison:
    """Our value of a loss and a competitor's, after the conversion that ``by_design`` describes."""

    loss: str
    options: dict[str, Any]
    ours: float
    peer_name: str
    competitor: float
    by_design: str

    @property
    def difference(self) -> float:
        """Relative to the competitor's value."""
        return abs(self.ours - self.competitor) / abs(self.competitor)


def main() -> int:
    arguments = read_options(__doc__, positional=("pip_options", "*"), seed=0)
    python = python_of("textbrewer", arguments.pip_options)
    student, teacher, batch = random_outputs(arguments.seed)
    competitor = textbrewer(python, student, teacher, batch)
    found = [
        *against_textbrewer(student, teacher, batch, competitor["values"]),
        against_transformers(arguments.seed),
        *against_formulas(student, teacher, batch),
    ]
    common = {
        "tolerance": TOLERANCE,
        "seed": arguments.seed,
        **provenance(),
        "peer_versions": {"textbrewer": competitor["version"], "torch": competitor["torch"]},
    }
    write_json_lines(arguments.output, [{**asdict(one), "difference": one.difference, **common} for one in found])
    print(table(found))
    return int(any(one.difference > TOLERANCE for one in found))


def table(found: list[Comparison]) -> str:
    header = ("loss", "ours", "competitor", "difference", "compared with", "differs by design")
    figures = ((f"{one.ours:.6f}", f"{one.competitor:.6f}", f"{one.difference:.0e}") for one in found)
    rows = [(one.loss, *own, one.peer_name, one.by_design or "-") for one, own in zip(found, figures, strict=True)]
    return columns(header, rows)


def random_outputs(seed: int) -> tuple[Outputs, Outputs, Batch]:
    """Return random outputs of one layer of a student and a teacher, for texts of :data:`LENGTHS`."""
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = len(LENGTHS), max(LENGTHS)

    def side() -> Outputs:
        logits = torch.randn(rows, CLASSES, generator=generator)
        hidden = tuple(torch.randn(rows, tokens, WIDTH, generator=generator) for _ in range(2))
        queries, keys, values = torch.randn(3, rows, HEADS, tokens, WIDTH // HEADS, generator=generator)
        return Outputs(logits, hidden, (queries,), (keys,), (values,))

    mask = torch.tensor([[int(token < length) for token in range(tokens)] for length in LENGTHS])
    targets = torch.randint(VOCABULARY, (rows, tokens), generator=generator)
    targets = targets.where((torch.arange(tokens) % 3 == 1) & (mask == 1), NO_TARGET)
    return side(), side(), Batch(torch.ones_like(mask), mask, targets=targets)


def compared(
    student: Outputs,
    teacher: Outputs,
    batch: Batch,
    loss: str,
    *,
    peer_name: str,
    competitor: Any,
    options: dict[str, Any] | None = None,
    learned: tuple[nn.Module, ...] = (),
    by_design: str = "",
) -> Comparison:
    """Compute our loss, with the modules that it has learned, beside a competitor's value."""
    options = options or {}
    ours: Tensor = plugins.find("losses", loss).function(student, teacher, batch, *learned, **options)
    return Comparison(
        loss=loss,
        options=options,
        ours=float(ours),
        peer_name=peer_name,
        competitor=float(competitor),
        by_design=by_design,
    )


def textbrewer(python: Path, student: Outputs, teacher: Outputs, batch: Batch) -> dict[str, Any]:
    """Run :data:`CLIENT` on scores as a model has them, with a large negative number where a key is padding."""
    closed = (batch.attention_mask == 0)[:, None, None, :]
    arrays: dict[str, np.ndarray] = {"mask": batch.attention_mask.numpy()}
    for name, outputs in zip(SIDES, (student, teacher), strict=True):
        own = {"attention": (outputs.queries[0], outputs.keys[0])}
        for relation, vectors in (("query", outputs.queries), ("key", outputs.keys), ("value", outputs.values)):
            own[relation] = (split_heads(vectors[0], RELATION_HEADS),) * 2
        for relation, (left, right) in own.items():
            scores = torch.einsum("bhqd,bhkd->bhqk", left, right) / left.shape[-1] ** 0.5
            arrays[f"{name}_{relation}"] = scores.masked_fill(closed, CLOSED).numpy()
        arrays[f"{name}_logits"], arrays[f"{name}_hidden"] = outputs.logits.numpy(), outputs.hidden[-1].numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "arrays.npz"
        np.savez(path, **arrays)  # type: ignore[arg-type]
        command = [str(python), "-c", CLIENT, str(path), str(TEMPERATURE)]
        run = subprocess.run(command, check=True, capture_output=True, text=True)
    answer: dict[str, Any] = json.loads(run.stdout)
    return answer


def against_textbrewer(student: Outputs, teacher: Outputs, batch: Batch, values: dict[str, float]) -> list[Comparison]:
    cross_entropy = "cross-entropy less its value for the teacher itself"
    final = {"layers": "final"}

    def beside(loss: str, function: str, competitor: float, **more: Any) -> Comparison:
        peer_name = f"TextBrewer {function}"
        return compared(student, teacher, batch, loss, peer_name=peer_name, competitor=competitor, **more)

    return [
        beside(
            "kl",
            "kd_ce_loss",
            TEMPERATURE**2 * values["kd_ce"],
            options={"temperature": TEMPERATURE},
            by_design=f"{cross_entropy}; times T**2, which it leaves out",
        ),
        beside("logit-mse", "kd_mse_loss", values["kd_mse"]),
        beside("hidden-mse", "hid_mse_loss", values["hid_mse"], options=final, learned=(nn.Identity(),)),
        beside("hidden-cosine", "cos_loss", values["cos"]),
        beside(
            "first-cosine", "cos_loss", values["cos_first"], options=final, by_design="given the first tokens alone"
        ),
        beside("patience", "pkd_loss", values["pkd"], options=final),
        beside("attention-mse", "att_mse_loss", values["att_mse"], options=final),
        beside(
            "attention-kl",
            "att_ce_loss",
            values["att_ce_attention"],
            options=final,
            by_design=f"{cross_entropy}; a mean for each example, where it takes one over all tokens",
        ),
        beside(
            "relations",
            "att_ce_loss",
            sum(values[f"att_ce_{name}"] for name in ("query", "key", "value")),
            options={"relation_heads": RELATION_HEADS},
            by_design=f"{cross_entropy}; for each example and relation, given their scores",
        ),
    ]


def against_transformers(seed: int) -> Comparison:
    """Compare mlm with the loss of a whole BERT, given the weights of its head."""
    torch.manual_seed(seed)
    shape: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": HEADS, "intermediate_size": WIDTH}
    config = BertConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, **shape)
    model = BertForMaskedLM(config).eval()
    student, _, batch = random_outputs(seed)
    assert batch.targets is not None
    head, theirs = VocabularyHead(model), model.cls.predictions
    head.dense.load_state_dict(theirs.transform.dense.state_dict())
    head.norm.load_state_dict(theirs.transform.LayerNorm.state_dict())
    head.norm.eps = config.layer_norm_eps
    with torch.no_grad():
        outputs = model(**batch.inputs(), labels=batch.targets, output_hidden_states=True)
        ours = Outputs(student.logits, outputs.hidden_states)
        peer = {"peer_name": "transformers BertForMaskedLM", "competitor": outputs.loss}
        return compared(ours, student, batch, "mlm", learned=(head,), **peer)


def against_formulas(student: Outputs, teacher: Outputs, batch: Batch) -> list[Comparison]:
    """Compare with what the authors' code computes, on texts of one length where that code counts padding too."""
    whole = Batch(batch.input_ids, torch.ones_like(batch.attention_mask))
    h_s, h_t = (side.hidden[-1].double().numpy() for side in (student, teacher))
    scores = [
        np.einsum("bhqd,bhkd->bhqk", side.queries[0].double(), side.keys[0].double()) / np.sqrt(WIDTH // HEADS)
        for side in (student, teacher)
    ]
    first = [h[:, 0] / np.linalg.norm(h[:, 0], axis=-1, keepdims=True) for h in (h_s, h_t)]
    norm_s, norm_t = ((h - h.mean(-1, keepdims=True)) / np.sqrt(h.var(-1, keepdims=True) + 1e-5) for h in (h_s, h_t))
    statistics = 5000 * ((h_s.mean(-1) - h_t.mean(-1)) ** 2).mean() + 5 * np.abs(h_s.var(-1) - h_t.var(-1)).mean()
    attention = mean_divergence([student.queries, student.keys], [teacher.queries, teacher.keys])
    minilm = attention + mean_divergence([student.values] * 2, [teacher.values] * 2)
    masked, same, final = hidden_as_logits(batch), nn.Identity(), {"layers": "final"}
    padded, mobile = "texts of one length: it counts padding", "authors' code (MobileBERT)"
    beside = partial(compared, student, teacher)
    return [
        beside(
            batch,
            "patience",
            options=final,
            peer_name="authors' code",
            competitor=((first[0] - first[1]) ** 2).mean() * WIDTH,
            by_design="times the width, over which it takes the mean",
        ),
        beside(
            whole,
            "attention-mse",
            options=final,
            peer_name="authors' code",
            competitor=((scores[0] - scores[1]) ** 2).mean(),
            by_design=padded,
        ),
        beside(batch, "attention-kl", options=final, peer_name="paper", competitor=attention),
        beside(
            batch,
            "relations",
            options={"relations": ["attention", "value"]},
            peer_name="paper (MiniLM)",
            competitor=minilm,
        ),
        beside(
            whole,
            "hidden-mse",
            options={**final, "normalised": True},
            learned=(same,),
            peer_name=mobile,
            competitor=((norm_s - norm_t) ** 2).mean(),
            by_design=padded,
        ),
        beside(whole, "hidden-statistics", options=final, peer_name=mobile, competitor=statistics, by_design=padded),
        beside(
            masked,
            "vocabulary-kl",
            options={"temperature": TEMPERATURE},
            learned=(nn.ModuleDict({"student": same, "teacher": same}),),
            peer_name="authors' code (DistilBERT)",
            competitor=distilbert(h_s, h_t, masked),
            by_design="of masked tokens alone; plus the cross-entropy of the teacher's head, which it does not train",
        ),
    ]


def hidden_as_logits(batch: Batch) -> Batch:
    """Return a batch whose targets are places of the hidden width, so that heads can be left out."""
    assert batch.targets is not None
    return Batch(batch.input_ids, batch.attention_mask, targets=batch.targets.clamp(max=WIDTH - 1))


def distilbert(h_s: np.ndarray, h_t: np.ndarray, batch: Batch) -> float:
    assert batch.targets is not None
    targets = batch.targets.numpy()
    chosen = targets != NO_TARGET
    log_s, log_t = (log_softmax(h[chosen] / TEMPERATURE) for h in (h_s, h_t))
    divergence = TEMPERATURE**2 * (np.exp(log_t) * (log_t - log_s)).sum(-1).mean()
    return float(divergence - log_softmax(h_t[chosen])[np.arange(chosen.sum()), targets[chosen]].mean())


def mean_divergence(student: list[tuple[Tensor, ...]], teacher: list[tuple[Tensor, ...]]) -> float:
    """Return ``1/(A |x|) sum KL(teacher || student)`` of an example, its padding cut off; the mean over examples."""
    found = []
    for row, length in enumerate(LENGTHS):
        sums = []
        for head in range(HEADS):
            logs = []
            for left, right in (student, teacher):
                cut = [vectors[0][row, head, :length].double().numpy() for vectors in (left, right)]
                logs.append(log_softmax(cut[0] @ cut[1].T / np.sqrt(WIDTH // HEADS)))
            sums.append((np.exp(logs[1]) * (logs[1] - logs[0])).sum())
        found.append(sum(sums) / (HEADS * length))
    return float(np.mean(found))


def log_softmax(scores: np.ndarray) -> np.ndarray:
    shifted = scores - scores.max(-1, keepdims=True)
    normalised: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return normalised


if __name__ == "__main__":
    raise SystemExit(main())
