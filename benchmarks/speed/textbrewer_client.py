"""TextBrewer's side of distillation_speed.py. It runs in an environment that has none of our modules.

    python textbrewer_client.py STUDENT TEACHER THREADS SCRATCH

A line of JSON on standard input asks for one training (see :class:`Turns`), one on standard output answers with the
mean milliseconds of its steps. The first line that is written names the versions.
"""

import json
import sys
import time

import numpy
import textbrewer
import torch
import transformers
from textbrewer import DistillationConfig, GeneralDistiller, TrainingConfig


class TimedBatches:
    """A data loader of finished batches that notes when each is asked for, and when there is none left."""

    def __init__(self, path):
        arrays = numpy.load(path)
        self.batches = [{} for _ in range(1 + max(int(key.partition("/")[0]) for key in arrays))]
        for key in arrays:
            index, _, name = key.partition("/")
            self.batches[int(index)][name] = torch.from_numpy(arrays[key])
        self.asked = []

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        for batch in self.batches:
            self.asked.append(time.perf_counter())
            yield batch
        self.asked.append(time.perf_counter())

    def step_ms(self, warm_up):
        return 1000 * (self.asked[-1] - self.asked[warm_up]) / (len(self) - warm_up)


class WithoutSaving(GeneralDistiller):
    """Our steps are timed without checkpoints, so these are too."""

    def save_and_callback(self, *arguments):
        pass


def adaptor(batch, outputs):
    found = {"logits": outputs.logits, "inputs_mask": batch["attention_mask"]}
    if outputs.hidden_states is not None:
        found["hidden"] = outputs.hidden_states
    if outputs.attentions is not None:
        found["attention"] = outputs.attentions
    return found


class Turns:
    """One student and its teacher, trained as each request says.

    A request has ``batches`` (an npz file), ``warm_up`` (steps that are not timed), ``matches`` (TextBrewer's, of
    intermediate features), ``outputs`` (what the models are asked for beside logits), ``attention`` (transformers' name
    of its implementation), ``temperature``, ``learning_rate``, ``weight_decay`` and ``max_gradient_norm``.
    """

    def __init__(self, student, teacher, scratch):
        load = transformers.AutoModelForSequenceClassification.from_pretrained
        self.student, self.teacher = (load(path, dtype=torch.float32) for path in (student, teacher))
        self.config = TrainingConfig(device="cpu", output_dir=scratch)

    def __call__(self, request):
        for model in (self.student, self.teacher):
            model.set_attn_implementation(request["attention"])
        batches = TimedBatches(request["batches"])
        distiller = WithoutSaving(
            self.config,
            DistillationConfig(temperature=request["temperature"], intermediate_matches=request["matches"]),
            self.teacher,
            self.student,
            adaptor,
            adaptor,
        )
        optimizer = torch.optim.AdamW(
            self.student.parameters(), lr=request["learning_rate"], weight_decay=request["weight_decay"], fused=True
        )
        with distiller:
            distiller.train(
                optimizer,
                batches,
                num_epochs=1,
                scheduler_class=torch.optim.lr_scheduler.LinearLR,
                scheduler_args={"start_factor": 1.0, "end_factor": 0.0, "total_iters": len(batches)},
                max_grad_norm=request["max_gradient_norm"],
                **request["outputs"],
            )
        return batches.step_ms(request["warm_up"])


def main():
    student, teacher, threads, scratch = sys.argv[1:]
    torch.set_num_threads(int(threads))
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    turns = Turns(student, teacher, scratch)
    versions = {module.__name__: module.__version__ for module in (textbrewer, torch, transformers)}
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps({"step_ms": turns(json.loads(line))}), file=answers, flush=True)


if __name__ == "__main__":
    main()
