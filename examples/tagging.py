# %% [markdown]
# # Parts of speech: a tag for each word
#
# Run it as a script, or cell by cell in an editor that knows them. It needs `compress[train]`, pandas and datasets.

# %% Inputs: replace them by yours
import datasets

import compress

treebank = datasets.load_dataset("universal-dependencies/universal_dependencies", "en_gum")
train, validation, test = (
    treebank[split].select_columns(["tokens", "upos"]).rename_column("upos", "tags")
    for split in ("train", "validation", "test")
)
texts = list(treebank["train"]["text"])  # without tags
encoder = "sentence-transformers/all-MiniLM-L6-v2"
student = "bilstm-tagger"

# %% Fine-tune a teacher: labelled words make a tagger
teacher = compress.finetune(encoder, train=train, validation=validation)

# %% Distil: the teacher tags the text, and the student learns its logits
model = compress.distill(teacher, student, unlabeled=texts, train=train, validation=validation)
model.predict("Ada Lovelace lived in London")

# %% Prune the teacher instead: half of its attention heads go
pruned = compress.prune(teacher, heads="50%", train=train, validation=validation)

# %% Measure against the teacher, in one run
results = compress.benchmark(teacher, [model, pruned], test)
results.to_pandas()

# %% A report as HTML, Markdown and JSON
results.report("report")
