"""Valid files, one change of them drawn at random, and what commands and readers make of the result."""

import os

# Read when torch is imported. OpenMP's threads do not survive a fork: a forked process would wait for them forever.
os.environ.setdefault("OMP_NUM_THREADS", "1")
