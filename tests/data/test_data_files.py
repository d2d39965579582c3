"""Files, patterns, folders and URIs: what they name, in which order it is read, and what goes wrong on the way."""

from __future__ import annotations

import errno
import gzip
import io
import logging
import os
import resource
import shutil
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.registry import known_implementations

from compress.data import TextSource, check_roles, open_source, sources
from compress.errors import CompressError
from compress.files import remote as remote_module
from compress.files.remote import Remote, RemoteFile, cache_place
from tests.support.remote import FaultyFileSystem, remote_files

FILES = {
    "a.csv": b"text,label\na b,x\nc d,y\n",
    "a.tsv": b"text\tlabel\na b\tx\nc d\ty\n",
    "a.jsonl": b'{"text": "a b", "label": "x"}\n{"text": "c d", "label": "y"}\n',
    "a.json": b'[{"text": "a b", "label": "x"}, {"text": "c d", "label": "y"}]',
    "a.csv.gz": gzip.compress(b"text,label\na b,x\nc d,y\n"),
}


def parquet(*texts: str) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.table({"text": pa.array(texts, pa.string()), "label": pa.array(["x"] * len(texts))}), stream)
    return stream.getvalue()


FILES["a.parquet"] = parquet("a b", "c d")
SPARK = {
    "_SUCCESS": b"",
    ".part-00000.parquet.crc": b"crc",
    "_temporary/0/part-00000.parquet": b"half",
    "day=1/.hidden/part-00009.parquet": b"no Parquet",
    "day=1/part-00000.snappy.parquet": parquet(),
    "day=1/part-00001.snappy.parquet": parquet("a", "b"),
    "day=2/part-00000.snappy.parquet": parquet("c", "d"),
}


@pytest.fixture(autouse=True)
def remote(tmp_path: Path) -> Iterator[FaultyFileSystem]:
    with remote_files(tmp_path / "cache") as system:
        yield system


def pool(name: object) -> TextSource:
    return open_source(str(name), role="unlabeled", labelled=False)


def texts(name: object) -> list[str]:
    return [row.text for row in pool(name)]


def refused(name: object, message: str) -> str:
    with pytest.raises(CompressError, match=message) as caught:
        texts(name)
    return str(caught.value)


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def upload(files: dict[str, bytes], folder: str) -> None:
    system, path = fsspec.core.url_to_fs(folder)
    for name, content in files.items():
        system.pipe(f"{path}/{name}", content)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("protocol", ["file", "memory", "faulty"])
def test_a_remote_file_is_read_as_a_local_one(name: str, protocol: str, tmp_path: Path) -> None:
    local = write(tmp_path, {name: FILES[name]}) / name
    uri = f"file://{local}" if protocol == "file" else f"{protocol}:///bucket/{name}"
    if protocol != "file":
        upload({name: FILES[name]}, f"{protocol}://bucket")
    here, there = (open_source(str(place), role="train", labelled=True) for place in (local, uri))
    assert [*there] == [*there] == [*here] and len([*here]) == 2
    assert there.describe() == here.describe() and there.name == name
    if protocol == "file":  # it is read where it lies, and is the same file as by its path
        assert there.identity == here.identity and not (tmp_path / "cache").exists()
    else:
        assert there.identity == {uri + "#" if name == "a.json" else uri}


def test_local_uris_name_paths(tmp_path: Path) -> None:
    write(tmp_path, {"a b.txt": b"one\n", "c%20d.txt": b"two\n"})
    assert texts((tmp_path / "a b.txt").as_uri()) == texts(f"file://localhost{tmp_path}/a b.txt") == ["one"]
    assert texts(f"file://{tmp_path}/c%20d.txt") == texts(f"local://{tmp_path}/c*.txt") == ["two"]


def test_a_folder_of_too_many_files_is_not_walked_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MOST_LISTED", 5)
    write(tmp_path, {f"{name}/{number}.parquet": parquet("a") for name in "ab" for number in range(5)})
    refused(tmp_path, "holds more than 5 files: name a folder in it")
    assert len(texts(tmp_path / "a")) == 5


@pytest.mark.parametrize("place", ["here", "there"])
def test_a_folder_of_spark_is_read_one_file_after_the_other(place: str, tmp_path: Path) -> None:
    folder = str(write(tmp_path / "pool", SPARK)) if place == "here" else "faulty://bucket/pool"
    upload(SPARK, "faulty://bucket/pool")
    assert texts(folder) == texts(folder + "/") == ["a", "b", "c", "d"]
    assert texts(folder + "/day=2") == texts(folder + "/day=[2-9]") == ["c", "d"]
    assert texts(folder + "/day=*") == ["a", "b", "c", "d"]
    assert texts(folder + "/day=*/part-*") == ["a", "c", "b", "d"], "files of a pattern are read in turn"
    assert pool(folder).describe() == "pool (2 files): Parquet, text = text"
    assert len(pool(folder).identity) == 2


@pytest.mark.parametrize("place", ["here", "there"])
def test_folders_that_are_no_parquet_files_are_refused(place: str, tmp_path: Path, remote: FaultyFileSystem) -> None:
    files = {"text/a.csv": b"a b", "delta/_delta_log/0.json": b"{}", "delta/a.parquet": parquet("a"), "none/_x": b""}
    root = str(write(tmp_path, files)) if place == "here" else "faulty:///bucket"
    upload(files, "faulty://bucket")
    refused(f"{root}/text", f"{root}/text is a directory without Parquet files, but a file is needed")
    refused(f"{root}/none", "without Parquet files")
    refused(f"{root}/delta", "is a Delta table, whose log says which files count")


def test_only_parquet_without_rows_is_one_sentence() -> None:
    upload({"a.parquet": parquet(), "b.parquet": parquet()}, "faulty://bucket")
    refused("faulty://bucket", "a.parquet is empty")


def test_a_link_that_leaves_a_folder_is_not_followed(tmp_path: Path) -> None:
    folder = write(tmp_path / "pool", {"a.parquet": parquet("a")})
    (folder / "b.parquet").symlink_to("a.parquet")
    assert texts(folder) == ["a", "a"]
    (folder / "c.parquet").symlink_to(write(tmp_path, {"private.parquet": parquet("p")}) / "private.parquet")
    refused(folder, "pool/c.parquet is a link that leaves its folder")


def test_many_parquet_files_are_read_with_one_of_them_open(tmp_path: Path) -> None:
    names = [f"part-{number:05d}.parquet" for number in range(300)]
    write(tmp_path, {name: parquet(name[5:10], "end") for name in names})
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    try:
        found = texts(tmp_path / "part-*.parquet")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == [text for name in names for text in (name[5:10], "end")]


def test_too_many_files_of_text_are_refused_before_any_is_copied(tmp_path: Path, remote: FaultyFileSystem) -> None:
    files = {f"{number}.txt": b"a b\n" for number in range(251)}
    upload(files, "faulty://bucket")
    refused("faulty://bucket/*.txt", "251 files match 'faulty://bucket/..txt', and at most 250 are read at a time")
    assert not remote.copied
    refused(write(tmp_path, files) / "*.txt", "251 files match")


def test_a_copy_is_used_again_until_the_file_changes(remote: FaultyFileSystem) -> None:
    upload({"a.txt": b"one\n", "b.txt": b"two\n"}, "faulty://bucket")
    assert texts("faulty://bucket/*.txt") == texts("faulty://bucket/*.txt") == ["one", "two"]
    assert remote.copied == ["/bucket/a.txt", "/bucket/b.txt"]
    remote.store.pop("/bucket/a.txt")
    upload({"a.txt": b"six\n"}, "faulty://bucket")
    assert texts("faulty://bucket/*.txt") == ["six", "two"]
    assert remote.copied == ["/bucket/a.txt", "/bucket/b.txt", "/bucket/a.txt"]


def test_a_file_of_unknown_age_is_copied_each_time(remote: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    info = FaultyFileSystem.info
    ageless = staticmethod(lambda path: {**info(remote, path), "created": None, "size": None})
    monkeypatch.setattr(FaultyFileSystem, "info", ageless)
    for content in ("one", "two"):
        upload({"a.txt": content.encode()}, "faulty://bucket")
        assert texts("faulty://bucket/a.txt") == [content]


def test_copies_are_private(tmp_path: Path) -> None:
    upload({"a.txt": b"one\n"}, "faulty://bucket")
    texts("faulty://bucket/a.txt")
    assert stat.S_IMODE((tmp_path / "cache").stat().st_mode) == 0o700


def test_copies_are_private_in_a_folder_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o755)
    upload({"a.txt": b"one\n"}, "faulty://bucket")
    texts("faulty://bucket/a.txt")
    assert stat.S_IMODE((tmp_path / "cache" / "data").stat().st_mode) == 0o700


def test_what_was_copied_before_a_connection_broke_stays(remote: FaultyFileSystem, tmp_path: Path) -> None:
    upload({f"{number:02d}.txt": b"a\n" for number in range(40)}, "faulty://bucket")

    def lose(path: str) -> None:
        if path == "/bucket/20.txt":
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")

    FaultyFileSystem.before_get = staticmethod(lose)
    refused(
        "faulty://bucket/*.txt",
        "^faulty://bucket/..txt could not be read .ConnectionResetError: .*Connection reset by peer.: check connection "
        "and credentials; what was copied stays, and the same command goes on.$",
    )
    assert not [path for path in (tmp_path / "cache").rglob("*.part")], "no half file stays"
    FaultyFileSystem.before_get = staticmethod(str)
    remote.copied.clear()
    assert len(texts("faulty://bucket/*.txt")) == 40
    assert remote.copied == [f"/bucket/{number}.txt" for number in range(16, 40)], "16 are copied at a time"


def test_a_file_that_comes_in_part_is_refused(remote: FaultyFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    upload({"a.txt": b"a\n" * 100}, "faulty://bucket")
    monkeypatch.setattr(FaultyFileSystem, "get_file", lambda self, remote, local, **_: Path(local).write_bytes(b"a\n"))
    refused("faulty://bucket/a.txt", "could not be read .EOFError: 2 of 200 bytes of a.txt.: check connection")


def endless(self: object, source: str, target: str, callback: Any, **_: Any) -> None:
    """Send a file that does not end."""
    with open(target, "wb") as stream:
        while True:
            stream.write(b"text\n" * 1000)
            callback.relative_update(5000)


@pytest.mark.parametrize(
    ("announced", "limit"), [(12_000, "12,000 bytes that it announced"), (None, "20,000 bytes of a")]
)
def test_a_file_that_does_not_end_is_not_copied(
    announced: int | None, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_module, "UNANNOUNCED_BYTES", 20_000)
    monkeypatch.setattr(FaultyFileSystem, "get_file", endless)
    info = {"name": "/bucket/a.txt", "size": announced, "type": "file"}
    monkeypatch.setattr(FaultyFileSystem, "info", lambda self, path, **_: info)
    refused("faulty://bucket/a.txt", f"^faulty://bucket/a.txt sends more than the {limit}")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_file_that_the_disk_does_not_hold_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    upload({"a.txt": b"a\n" * 100}, "faulty://bucket")
    free = remote_module.KEPT_FREE_BYTES + 100
    monkeypatch.setattr(shutil, "disk_usage", lambda place: SimpleNamespace(free=free))
    refused("faulty://bucket/a.txt", "sends more than the 100 bytes that are free in .*; set COMPRESS_CACHE to another")


def test_a_server_that_sends_next_to_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    upload({"a.txt": b"a\n" * 100}, "faulty://bucket")
    clock = iter(range(0, 10_000, 100))
    monkeypatch.setattr(remote_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    refused("faulty://bucket/a.txt", "could not be read .TimeoutError: fewer than 1,000 bytes a second.")


class WebServer(BaseHTTPRequestHandler):
    """Sends a file, an endless one, or nothing."""

    def do_GET(self) -> None:
        if self.path == "/silent.csv":
            self.server.ended.wait()  # type: ignore[attr-defined]
            return
        self.send_response(200 if self.path in {"/a.csv", "/endless.csv"} else 404)
        self.end_headers()
        if self.command == "HEAD":
            return
        with suppress(OSError):
            self.wfile.write(FILES["a.csv"])
            while self.path == "/endless.csv":
                self.wfile.write(FILES["a.csv"] * 1000)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(params=["127.0.0.1", "::1"])
def web(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a web server on this machine."""
    pytest.importorskip("aiohttp")
    family = socket.AF_INET6 if ":" in request.param else socket.AF_INET
    kind = type("Server", (ThreadingHTTPServer,), {"address_family": family, "daemon_threads": True})
    server = kind((request.param, 0), WebServer)
    server.ended = threading.Event()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    host = f"[{request.param}]" if ":" in request.param else request.param
    yield f"http://{host}:{server.server_address[1]}"
    server.ended.set()
    server.shutdown()
    server.server_close()


def test_files_of_a_web_server_are_bounded_in_size_and_time(web: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_module, "UNANNOUNCED_BYTES", 10_000_000)
    monkeypatch.setattr(remote_module, "_ANSWER_S", 1)
    assert texts(f"{web}/a.csv") == ["a b", "c d"]
    refused(f"{web}/none.csv", "There is no file .* or it cannot be reached")
    refused(f"{web}/endless.csv", "sends more than the 10,000,000 bytes of a file that does not say its size")
    refused(f"{web}/silent.csv", "There is no file .* or it cannot be reached")
    refused(f"{web}/*.csv", "is on a web server, which lists no files: name one data file in full")


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("faulty://bucket/none.csv", "There is no file 'faulty://bucket/none.csv', or it cannot be reached"),
        ("faulty://bucket/*.csv", "No file matches 'faulty://bucket/..csv': check the pattern"),
        ("faulty://bucket/..", "is a directory without Parquet|no name that a file can have|There is no file"),
        ("nonesuch://bucket/a.csv", "has the unknown protocol 'nonesuch': use s3://, gs://, hf:// or another"),
        ("zip://a.csv::faulty://bucket/a.zip", "is a chain of URIs, which is not read"),
        ("lacking://bucket/a.csv", "needs the Python package no_such_fs, which is not installed; type pip install no_"),
        ("sftp://host/a.csv", "needs the Python package paramiko, which is not installed; type pip install paramiko"),
    ],
)
def test_what_cannot_be_reached_is_one_sentence(uri: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(known_implementations, "lacking", {"class": "no_such_fs.System", "err": "Install it"})
    monkeypatch.setitem(sys.modules, "paramiko", None)
    refused(uri, message)


def test_missing_rights_are_one_sentence() -> None:
    upload({"a.txt": b"a\n"}, "faulty://bucket")

    def forbid(path: str) -> None:
        raise PermissionError("Forbidden")

    FaultyFileSystem.before_get = staticmethod(forbid)
    refused(
        "faulty://bucket/a.txt",
        "^faulty://bucket/a.txt cannot be read, for lack of permission .PermissionError: Forbidden.: check the credent",
    )


def test_a_full_disk_here_is_no_fault_of_the_file_there() -> None:
    upload({"a.txt": b"a\n"}, "faulty://bucket")

    def fill(path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    FaultyFileSystem.before_get = staticmethod(fill)
    with pytest.raises(OSError, match="No space left"):
        texts("faulty://bucket/a.txt")


def test_secrets_of_a_uri_are_shown_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    upload({"a.txt": b"one two\n"}, "faulty://bucket")
    uri = "faulty://user:hu/nter2@bucket/a.txt?key=hunter2"
    with caplog.at_level(logging.INFO, logger="compress"):
        source = pool(uri)
    assert [row.text for row in source] == ["one two"]
    said = f"{source.name} {source.describe()} {source.identity} {caplog.text}"
    assert "copying 1 file, 0.0 MB" in caplog.text and "faulty:///bucket/a.txt" in said

    def repeat(path: str) -> None:
        raise RuntimeError(f"cannot open {uri}, because")

    FaultyFileSystem.before_get = staticmethod(repeat)
    upload({"b.txt": b"one two\n"}, "faulty://bucket")
    said += refused(uri.replace("a.txt", "b.txt"), "could not be read .RuntimeError: cannot open faulty://bucket/a.txt")
    assert "hunter2" not in said and "user" not in said


def test_a_copy_has_its_name_without_a_signature() -> None:
    signed = RemoteFile("https://host/a.csv", "https://host/a.csv?sig=hunter2", {"size": 3, "ETag": "1"})
    place, kept = signed.place()
    assert place.name == "a.csv" and not kept
    again = RemoteFile(signed.uri, "https://host/a.csv?sig=hunter3", signed.info)
    assert again.place() == (place, kept)


@pytest.mark.parametrize("info", [{"size": None}, {"size": 3, "Last-Modified": "today"}])
def test_files_that_only_a_query_tells_apart_have_copies_of_their_own(info: dict[str, Any]) -> None:
    one, other = (RemoteFile("https://host/get", f"https://host/get?id={number}", info) for number in (1, 2))
    assert one.place()[0] != other.place()[0]
    here, there = (RemoteFile(f"ftp://{host}/data/a.csv", "/data/a.csv", info) for host in ("h1", "h2"))
    assert here.place()[0] != there.place()[0]


def test_a_remote_file_in_two_roles_is_refused() -> None:
    upload({"a.csv": FILES["a.csv"]}, "faulty://bucket")
    roles: dict[str, Any] = {
        role: open_source(uri, role=role, labelled=True)
        for role, uri in (("train", "faulty://bucket/a.csv"), ("test", "faulty:///bucket/*.csv"))
    }
    with pytest.raises(CompressError, match="train and test are the same file, a.csv"):
        check_roles(roles, overlap="drop")


def test_a_name_that_no_file_has_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    info = staticmethod(lambda path: {"name": path, "size": 1, "type": "file"})
    monkeypatch.setattr(FaultyFileSystem, "info", info)
    monkeypatch.setattr(FaultyFileSystem, "_strip_protocol", classmethod(lambda cls, path: path))
    with pytest.raises(CompressError, match="has no name that a file can have"):
        Remote.at("faulty://bucket/a\0b").files()[0][0].place()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/none", "x" * 300])
def test_a_cache_that_cannot_be_made_is_one_sentence(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / place))
    with pytest.raises(CompressError, match=r"the cache .* cannot be made \(.*\); set \$COMPRESS_CACHE to a folder"):
        cache_place("data", "key")
