"""What several tests share: tiny models and data, and where the repository is."""

from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
