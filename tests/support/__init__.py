"""What several tests share: tiny models and data, and where the repository is."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

# The variable that names the folder of tiny models, which all processes of a run of tests share.
MODELS_FOLDER = "COMPRESS_TEST_MODELS"
