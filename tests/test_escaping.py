"""Foreign text in every medium: what is rendered is the text, and nothing in it acts."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from hypothesis import assume, example, given
from markdown_it import MarkdownIt

from compress.escaping import (
    Markdown,
    code_span,
    is_uri,
    local_path,
    markdown_text,
    markup_text,
    one_line,
    terminal_cell,
    terminal_text,
    text_without_secrets,
    visible,
    without_secrets,
)
from tests.support.foreign import texts

ORDINARY = (
    "cnn-int8",
    "minilm_l6",
    "a*b",
    "×46.2 (×44.0 to ×48.0)",
    "-5",
    "+2.07",
    "1.5",
    "Rätsel 謎 👩‍🔬",
    "C:\\models",
)
COMMONMARK = MarkdownIt("commonmark").enable(["table", "strikethrough"])


@given(texts)
def test_visible_text_has_no_character_that_controls(text: str) -> None:
    shown = visible(text)
    assert not re.search(
        r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufffe]", shown
    )
    assert visible(shown) == shown and not re.search(r"[\n\t]", one_line(text))


@given(texts)
def test_json_in_which_characters_are_shown_is_the_same_json(text: str) -> None:
    assert json.loads(visible(json.dumps({text: text}, ensure_ascii=False, indent=1))) == {text: text}
    assert json.loads(terminal_text(json.dumps([text], ensure_ascii=False))) == [text]


class Parsed(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, list[tuple[str, str | None]]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, attrs))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError("a comment")


@given(texts)
def test_html_and_xml_have_no_further_element_or_attribute(text: str) -> None:
    page = f'<p title="{markup_text(text)}">{markup_text(text)}</p>'
    found = Parsed(page)
    assert found.elements == [("p", [("title", visible(text))])] and found.text == visible(text)
    root = ElementTree.fromstring(page)
    assert root.text in (visible(text), None) and not len(root) and list(root.attrib) == ["title"]


@given(texts)
@example("a && b --name 'x_y' `z` ```")
@example("` `` ")
def test_code_is_copied_from_markdown_as_it_is(text: str) -> None:
    line = one_line(text)
    assume(line.strip())
    paragraph, inline, end = COMMONMARK.parse(code_span(text))
    assert (paragraph.type, end.type) == ("paragraph_open", "paragraph_close") and line in code_span(text)
    assert [(one.type, one.content) for one in inline.children or []] == [("code_inline", line)]


def rendered(inline: list[str], kinds: set[str], page: str) -> None:
    """Render a page, and collect its inline texts and the kinds of blocks and of parts of text that it has."""
    for token in COMMONMARK.parse(page):
        kinds.add(token.type)
        if token.type == "inline":
            parts = token.children or []
            kinds.update(child.type for child in parts)
            inline.append("".join(child.content for child in parts).replace("\u200b", ""))


@given(texts)
@example("ends with #")
@example("1.")
def test_markdown_renders_as_the_text(text: str) -> None:
    inline: list[str] = []
    kinds: set[str] = set()
    shown = markdown_text(text)
    rendered(
        inline, kinds, f"## {shown}\n\n{shown}\n\n* {shown}\n\n| a |\n|---|\n| {shown} |\n\nx {shown} y\n{shown}\n"
    )
    said = one_line(text).strip()
    assert [one.strip() for one in inline[:1]] == [said]
    assert {one for one in inline if one not in ("", "a", said, f"x {said} y{said}")} <= {f"x {said} y"}
    assert not kinds - set(
        "heading_open heading_close paragraph_open paragraph_close bullet_list_open bullet_list_close list_item_open "
        "list_item_close table_open table_close thead_open thead_close tbody_open tbody_close tr_open tr_close th_open "
        "th_close td_open td_close inline text softbreak".split()
    )
    assert inline.count("a") == 1 + 4 * (said == "a")


@given(texts)
def test_github_finds_no_address_person_issue_or_emoji(text: str) -> None:
    """As its extension of Markdown and its filters look for them: addresses in the source, the others in the text."""
    shown = markdown_text(text)
    assert not re.search(r"[a-z]://|www\.", shown, re.IGNORECASE)
    page = COMMONMARK.render(f"x {shown} y")
    assert not re.search(r"@\w|#\d|:[a-z+-][\w+-]*:", page.replace("&#", ""), re.IGNORECASE)


@given(texts)
def test_a_terminal_and_a_log_get_text_alone(text: str) -> None:
    shown = terminal_text(text)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", shown)
    assert not any(line.strip().startswith("::") for line in shown.split("\n"))
    assert not re.search(r"##[\w-]*\[", shown)


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_names_stay_as_they_are(name: str) -> None:
    assert visible(name) == terminal_text(name) == markup_text(name) == str(terminal_cell(name)) == name
    assert COMMONMARK.renderInline(markdown_text(name)) == name


def test_what_is_shown_in_place_of_characters() -> None:
    assert visible("a\x1b[31m\u202eb\udcff\U000e0001") == "a\\u001b[31m\\u202eb\\udcff\\udb40\\udc01"
    assert terminal_text(" ::error::x\n##[group]y ##vso[z]") == " \\u003a:error::x\n#\\u0023[group]y #\\u0023vso[z]"
    assert markdown_text("see @team, #1 at https://a.org") == "see @&#8203;team, \\#&#8203;1 at https\\://a.org"


def test_what_is_markdown_already_stays() -> None:
    assert markdown_text(Markdown("| *a* |\n|---|")) == "| *a* |\n|---|"


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
