"""Valid files, one change of them drawn at random, and what commands and readers make of the result."""

import os

# Read when torch is imported. A forked process would wait for OpenMP's threads, which only the first one has.
os.environ["OMP_NUM_THREADS"] = "1"
