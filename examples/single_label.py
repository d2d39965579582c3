# %% [markdown]
# # Sentiment of a sentence: a small student from a fine-tuned teacher
#
# Run it as a script, or cell by cell in an editor that knows them. It needs `compress[train]`, pandas and datasets.

# %% Inputs: replace them by yours
import datasets

import compress

sst2 = datasets.load_dataset("nyu-mll/glue", "sst2")
train, validation, test = (
    sst2["train"].select(range(60_000)),
    sst2["train"].select(range(60_000, 67_349)),
    sst2["validation"],
)
texts = list(sst2["train"]["sentence"])  # without labels; the more the better
teacher = "distilbert/distilbert-base-uncased-finetuned-sst-2-english"  # a directory, or a name in the hub
student = "cnn"

# %% Distil: the teacher labels the text, and the student learns its logits
model = compress.distill(teacher, student, unlabeled=texts, train=train, validation=validation)
model.predict("a good film")

# %% Probabilities [N, C], in the order of model.labels
model.predict_proba(["a good film", "dull and long"])

# %% Quantize: int8 is kept only if it is accurate enough and faster
small = model.quantize(validation=validation)

# %% Measure against the teacher, in one run
results = compress.benchmark(teacher, [model, small], test)
results.to_pandas()

# %% A report as HTML, Markdown and JSON
results.report("report")
