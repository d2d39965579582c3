"""The CI gate: budgets, reference results, verdicts, and their output for CI."""
