"""Students for C and JavaScript: the exported directories give the library's answers without Python."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from compress import load
from compress.errors import CompressError, Unavailable
from compress.evaluation.metrics import probabilities as softmax
from compress.exporting import native_formats
from compress.inference import native, predict
from compress.inference.compute import Compute
from compress.inference.native import NativeRunner
from compress.models.manifest import NATIVE_NAME
from compress.models.model_dir import Model
from compress.requests.compression import calibrate, export, quantize
from tests.support import REPOSITORY, tiny
from tests.support.tagging import cnn_tagger
from tests.support.tiny import examples, onnx_directory, torch_directory

pytest.importorskip("compress.inference.native._core", reason="the native library was not built")

# One a line: what is no UTF-8, marks out of order, special tokens, long words, many tokens.
TEXTS = [
    "a good film",
    "",
    "  Dull, \u00e9l\u00e8ve!\r",
    "[SEP] a [MASK] film [unk] </script><b>",
    "\u4e2d\u6587 \ud55c\uae00 \u0130stanbul\u0301 a\u0323\u0302\u0315\u1d165 \U0001f600\ufeff",
    "nul \0 and \u2028 \u0085 \x7f",
    "x" * 101 + " " + "\u00e9" * 300,
    " ".join(["film"] * 600),
    *(" ".join(["the", "plot", "is", "very", "slow", "."][: 1 + number % 6] * number) for number in range(40)),
]
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """Exported directories whose kernels differ: float32 and int8, with and without means, remainders and a layer."""
    folder, made = tmp_path_factory.mktemp("c"), []
    networks = {
        "cnn": tiny.cnn(filters=70, widths=(4, 1, 2), labels=tuple("abcdefghijklmnopqrs")),
        "cnn-mean": tiny.cnn(filters=17, widths=(1, 5), pooling="max-mean"),
        "cnn-deep": tiny.cnn(widths=(1, 4), second_filters=20, pooling="max-mean"),
        "ngram": tiny.ngram(),
        "bilstm": tiny.bilstm(hidden_size=30),
    }
    for name, network in networks.items():
        torch = Model.open(tiny.write(folder / name, network))
        for source in (torch, quantize(torch, folder / f"{name}-int8")):
            made.append(export(source, folder / f"{source.path.name}-c", format="c"))
    return made


def lines(directory: Path) -> list[str]:
    """Return what the example writes of the texts, by the library in Python."""
    runner = NativeRunner(directory)
    logits, _ = runner.read(TEXTS)
    return ["\t".join([runner.labels[row.argmax()], *(f"{value:.9g}" for value in row)]) for row in logits]


def run(command: Sequence[str | Path], texts: Sequence[str] = TEXTS) -> list[str]:
    given = "".join(f"{text}\n" for text in texts).encode()
    done = subprocess.run(list(map(str, command)), input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode().removesuffix("\n").split("\n")


def compile_c(compiler: Sequence[str], folder: Path, output: Path, *flags: str | Path) -> Path:
    """Compile the sources of an exported directory, in this directory as a user does."""
    files = sorted(path.name for path in folder.glob("*.c"))
    command = [*compiler, *flags, *files, "-o", output]
    done = subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return output


@pytest.mark.parametrize("name", ["gcc", "clang", "zig"])
def test_the_example_answers_as_python_does(name: str, models: list[Model], tmp_path: Path) -> None:
    compiler = zig() if name == "zig" else [name]
    if name != "zig" and shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    program = compile_c(compiler, models[0].path, tmp_path / "classify", "-O2", *STRICT)
    for model in models:
        found = run([program, model.path / NATIVE_NAME])
        assert [line.split("\t")[0] for line in found] == [line.split("\t")[0] for line in lines(model.path)]
        values, expected = (
            np.array([line.split("\t")[1:] for line in some], np.float32) for some in (found, lines(model.path))
        )
        np.testing.assert_allclose(values, expected, rtol=2e-6, atol=2e-6)  # compilers order sums in other ways
    (tmp_path / NATIVE_NAME).write_bytes((models[0].path / NATIVE_NAME).read_bytes()[:-64])
    tagger = export(tiny.write(tmp_path / "torch", cnn_tagger()), tmp_path / "tagger", format="native").path
    for path, message in (
        (tmp_path / NATIVE_NAME, "cut short"),
        (tmp_path / "none", "No such file"),
        (tagger / NATIVE_NAME, "it is a tagger"),
    ):
        done = subprocess.run([program, path], input="", capture_output=True, text=True, check=False)
        assert done.returncode == 1 and message in done.stderr and not done.stdout


@pytest.mark.parametrize("name", ["gcc", "zig"])
def test_compilers_find_the_same_instructions(name: str, models: list[Model], tmp_path: Path) -> None:
    compiler = zig() if name == "zig" else [name]
    if name != "zig" and shutil.which(name) is None:
        pytest.skip(f"there is no {name}")
    source = shutil.copytree(models[0].path, tmp_path / "source")
    example = (source / "example.c").read_text(encoding="utf-8")
    (source / "example.c").write_text(
        example.replace("    while (read_line", "    puts(compress_instructions(model));\n    while (read_line")
    )
    program = compile_c(compiler, source, tmp_path / "classify", "-O1")
    assert run([program, source / NATIVE_NAME], ["a"])[0] == NativeRunner(models[0].path).core.instructions


def zig() -> list[str]:
    pytest.importorskip("ziglang", reason="zig is not installed: pip install 'compress[wasm]'")
    return [sys.executable, "-m", "ziglang", "cc"]


@pytest.mark.skipif(not shutil.which("g++"), reason="there is no C++ compiler")
def test_a_program_in_cplusplus_includes_the_header(models: list[Model], tmp_path: Path) -> None:
    client = tmp_path / "client.cpp"
    client.write_text('#include "native.h"\nint main() { return compress_open(nullptr, 0, nullptr) != nullptr; }\n')
    flags = ["-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{models[0].path}"]
    subprocess.run(["g++", *flags, "-c", client, "-o", tmp_path / "client.o"], check=True)
    names = subprocess.run(["nm", "-u", tmp_path / "client.o"], capture_output=True, text=True, check=True).stdout
    assert " compress_open\n" in names  # in C's form, which the library has


def test_a_container_is_embedded_in_a_program(models: list[Model], tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("there is no gcc")
    page = (REPOSITORY / "docs/native.md").read_text("utf-8")
    blocks = [block.partition("\n")[2] for block in page.split("```")[1::2]]
    assembler = next(block for block in blocks if ".incbin" in block)
    program = next(block for block in blocks if "compress_open(" in block)
    (tmp_path / "model.S").write_text(assembler)
    (tmp_path / "main.c").write_text(program)
    files = [*models[0].path.glob("*.[ch]"), models[0].path / NATIVE_NAME]
    for file in files:
        if file.name != "example.c":
            shutil.copyfile(file, tmp_path / file.name)
    names = sorted(path.name for path in tmp_path.glob("*.c"))
    subprocess.run(["gcc", "-O1", *names, "model.S", "-o", "program"], cwd=tmp_path, check=True)
    (tmp_path / NATIVE_NAME).unlink()
    runner = NativeRunner(models[0].path)
    assert run([tmp_path / "program"], []) == [runner.labels[runner.read(["a good film"])[0].argmax()]]


def test_a_native_directory_needs_no_other_library(tmp_path: Path) -> None:
    calibrated = calibrate(
        quantize(torch_directory("cnn"), tmp_path / "int8"),
        validation=examples(),
        accept_at=0.2,
        output=tmp_path / "calibrated",
    )
    made = export(calibrated, tmp_path / "native", format="native")
    assert {path.name for path in made.path.iterdir()} == {"README.md", "compress.json", "config.json", NATIVE_NAME}
    assert made.labels == calibrated.labels and made.parameters == calibrated.parameters
    assert made.size_bytes == (made.path / NATIVE_NAME).stat().st_size and "native" in repr(made)
    (tmp_path / "bare").mkdir()
    for name in ("config.json", NATIVE_NAME):
        shutil.copyfile(made.path / name, tmp_path / "bare" / name)
    bare = Model.open(tmp_path / "bare")
    assert bare.parameters == NativeRunner(made.path).core.weights and "0 million" not in repr(bare)
    script = "\n".join(
        (
            "import sys",
            "for name in ('onnx', 'onnxruntime', 'tokenizers', 'torch', 'transformers'): sys.modules[name] = None",
            "import compress",
            "print(compress.load(sys.argv[1]).predict(['a good film', 'x ' * 99]))",
        )
    )
    done = subprocess.run([sys.executable, "-c", script, made.path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = load(calibrated.path).predict(["a good film", "x " * 99])
    assert done.stdout == f"{expected}\n" and "accepted" in expected[0]


@pytest.mark.parametrize("form", ["native", "c", "wasm"])
@pytest.mark.parametrize("made", [torch_directory, onnx_directory])
def test_models_without_kernels_are_refused(form: str, made: Callable[[str], Model], tmp_path: Path) -> None:
    with pytest.raises(CompressError, match=r"cannot run in the native library: .*--student cnn .*--format") as error:
        export(made("bert"), tmp_path / "out", format=form)
    assert str(made("bert").path) in str(error.value) and not list(tmp_path.iterdir())


def test_taggers_are_refused_in_other_languages(tmp_path: Path) -> None:
    torch = tiny.write(tmp_path / "tagger", cnn_tagger())
    for source in (torch, export(torch, tmp_path / "onnx")):
        for form in ("c", "wasm"):
            with pytest.raises(
                CompressError, match=f"made for tagging, whose answers --format {form} does not give; use --format nat"
            ):
                export(source, tmp_path / "out", format=form)
    scores = tiny.write(tmp_path / "scores", tiny.cnn(labels=("score",), problem_type="regression"))
    with pytest.raises(
        CompressError, match="made for regression, whose answers --format wasm .* use --format native or c"
    ):
        export(scores, tmp_path / "out", format="wasm")


def test_stages_refuse_a_native_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = export(torch_directory("cnn"), tmp_path / "native", format="native")
    for stage in (export, quantize):
        with pytest.raises(CompressError, match="a native model, which .* use the directory it was exported from"):
            stage(made, tmp_path / "out")
    with pytest.raises(CompressError, match="has no tokenizer .* use the directory it was exported from"):
        _ = made.tokenizer
    with pytest.raises(CompressError, match="is a native model; export the directory it was exported from"):
        export(made, tmp_path / "c", format="c")
    with pytest.raises(CompressError, match="--device cuda"):
        predict.load(made.path, compute=Compute("cuda")).predict("a film")

    def absent() -> None:
        raise Unavailable("the native library was not built")

    monkeypatch.setattr(native, "native_core", absent)
    with pytest.raises(CompressError, match="was not built; use an ONNX directory"):
        load(made.path).predict("a film")


@pytest.mark.parametrize("target", ["x86_64-windows-gnu", "aarch64-macos"])
def test_it_compiles_for_other_systems(target: str, models: list[Model], tmp_path: Path) -> None:
    flags = ["-target", target, "-O1", "-g0", *STRICT]
    for file in sorted(models[0].path.glob("*.c")):
        subprocess.run([*zig(), *flags, "-c", file, "-o", tmp_path / f"{file.stem}.o"], check=True)


def test_kernels_of_arm_give_the_same_logits(models: list[Model], tmp_path: Path) -> None:
    if shutil.which("qemu-aarch64") is None:
        pytest.skip("there is no qemu-aarch64: apt-get install qemu-user")
    program, driver = tmp_path / "kernels", Path(__file__).with_name("kernels.c")
    sources = [path for path in models[0].path.glob("*.c") if path.name != "example.c"]
    flags = ["-target", "aarch64-linux-musl", "-O2", "-g0", *STRICT, f"-I{models[0].path}"]
    subprocess.run([*zig(), *flags, driver, *sources, "-o", program], check=True)
    command = ["qemu-aarch64", program, *(model.path / NATIVE_NAME for model in models)]
    found = [line.split("\t") for line in run(command)]
    expected = [
        (name, runner.core.ids(text)[0], runner.read([text])[0][0])
        for runner in (NativeRunner(model.path) for model in models)
        for name in ("neon", "plain")
        for text in TEXTS
    ]
    for (name, ids, logits), (own, own_ids, own_logits) in zip(found, expected, strict=True):
        assert (name, [*map(int, ids.split())]) == (own, own_ids)
        np.testing.assert_allclose([*map(float, logits.split())], own_logits, rtol=2e-5, atol=2e-5)


# WebAssembly

NODE = """
import { load } from "./compress.js";
import { readFileSync } from "node:fs";
const { wasm, texts, pairs } = JSON.parse(readFileSync(0, "utf8"));
const model = await load({ wasm });
const one = (text) => ({ ...model.classify(text), logits: [...model.logits(text)], ids: [...model.ids(text)] });
const found = texts.map(one);
const both = pairs.map(([text, pair]) => ({ ...model.classify(text, pair), ids: [...model.ids(text, pair)] }));
const faults = [];
for (const wrong of [() => model.classify(3), () => model.classify("a", null)])
  try { wrong(); } catch (error) { faults.push(error.message); }
try { await load({ container: new Uint8Array(4096) }); } catch (error) { faults.push(error.message); }
try { await load({ container: "none" }); } catch (error) { faults.push(error.code); }
const { labels, maxLength, instructions } = model;
console.log(JSON.stringify({ found, both, faults, labels, maxLength, instructions }));
"""
HOSTILE = [*TEXTS, "lone \ud800 half", "a" * 200_000, "\U0001f600" * 5000, "film " * 9]


@pytest.fixture(scope="module")
def modules(models: list[Model], tmp_path_factory: pytest.TempPathFactory) -> list[Model]:
    """The same models for JavaScript; the module, which is always the same, is compiled once."""
    zig()
    folder, made = tmp_path_factory.mktemp("wasm"), []
    with pytest.MonkeyPatch.context() as patch:
        for number, model in enumerate(models):
            source = model.path.with_name(model.path.name.removesuffix("-c"))
            made.append(export(source, folder / model.path.name, format="wasm"))
            if not number:
                compiled = partial(shutil.copyfile, made[0].path / "compress.wasm")
                patch.setattr(native_formats, "compile_wasm", compiled)
    return made


@pytest.mark.parametrize("compiler", ["zig", "clang"])
def test_node_answers_as_python_does(
    compiler: str, modules: list[Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    which = shutil.which
    for name in ("node", *(("clang", "wasm-ld") if compiler == "clang" else ())):
        if which(name) is None:
            pytest.skip(f"there is no {name}: apt-get install nodejs clang lld")
    simd, plain = tmp_path / "simd.wasm", tmp_path / "plain.wasm"
    with monkeypatch.context() as patch:
        if compiler == "clang":
            patch.setattr(native_formats, "is_installed", lambda package: False)
            patch.setattr(native_formats.shutil, "which", lambda name: None if name == "zig" else which(name))
        native_formats.compile_wasm(simd)
        native_formats.compile_wasm(plain, ())
    pairs = [*zip(HOSTILE[:12], reversed(HOSTILE[:12]), strict=True)]
    for model in modules:
        runner = NativeRunner(model.path)
        texts = [text.replace("\ud800", "\ufffd") for text in HOSTILE]
        expected, unread = runner.read(texts)
        both, _ = runner.read(pairs)
        for wasm, instructions in ((simd, "wasm-simd"), (plain, "plain")):
            given = json.dumps({"wasm": wasm.as_uri(), "texts": HOSTILE, "pairs": pairs})
            command = ["node", "--input-type=module", "-e", NODE]
            done = subprocess.run(command, cwd=model.path, input=given, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            found = json.loads(done.stdout)
            assert (found["labels"], found["maxLength"]) == ([*model.labels], runner.max_length)
            assert found["instructions"] == instructions
            assert [(one["ids"], one["unreadTokens"]) for one in found["found"]] == [
                runner.core.ids(text) for text in texts
            ]
            assert [one["ids"] for one in found["both"]] == [runner.core.ids(pair)[0] for pair in pairs]
            assert [one["truncated"] for one in found["found"]] == (unread > 0).tolist()
            np.testing.assert_allclose([one["logits"] for one in found["found"]], expected, rtol=2e-5, atol=2e-5)
            logits = [[one["logits"][str(label)] for label in range(len(model.labels))] for one in found["both"]]
            np.testing.assert_allclose(logits, both, rtol=2e-5, atol=2e-5)
            assert [one["label"] for one in found["found"]] == [model.labels[row.argmax()] for row in expected]
            chances = [one["probability"] for one in found["found"]]
            np.testing.assert_allclose(chances, softmax(expected).max(axis=1), rtol=1e-5)
            said = "a text is a string, and so is the other of a pair"
            assert found["faults"][:2] == [said, said] and found["faults"][3] == "ENOENT"
            assert found["faults"][2] == "the model cannot be read: it is no container of compress"


def test_kernels_for_webassembly_call_no_function(models: list[Model], tmp_path: Path) -> None:
    """A copy of four bytes was a call in the innermost loop, which took half of a text's time."""
    libc = REPOSITORY / "compress/exporting/wasm/libc"
    flags = ["-target", "wasm32-freestanding", "-O3", "-g0", "-std=c11", "-msimd128", f"-I{libc}", "-S"]
    subprocess.run([*zig(), *flags, models[0].path / "kernels.c", "-o", tmp_path / "kernels.s"], check=True)
    assembly = (tmp_path / "kernels.s").read_text()
    assert "i32x4.dot_i16x8_s" in assembly and "\tcall\t" not in assembly


FULL = """
import { load } from "./compress.js";
import { readFileSync } from "node:fs";
const { wasm, tagger } = JSON.parse(readFileSync(0, "utf8"));
const said = [], model = await load({ wasm });
const attempt = async (what) => { try { await what(); } catch (error) { said.push(error.message); } };
await attempt(() => model.classify("a".repeat(8_000_000)));
const ids = [...model.ids("a good film")];
await attempt(() => model.classify("a".repeat(8_000_000)));
const again = [...model.ids(" ".repeat(20_000) + "a good film")];
await attempt(() => load({ container: readFileSync(tagger) }));
console.log(JSON.stringify({ said, ids, again }));
"""


def test_node_says_what_it_has_no_room_for(modules: list[Model], tmp_path: Path) -> None:
    """And answers what comes after it."""
    if shutil.which("node") is None:
        pytest.skip("there is no Node")
    tagger = export(tiny.write(tmp_path / "torch", cnn_tagger()), tmp_path / "tagger", format="native")
    native_formats.compile_wasm(tmp_path / "small.wasm", ("-msimd128", "-Wl,--max-memory=33554432"))
    given = json.dumps({"wasm": (tmp_path / "small.wasm").as_uri(), "tagger": str(tagger.path / NATIVE_NAME)})
    command = ["node", "--input-type=module", "-e", FULL]
    done = subprocess.run(command, cwd=modules[0].path, input=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found, expected = json.loads(done.stdout), NativeRunner(modules[0].path).core.ids("a good film")[0]
    assert found["said"][:2] == ["there is no memory for 48000000 bytes"] * 2
    assert "a tagger has logits for every word" in found["said"][2]
    assert found["ids"] == found["again"] == expected


def test_the_page_classifies_what_is_typed(modules: list[Model], tmp_path: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[development]'")
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        pytest.skip("there is no Chromium")
    (page_file,) = [shutil.copy(modules[0].path / "index.html", tmp_path)]  # it is one file
    runner = NativeRunner(modules[0].path)
    text = "A good f\u00eflm [SEP] \u4e2d </textarea><b>"
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page, faults = started.new_page(), []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda message: faults.append(message.text))
        page.goto(Path(page_file).as_uri())
        page.locator("#label", has_text="Type a text.").wait_for(timeout=60_000)
        page.locator("#text").press_sequentially(text)
        shown, about, rows = page.inner_text("#label"), page.inner_text("#about"), page.locator("#labels tr").count()
        started.close()
    chances = softmax(runner.read([text])[0])[0]
    assert shown == f"{runner.labels[chances.argmax()]} {100 * chances.max():.1f}%" and not faults
    size = (modules[0].path / "compress.wasm").stat().st_size
    assert "wasm-simd" in about and f"compress.wasm: {size:,} bytes" in about and rows == 10


def test_a_name_is_no_place_in_the_page(tmp_path: Path) -> None:
    for name in ("compress.wasm", "compress.js", NATIVE_NAME):
        (tmp_path / name).write_text("content")
    page = native_formats._page("@LOADER@ & @WASM@", tmp_path)
    assert "<title>@LOADER@ &amp; @WASM@</title>" in page and "\ncontent\n" in page and page.count("@") == 8


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_formats, "is_installed", lambda package: False)
    monkeypatch.setattr(native_formats.shutil, "which", lambda name: None if name in {"zig", "wasm-ld"} else name)
    with pytest.raises(CompressError, match=r"neither zig nor wasm-ld is installed; pip install .*\[wasm\]"):
        export(onnx_directory("cnn"), tmp_path / "out", format="wasm")
    monkeypatch.setattr(native_formats, "_compiler", lambda: [sys.executable, "-c", "raise SystemExit('no such flag')"])
    with pytest.raises(CompressError, match="cannot compile the library: no such flag"):
        export(onnx_directory("cnn"), tmp_path / "out", format="wasm")
    assert not (tmp_path / "out").exists()
