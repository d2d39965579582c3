"""Variants of unlabelled text: ``augmenter(teacher, tokenizer, corpus, *, options)``, one a file, returns a
function from an example and a random generator to a variant of it."""
