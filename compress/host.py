"""Describe the host of a measurement: CPU, memory, GPUs, library versions; no host names, no paths."""

import importlib.util
import os
import re
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

LIBRARIES = (
    "torch",
    "transformers",
    "tokenizers",
    "torch-pruning",
    "optimum",
    "onnx",
    "onnxruntime",
    "openvino",
    "datasets",
    "accelerate",
    "numpy",
    "scipy",
    "scikit-learn",
)
# The instruction sets that decide how fast int8 and bfloat16 are; the full list of flags would drown them.
INSTRUCTION_SETS = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "i8mm",
)

# The control groups of this process, which in a container limit its CPU time and memory, and where they are described.
_OWN_GROUPS, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")

_KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


@cache
def library_versions() -> dict[str, str]:
    """Return the version of this package, installed or not, and of every library that can change a number."""
    import platform

    return {
        "python": platform.python_version(),
        "compress": sys.modules["compress"].__version__,  # an import would go up the layers
        **installed_versions(LIBRARIES),
    }


def installed_versions(names: Iterable[str]) -> dict[str, str]:
    """Return the version of each distribution that is installed."""
    import importlib.metadata

    found = {}
    for name in names:
        with suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


@cache
def describe_host() -> dict[str, Any]:
    """Return CPU model, family and instruction sets, cores, memory in bytes, system and GPU names.

    The limits of a container are ``cpu_quota``, in cores, and ``memory_limit_bytes``, where there are some.
    """
    import platform

    info, quota = _cpuinfo(), cpu_quota()
    flags = set(info.get("flags", info.get("Features", "")).split())
    physical, allowed = _physical_bytes(), memory_bytes()
    limits = {"cpu_quota": quota, "memory_limit_bytes": allowed if allowed < physical else None}
    return {
        "cpu": info.get("model name", platform.processor() or platform.machine()),
        "cpu_family_model": f"{info.get('cpu family', '?')}/{info.get('model', '?')}",
        "cpu_flags": [flag for flag in INSTRUCTION_SETS if flag in flags],
        "cores": os.cpu_count() or 1,
        "memory_bytes": physical,
        "system": f"{platform.system()} {platform.machine()}",
        "gpu": _gpu_names(),
        **{name: value for name, value in limits.items() if value},
    }


@cache
def cpu_quota() -> float | None:
    """Return how many cores' time the control groups of this process allow it; None without a limit."""
    found = [*_group_limits("cpu.max"), *_group_limits("cpu.cfs_quota_us", "cpu.cfs_period_us")]
    return min((quota / period for quota, period in found if quota > 0), default=None)


@cache
def memory_bytes() -> int:
    """Return the memory that this process may use: the machine's, or what its control groups allow."""
    limits = _group_limits("memory.max") + _group_limits("memory.limit_in_bytes")
    return min([_physical_bytes(), *(limit for [limit] in limits)])


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _group_limits(*names: str) -> list[list[int]]:
    """Return the numbers in these files of each control group of this process and those above, of both versions."""
    found = []
    with suppress(OSError):  # not Linux
        for line in _OWN_GROUPS.read_text(encoding="utf-8").splitlines():
            _, controllers, place = line.split(":", 2)
            base = _GROUPS / controllers  # version 2 names none
            own = base / place.strip("/")  # as the host calls it; a container sees its own at the base
            for group in (own, *own.parents[: len(own.parts) - len(base.parts)]):
                with suppress(OSError, ValueError):  # there is no such file, or it says "max"
                    found.append([int(word) for name in names for word in (group / name).read_text().split()])
    return found


def without_home(text: str) -> str:
    """Return a text that is to be shared, with ``~`` for the home directory of this user."""
    home = os.path.expanduser("~").rstrip("/")
    return re.sub(rf"(?<![\w.-]){re.escape(home)}(?![\w.-])", "~", text) if home else text


@contextmanager
def few_kernels() -> Iterator[None]:
    """Let oneDNN keep the kernels of 64 shapes instead of 1,024, if this process first uses it within the block.

    Nearly every batch of texts has a shape of its own. Kernels are made anew in no time that can be measured in a step
    of training; where they lie in the heap it does not close up again, so that a step of a model 768 wide added 8 MB.
    """
    if _KERNELS in os.environ:
        yield
        return
    os.environ[_KERNELS] = "64"
    try:
        yield
    finally:
        del os.environ[_KERNELS]


def end_with_parent() -> None:
    """Let this process be killed when the one that started it has ended, in whatever way and whatever is computed then.

    Linux's own signal (``PR_SET_PDEATHSIG``) would come as soon as the thread that started this process ends.
    """
    parent = os.getppid()

    def watch() -> None:
        if hasattr(os, "pidfd_open"):
            with suppress(OSError):  # it has ended, or the system is old
                select.select([os.pidfd_open(parent)], [], [])  # sleeps until then
        while os.getppid() == parent:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def is_installed(package: str) -> bool:
    """Tell whether a package can be imported; a folder of that name, such as tools write, is none."""
    found = importlib.util.find_spec(package)
    return found is not None and found.origin is not None


def has_bfloat16() -> bool:
    """Tell whether this CPU has instructions that multiply bfloat16, which need not be faster than those of float32."""
    return bool({"amx_bf16", "avx512_bf16"} & set(describe_host()["cpu_flags"]))


def has_slow_mkl() -> bool:
    """Tell whether this CPU has AVX-512 that MKL does not use: it does on Intel's own processors only."""
    info = _cpuinfo()
    return "avx512f" in info.get("flags", "").split() and info.get("vendor_id") != "GenuineIntel"


def _cpuinfo() -> dict[str, str]:
    path = Path("/proc/cpuinfo")
    if not path.is_file():
        return {}
    first = path.read_text(encoding="utf-8").split("\n\n")[0]
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _gpu_names() -> list[str]:
    # Asking torch would cost its import; the driver's own files say the same.
    files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = (line for file in files for line in file.read_text(encoding="utf-8").splitlines())
    return [line.split(":", 1)[1].strip() for line in lines if line.startswith("Model:")] or _gpu_names_by_tool()


def _gpu_names_by_tool() -> list[str]:
    """Ask the driver's own tool: a container may show the cards without the driver's files."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    import subprocess

    try:
        answer = subprocess.run(
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]
