"""What opens a URI is shown nowhere."""

import pytest

from compress.escaping.uris import is_uri, local_path, text_without_secrets, without_secrets


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("s3://bucket/a.csv", True),
        ("file:///a.csv", True),
        ("memory://a", True),
        ("a.csv", False),
        ("/s3://a", False),
        ("c:/a", False),
        ("c://a", False),
        ("glue/sst2", False),
        (3, False),
    ],
)
def test_uris_are_known_by_their_start(name: object, expected: bool) -> None:
    assert is_uri(name) is expected


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("s3://bucket/part-?.parquet", "s3://bucket/part-?.parquet"),
        ("s3://bucket/a#1.csv", "s3://bucket/a#1.csv"),
        ("s3://bucket/a.csv?versionId=1", "s3://bucket/a.csv"),
        ("s3://key:sec/r+et@bucket/a.csv", "s3://bucket/a.csv"),
        ("s3://key:12/et@bucket/a@b.csv", "s3://key:12/et@bucket/a@b.csv"),
        ("sftp://user:pass@host:22/a@b.csv", "sftp://b.csv"),
        ("sftp://host:22/a@b.csv", "sftp://host:22/a@b.csv"),
        ("https://token@host:8080/a.csv?sig=x/y#z", "https://host:8080/a.csv"),
        ("https://host/a.csv?token", "https://host/a.csv"),
        ("abfs://container@account.dfs.core.windows.net/a", "abfs://container@account.dfs.core.windows.net/a"),
        ("gs://bucket/a b.csv", "gs://bucket/a b.csv"),
    ],
)
def test_users_passwords_and_signatures_are_left_out(uri: str, expected: str) -> None:
    assert without_secrets(uri) == expected


def test_a_text_is_shown_without_the_secrets_in_it() -> None:
    text = "cannot open 'https://u:p@h/x?sig=1', nor s3://k:s@b/a, but /a/b@c?d=e"
    assert text_without_secrets(text) == "cannot open 'https://h/x nor s3://b/a, but /a/b@c?d=e"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("file:///data/a.csv", "/data/a.csv"),
        ("FILE://localhost/data/a%20b.csv", "/data/a b.csv"),
        ("local:///data/*.csv", "/data/*.csv"),
        ("file://a.csv", "a.csv"),
        ("s3://bucket/a%20b.csv", "s3://bucket/a%20b.csv"),
        ("a%20b.csv", "a%20b.csv"),
    ],
)
def test_uris_of_this_machine_are_paths(name: str, expected: str) -> None:
    assert local_path(name) == expected
