"""Foreign text stays text: one function a medium shows names, texts and messages of others, and nothing in it acts."""
