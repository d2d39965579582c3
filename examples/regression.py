# %% [markdown]
# # Similarity of two sentences: a score from a pair of texts
#
# Run it as a script, or cell by cell in an editor that knows them. It needs `compress[train]`, pandas and datasets.

# %% Inputs: replace them by yours
import datasets

import compress

stsb = datasets.load_dataset("nyu-mll/glue", "stsb")
train, validation = stsb["train"].select(range(5_000)), stsb["train"].select(range(5_000, 5_749))
test = stsb["validation"].to_pandas()  # a data frame does as well
texts = list(zip(stsb["test"]["sentence1"], stsb["test"]["sentence2"], strict=True))  # pairs without scores
encoder = "sentence-transformers/all-MiniLM-L6-v2"
student = "bilstm-siamese"

# %% Fine-tune a teacher: labels that are numbers make a regression
teacher = compress.finetune(encoder, train=train, validation=validation)
teacher.predict(("A man plays a guitar.", "Somebody makes music."))

# %% Distil: the teacher scores the pairs, and the student learns its scores
model = compress.distill(teacher, student, unlabeled=texts, train=train, validation=validation)

# %% Measure by Pearson's correlation
results = compress.benchmark(teacher, [model], test)
results.to_pandas()

# %% A report as HTML, Markdown and JSON
results.report("report")
