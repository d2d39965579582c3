# %% [markdown]
# # Emotions of a comment: several labels a text
#
# Run it as a script, or cell by cell in an editor that knows them. It needs `compress[train]`, pandas and datasets.

# %% Inputs: replace them by yours
import datasets

import compress

emotions = datasets.load_dataset("google-research-datasets/go_emotions", "simplified")
train, validation, test = (emotions[split] for split in ("train", "validation", "test"))
texts = list(emotions["train"]["text"])  # without labels; the more the better
encoder = "sentence-transformers/all-MiniLM-L6-v2"
student = "cnn"

# %% Fine-tune a teacher: rows with a list of labels make one that gives several
teacher = compress.finetune(encoder, train=train, validation=validation)

# %% Distil: the teacher labels the text, and the student learns its logits
model = compress.distill(teacher, student, unlabeled=texts, train=train, validation=validation)
model.predict("I love this, thank you")

# %% Probabilities [N, C], each of its own, in the order of model.labels
model.predict_proba(["I love this", "what is it?"])

# %% Quantize: int8 is kept only if it is accurate enough and faster
small = model.quantize(validation=validation)

# %% Measure against the teacher, in one run
results = compress.benchmark(teacher, [model, small], test)
results.to_pandas()

# %% A report as HTML, Markdown and JSON
results.report("report")
