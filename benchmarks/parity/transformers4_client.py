"""transformers 4's side of importance_parity.py: its own removal of heads, in an environment without our modules.

    python transformers4_client.py MODEL INPUTS.npz HEADS.json OUTPUT.npz

Reads an ordinary model directory, the arrays of one batch and ``{layer: [heads]}``; writes logits before (``whole``)
and after ``prune_heads`` (``pruned``), and how many parameters are left. One line of JSON on standard output names the
versions.
"""

import json
import sys
from pathlib import Path

import numpy
import torch
import transformers


def main():
    directory, inputs, heads, output = sys.argv[1:]
    model = transformers.AutoModelForSequenceClassification.from_pretrained(directory, dtype=torch.float32).eval()
    batch = {name: torch.from_numpy(array) for name, array in numpy.load(inputs).items()}
    with torch.no_grad():
        whole = model(**batch).logits
        model.prune_heads({int(layer): chosen for layer, chosen in json.loads(Path(heads).read_text()).items()})
        pruned = model(**batch).logits
    left = sum(parameter.numel() for parameter in model.parameters())
    numpy.savez(output, whole=whole.numpy(), pruned=pruned.numpy(), parameters=left)
    print(json.dumps({module.__name__: module.__version__ for module in (transformers, torch)}))


if __name__ == "__main__":
    main()
