"""Labels on other machines: nobody reads unfinished ones, nothing of others is replaced, and commands resume."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from compress.cli import execute
from compress.errors import CompressError
from compress.labelling import label as label_module
from compress.labelling import remote_labels
from compress.labelling.label_dir import UNANSWERED_NAME, LabelDir
from compress.models.manifest import MANIFEST_NAME, Manifest, describe_files
from tests.labelling.test_label_dir import directory
from tests.support.remote import FaultyFileSystem, remote_files
from tests.support.tiny import examples

URI = "faulty://bucket/labels"
SHARDS = [f"shard-0000{number}.{kind}" for number in (0, 1) for kind in ("json", "parquet")]


@pytest.fixture(autouse=True)
def remote(tmp_path: Path) -> Iterator[FaultyFileSystem]:
    with remote_files(tmp_path / "cache") as system:
        system.pipe("/bucket/pool.txt", "".join(f"{row.text}\n" for row in examples(20)).encode())
        yield system


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return directory(tmp_path / "made")


def upload(made: Path, *, force: bool = False) -> None:
    remote_labels.upload(made, remote_labels.open_target(URI, force=force), force=force)


def there(remote: FaultyFileSystem) -> list[str]:
    return [path.removeprefix("/bucket/labels/") for path in remote.find("/bucket/labels")]


def reset() -> None:
    FaultyFileSystem.before_get = FaultyFileSystem.before_put = staticmethod(str)


def lose_at(name: str) -> Callable[[str], None]:
    def lose(path: str) -> None:
        if path.endswith(name):
            raise ConnectionResetError("Connection reset by peer")

    return staticmethod(lose)


def refused(message: str, call: Callable[[], object]) -> None:
    with pytest.raises(CompressError, match=message):
        call()


def test_labels_are_copied_there_and_back(made: Path, remote: FaultyFileSystem) -> None:
    upload(made)
    assert there(remote) == [MANIFEST_NAME, *SHARDS]
    opened = LabelDir.open(URI)
    assert [row.text for row, _ in opened] == ["a", "b", "a", "b"]
    assert {path.name: path.read_bytes() for path in opened.path.iterdir()} == {
        path.name: path.read_bytes() for path in made.iterdir()
    }
    remote.copied.clear()
    assert LabelDir.open(URI).path == opened.path and not remote.copied, "the copy is used again"


def test_rows_without_an_answer_are_copied_too(made: Path) -> None:
    (made / UNANSWERED_NAME).write_text('{"row": 1}\n')
    manifest = Manifest.read(made / MANIFEST_NAME)
    (made / MANIFEST_NAME).write_text(replace(manifest, files=describe_files(made)).to_json())
    for force in (False, True):
        upload(made, force=force)
    assert (LabelDir.open(URI).path / UNANSWERED_NAME).read_text() == '{"row": 1}\n'


@pytest.mark.parametrize("place", ["shard-00000.json", "shard-00001.parquet", MANIFEST_NAME])
def test_nobody_reads_labels_that_are_there_in_part(place: str, made: Path, remote: FaultyFileSystem) -> None:
    FaultyFileSystem.before_put = lose_at(place)
    refused("faulty://bucket/labels could not be written .ConnectionResetError", lambda: upload(made))
    refused("faulty://bucket/labels is not a finished label directory", lambda: LabelDir.open(URI))
    reset()
    upload(made)
    assert there(remote) == [MANIFEST_NAME, *SHARDS] and LabelDir.open(URI).rows == 4


def test_a_folder_is_made_in_one_that_is_there(made: Path, tmp_path: Path) -> None:
    uri = (tmp_path / "not" / "labels").as_uri()
    with pytest.raises(CompressError, match="not/labels cannot be made: the folder that it is to lie in is not there"):
        remote_labels.open_target(uri, force=False)
    (tmp_path / "not").mkdir()
    remote_labels.upload(made, remote_labels.open_target(uri, force=False), force=False)
    assert LabelDir.open(uri).rows == 4


def test_nobody_reads_old_labels_with_new_ones(made: Path, remote: FaultyFileSystem) -> None:
    upload(made)
    FaultyFileSystem.before_put = lose_at("shard-00001.parquet")
    refused("could not be written", lambda: upload(made, force=True))
    assert MANIFEST_NAME not in there(remote)


def test_what_was_copied_here_stays(made: Path, remote: FaultyFileSystem) -> None:
    upload(made)
    FaultyFileSystem.before_get = lose_at("shard-00001.parquet")
    refused("labels cannot be read: faulty://bucket/labels could not be read", lambda: LabelDir.open(URI))
    reset()
    assert LabelDir.open(URI).rows == 4


def test_finished_labels_are_replaced_with_force_only(made: Path, remote: FaultyFileSystem) -> None:
    upload(made)
    refused("labels already holds finished labels; choose another -o or replace", lambda: upload(made))
    for path in made.iterdir():
        path.unlink()
    upload(
        directory(made, shards=(0,), widths=(2,), data=({"role": "unlabeled", "name": "pool", "rows": 2},)), force=True
    )
    assert there(remote) == [MANIFEST_NAME, *SHARDS[:2]] and LabelDir.open(URI).rows == 2
    assert LabelDir.open(f"{URI}.old").rows == 4, "what was there is moved aside"
    upload(made, force=True)
    assert LabelDir.open(f"{URI}.old").rows == 4 and LabelDir.open(f"{URI}.old.1").rows == 2


@pytest.mark.parametrize("name", ["notes.txt", "shard-00000.csv", "below/shard-00000.parquet"])
def test_files_of_others_are_never_replaced(name: str, made: Path, remote: FaultyFileSystem) -> None:
    remote.pipe(f"/bucket/labels/{name}", b"mine")
    refused(f"labels holds {name}, which no label directory has; move that away", lambda: upload(made, force=True))
    assert there(remote) == [name]


def test_a_second_command_for_the_same_labels_is_detected(made: Path, remote: FaultyFileSystem) -> None:
    first, second = (remote_labels.open_target(URI, force=False) for _ in range(2))
    remote_labels.upload(made, second, force=False)
    refused("labels already holds finished labels", lambda: remote_labels.upload(made, first, force=False))


def test_files_that_others_add_meanwhile_are_detected(made: Path, remote: FaultyFileSystem) -> None:
    begun = remote_labels.open_target(URI, force=False)
    FaultyFileSystem.before_put = staticmethod(lambda path: remote.pipe("/bucket/labels/shard-00009.json", b"{}"))
    refused("holds other files than were copied", lambda: remote_labels.upload(made, begun, force=False))
    assert MANIFEST_NAME not in there(remote)


def test_a_shard_of_another_command_is_detected_by_its_hash(made: Path, remote: FaultyFileSystem) -> None:
    upload(made)
    shard = remote.cat("/bucket/labels/shard-00001.json")
    remote.pipe("/bucket/labels/shard-00001.json", shard.replace(b'"rows": 2', b'"rows": 3'))
    for _ in range(2):
        refused("labels, copied: .*shard-00001.json is not the file that compress.json", lambda: LabelDir.open(URI))
    remote.pipe("/bucket/labels/shard-00001.json", shard)
    assert LabelDir.open(URI).rows == 4, "nothing of the wrong copy is left"


@pytest.mark.parametrize("name", ["../../x.json", "/x/shard-00000.json", "a/shard-00000.json", "model.onnx"])
def test_a_manifest_that_leads_elsewhere_is_refused(
    name: str, made: Path, remote: FaultyFileSystem, tmp_path: Path
) -> None:
    upload(made)
    manifest = json.loads((made / MANIFEST_NAME).read_text())
    manifest["files"][name] = manifest["files"]["shard-00000.json"]
    remote.pipe(f"/bucket/labels/{MANIFEST_NAME}", json.dumps(manifest).encode())
    refused(f"its compress.json names '{name}', which no label", lambda: LabelDir.open(URI))
    assert not list((tmp_path / "cache" / "labels").rglob("*.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"{", "is not valid JSON"), (b"[]", "holds no table"), (b'{"format_version": 1}', "is not a valid manifest")],
)
def test_a_damaged_manifest_is_one_sentence(content: bytes, message: str, remote: FaultyFileSystem) -> None:
    remote.pipe(f"/bucket/labels/{MANIFEST_NAME}", content)
    refused(f"^{URI} cannot be read: .*{message}", lambda: LabelDir.open(URI))


def test_sizes_are_checked_before_anything_is_copied(made: Path, remote: FaultyFileSystem) -> None:
    upload(made)
    remote.pipe("/bucket/labels/shard-00001.parquet", b"x" * 10_000)
    refused("cannot be read: shard-00001.parquet is not the file that compress.json", lambda: LabelDir.open(URI))
    remote.rm_file("/bucket/labels/shard-00001.parquet")
    refused("cannot be read: shard-00001.parquet is not the file that compress.json", lambda: LabelDir.open(URI))
    assert not remote.copied


def label(teacher: Path, *options: str, output: str = URI) -> int:
    return execute(
        ["label", "--teacher", str(teacher), "--unlabeled", "faulty://bucket/pool.txt", "-o", output, *options]
    )


def test_the_command_labels_resumes_and_refuses(
    teacher: Path,
    remote: FaultyFileSystem,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    FaultyFileSystem.before_put = lose_at("shard-00000.json")
    assert label(teacher) == 2
    assert "could not be written (ConnectionResetError: Connection reset by peer)" in capsys.readouterr().err
    assert label(teacher, "--max-length", "9") == 2
    assert "unfinished work of another command" in capsys.readouterr().err
    monkeypatch.setattr(label_module, "write_shard", None)  # what is labelled is not labelled again

    def interrupt(path: str) -> None:
        raise KeyboardInterrupt

    FaultyFileSystem.before_put = staticmethod(interrupt)
    assert label(teacher) == 130
    assert "The same command goes on from what is finished of faulty://bucket/labels." in capsys.readouterr().err
    reset()
    assert label(teacher) == 0
    assert "faulty://bucket/labels: 20 rows labelled on torch" in capsys.readouterr().out
    assert there(remote) == [MANIFEST_NAME, *SHARDS[:2]]
    assert "/bucket/labels/shard-00000.parquet" not in remote.copied, "what was made here is not copied back"
    assert not [path for path in (tmp_path / "cache" / "outputs").rglob("*") if path.is_file()]
    assert label(teacher) == 2
    assert "already holds finished labels; choose another -o or replace them with --force" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "cache")
    assert LabelDir.open(URI).rows == 20
    manifest = remote.cat(f"/bucket/labels/{MANIFEST_NAME}").decode()
    assert json.loads(manifest)["data"][0]["name"] == "pool.txt" and str(tmp_path) not in manifest
    assert [path.name for path in tmp_path.iterdir()] == ["cache"], "nothing is written where the command runs"


def test_credentials_are_in_no_record(
    teacher: Path, remote: FaultyFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert label(teacher, output="faulty://me:hunter2@bucket/labels") == 0
    said = "".join(capsys.readouterr())
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert "hunter2" not in said + "".join(map(str, files))
    assert not any(b"hunter2" in path.read_bytes() for path in files)
    assert not any(b"hunter2" in remote.cat(path) for path in remote.find("/bucket"))


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("faulty://bucket", "-o faulty://bucket holds faulty://bucket/pool.txt, which this command reads"),
        ("faulty://bucket/pool.txt", "holds faulty://bucket/pool.txt, which this command reads and would change"),
        ("faulty://bucket/pool.txt/labels", "lies in faulty://bucket/pool.txt, which this command reads and would"),
        ("faulty://other/..", "-o faulty://other/.. does not end with a name of a folder"),
        ("nonesuch://bucket/labels", "nonesuch://bucket/labels has the unknown protocol 'nonesuch'"),
    ],
)
def test_outputs_that_cannot_be_are_one_sentence(
    output: str, message: str, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert label(teacher, output=output) == 2
    assert message in capsys.readouterr().err


def test_other_stages_write_here(
    teacher: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert execute(["export", "--model", str(teacher), "-o", "s3://me:hunter2@bucket/model"]) == 2
    said = capsys.readouterr().err
    assert "-o s3://bucket/model is on another machine, where only 'compress label' writes" in said
    assert not list(tmp_path.iterdir())


def test_what_nobody_finds_again_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teacher: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["label", "--teacher", str(teacher), "--unlabeled", "faulty://bucket/pool.txt", "-q", "-o"]
    assert execute([*words, "memory://bucket/labels"]) == 2
    assert "is the memory of this command, which ends with it; give a directory" in capsys.readouterr().err
    monkeypatch.setattr(FaultyFileSystem, "find", lambda self, path, **named: {})
    assert execute([*words, URI]) == 2
    assert f"{URI} does not list what is written there" in capsys.readouterr().err
