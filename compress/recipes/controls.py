"""Match each student with its control, the same student trained on gold labels alone.

A control does not see the phases of its student, so that students which differ in these only share one.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

# Of a student's recipe. Variants of the text count too: they are in the number of steps and in a learned vocabulary.
DECIDING = ("architecture", "vocabulary", "augmentation", "training")


def control_key(recipe: Mapping[str, Any], seed: int | None) -> str:
    """Return a fingerprint of all that decides a student's control, from its recipe as a manifest holds it.

    Empty where the recipe is not one of a student.
    """
    if "architecture" not in recipe:
        return ""
    deciding = [seed, *(recipe.get(key) for key in DECIDING)]
    return hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()
