"""Run a whole study: plan its stages, open its data, keep a journal of what is done."""
