# %% [markdown]
# # Names in a text: entities, and where they are
#
# Run it as a script, or cell by cell in an editor that knows them. It needs `compress[train]`, pandas and datasets.

# %% Inputs: replace them by yours
import datasets

import compress

wnut = datasets.load_dataset("leondz/wnut_17")
train, validation, test = (
    wnut["train"],
    wnut["validation"].select(range(500)),
    wnut["validation"].select(range(500, 1_009)),
)
texts = [" ".join(words) for words in wnut["test"]["tokens"]]  # without tags
encoder = "sentence-transformers/all-MiniLM-L6-v2"
student = "bilstm-tagger"

# %% Fine-tune a teacher: tags of a scheme such as BIO make a tagger of entities
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
