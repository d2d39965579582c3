"""Fixtures that several tests share, and settings that make the tests offline and repeatable.

The first process of pytest-xdist runs no test, and the others start after it has read this file: what imports torch is
imported by fixtures.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.support import GRAPHS_FOLDER, MODELS_FOLDER, keep_collector_off_what_stays, torch_as_it_is

# Tiny models lose more by threads that wait for each other than they win. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
# Without their compiled form, each process of tests and each command compiles the tests and the whole package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import hypothesis  # noqa: E402
import pytest  # noqa: E402

hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None, max_examples=50)
hypothesis.settings.load_profile("tests")


# Modules that train, export, start processes or read real data: most of the time of all tests. The others are "fast",
# but for tests with the mark "slow" or "shared".
SLOW = frozenset(
    """
    benchmarking/test_benchmark benchmarking/test_comparison_entries benchmarking/test_competitors
    benchmarking/test_random_weights benchmarking/test_replay benchmarks/test_beside_other_work
    benchmarks/test_compositions benchmarks/test_distillation_speed benchmarks/test_estimators
    benchmarks/test_few_rows benchmarks/test_gpu benchmarks/test_gpu_window benchmarks/test_importance_parity
    benchmarks/test_training_profile calibration/test_calibrate cascades/test_cascade cli/test_cli cli/test_extremes
    cli/test_foreign_code cli/test_kinds_of_teachers cli/test_label_meaning cli/test_startup examples/test_examples
    exporting/test_export exporting/test_native_formats exporting/test_token_rows fuzzing/test_commands
    gating/test_action inference/test_predict inference/test_runtimes labelling/test_label labelling/test_ray
    models/modeling/test_pruned
    models/networks/test_networks pruning/test_criteria pruning/test_head_study pruning/test_prune
    pruning/test_prune_errors pruning/test_prune_heads pruning/test_prune_layers pruning/test_prune_neurons
    pruning/test_prune_recovery pruning/test_prune_report pruning/test_prune_resume pruning/test_prune_targets
    quantization/test_hessian_sensitivity quantization/test_quantize quantization/test_quantizers
    reporting/test_page searching/test_exploration searching/test_joining searching/test_search
    studies/test_docstring_corpus studies/test_run surgery/test_remove_hidden surgery/test_remove_layers
    surgery/test_remove_vocabulary tasks/test_tasks test_docs test_installations test_labels_page
    test_nothing_is_sent test_orphans test_packaging test_progress test_shared test_tagging
    training/architectures/test_families training/architectures/test_initialization
    training/losses/test_losses_train training/modifiers/test_gradual_pruning training/modifiers/test_quantization
    training/test_augmentation training/test_build_student training/test_damaged_work training/test_distill
    training/test_distill_inputs training/test_finetune training/test_phases training/test_precision
    training/test_pretrain training/test_processes training/test_row_adamw training/test_trackers
    """.split()
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests as slow or fast, and run the slow ones first: in the end no process waits long for the other."""
    root = Path(__file__).parent

    def is_slow(item: pytest.Item) -> bool:
        if any(item.iter_markers("shared")) or any(item.iter_markers("slow")):
            return True
        return item.path.relative_to(root).with_suffix("").as_posix() in SLOW

    for item in items:
        item.add_marker(pytest.mark.slow if is_slow(item) else pytest.mark.fast)
    items.sort(key=is_slow, reverse=True)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fast: not slow; 'make test-fast' runs these")
    config.addinivalue_line("markers", "slow: trains, exports, starts processes or reads real data")
    config.addinivalue_line("markers", "shared: reads the real data sets of ../shared/data (or COMPRESS_DATA)")
    if kept := os.environ.get(GRAPHS_FOLDER):
        Path(kept).mkdir(parents=True, exist_ok=True)
    if MODELS_FOLDER not in os.environ:  # the processes of pytest-xdist have it from the first one
        os.environ[MODELS_FOLDER] = tempfile.mkdtemp(prefix="compress-test-models-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(MODELS_FOLDER), ignore_errors=True))


def pytest_collection_finish() -> None:
    keep_collector_off_what_stays()


@pytest.fixture(scope="session", autouse=True)
def forked_workers() -> Iterator[None]:
    """Start the workers of benchmarks by forking, which spares each the import of torch."""
    from compress.benchmarking import worker
    from tests.support import forked

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "subprocess", SimpleNamespace(Popen=forked.start_worker, PIPE=subprocess.PIPE))
        yield


@pytest.fixture
def real_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start the workers of benchmarks as users do."""
    from compress.benchmarking import worker

    monkeypatch.setattr(worker, "subprocess", subprocess)


@pytest.fixture(scope="session")
def usual_threads() -> int:
    import torch

    return torch.get_num_threads()


@pytest.fixture(autouse=True)
def as_many_threads_afterwards(usual_threads: int) -> Iterator[None]:
    """Take back the threads that a test has PyTorch compute with: beside another process of tests they wait for a core.

    A backward pass of a tiny model took fifty times as long in the tests after one that asked for two threads.
    """
    import torch

    yield
    if torch.get_num_threads() != usual_threads:
        torch.set_num_threads(usual_threads)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data sets; the test is skipped where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    root = Path(os.environ.get("COMPRESS_DATA") or default)
    if not root.is_dir():
        pytest.skip("no real data sets here: set COMPRESS_DATA to their folder")
    return root


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """The folder of real fine-tuned teachers; the test is skipped where it is absent."""
    default = Path(__file__).resolve().parents[2] / "shared" / "models"
    root = Path(os.environ.get("COMPRESS_MODELS") or default)
    if not root.is_dir():
        pytest.skip("no real teachers here: set COMPRESS_MODELS to their folder")
    return root


@pytest.fixture(scope="session")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random BERT classifier on disk. Not to be changed."""
    from tests.support.tiny import classifier, write

    return write(tmp_path_factory.mktemp("teachers") / "tiny-bert", classifier("bert"))


@pytest.fixture(scope="session", autouse=True)
def label_in_torch() -> Iterator[Any]:
    """Label with torch models, without an export; gives what chooses a runtime for users."""
    from compress.labelling import label

    choose_runtime = label.choose_runtime
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label, "choose_runtime", torch_as_it_is)
        yield choose_runtime


@pytest.fixture(scope="session", autouse=True)
def time_in_few_rounds() -> Iterator[None]:
    """Time within a stage as shortly as it is possible: how fast tiny models are decides nothing."""
    from compress.inference import runners

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runners, "SECONDS", 0.0)
        yield


@pytest.fixture(scope="session", autouse=True)
def train_in_few_steps() -> list[tuple[int, int]]:
    """Train without a recipe, on a few rows, as shortly as the fork server's processes do."""
    from tests.support import forked

    return forked.train_in_few_steps()


@pytest.fixture(scope="session", autouse=True)
def measure_in_few_rounds() -> None:
    """Measure as shortly as the fork server's processes do."""
    from tests.support import forked

    forked.measure_in_few_rounds()


@pytest.fixture
def label_as_users_do(label_in_torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Label with the fastest runtime, for which a torch model is exported."""
    from compress.labelling import label

    monkeypatch.setattr(label, "choose_runtime", label_in_torch)


@pytest.fixture(scope="session", autouse=True)
def one_operator_table() -> Iterator[None]:
    """Read torch's table of ONNX operators once: it is the same in every export, and a sixth of the time of one."""
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        yield


@pytest.fixture(scope="session", autouse=True)
def one_export_of_alike_models() -> Iterator[None]:
    """Trace tiny models of the same structure once in all processes."""
    import torch

    from tests.support.exports import exporting_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", exporting_once(torch.onnx.export))
        yield
