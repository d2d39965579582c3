"""What a gate is made of: budgets, baselines, and how a verdict is handed to CI."""
