"""Valid files, one change of them drawn at random, and what commands and readers make of the result."""
