"""Roles stay apart, fragments together; labels mean what they say; sets are found by name."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from compress.data import (
    Example,
    TextSource,
    check_classes,
    check_roles,
    content_sha256,
    grouped_split,
    infer_labels,
    join_sources,
    open_source,
    read_examples,
    row_key,
)
from compress.data.examples import normalise
from compress.errors import CompressError
from compress.studies.data import find_set
from compress.tasks import find_task


def rows(*texts: str) -> list[Example]:
    return [Example(text, None, str(number % 2)) for number, text in enumerate(texts)]


def classes(*labels: str) -> list[Example]:
    return [Example("text", None, label) for label in labels]


def pool(path: Path, *texts: str) -> TextSource:
    path.write_text("".join(text + "\n" for text in texts), encoding="utf-8")
    return open_source(path, role="unlabeled", labelled=False)


def test_normalise() -> None:
    assert normalise("  Stra\u00dfe\u00a0\uff21\tb ") == "strasse a b"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("Bad .", "bad", True),
        ("it 's  fine", "It's fine!", True),
        ("c++", "c", False),
        ("fine \U0001f600", "fine \U0001f621", False),
        ("\u0915\u093f", "\u0915\u093e", False),  # Hindi words that differ in a vowel sign
        ("!", "?", False),
    ],
)
def test_row_keys_compare_words(one: str, other: str, same: bool) -> None:
    assert (row_key(Example(one)) == row_key(Example(other))) is same


def test_row_keys_see_the_pair_but_not_the_label() -> None:
    assert row_key(Example("a", "b")) != row_key(Example("a b"))
    assert row_key(Example("a", "b", "1")) == row_key(Example("A", "B", "0"))
    assert len(row_key(Example("a"))) == 8


def test_content_fingerprint() -> None:
    some = rows("a", "b", "c")
    assert content_sha256(some) == content_sha256(reversed(some))
    assert content_sha256(some) != content_sha256([*some, some[0]])
    assert content_sha256([Example("a", "b")]) != content_sha256([Example("a", None, "b")])


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["10", "9", "10"], ("9", "10")),
        (["spam", "ham"], ("ham", "spam")),
        (["0.5", "1", "2"], None),
        (["1.0", "0.0"], ("0.0", "1.0")),
        ([str(number) for number in range(100)], None),
        ([str(number) for number in range(100)] * 5, tuple(map(str, range(100)))),
        (["nan", "1"], ("1", "nan")),
        ([*["0.5", "1", "2"] * 6, "nan", "high"], None),
        ([*["0.5", "1"] * 4, "high"], ("0.5", "1", "high")),
    ],
)
def test_infer_labels(labels: list[str], expected: tuple[str, ...] | None) -> None:
    assert infer_labels(classes(*labels)) == expected


def test_encode_labels_takes_names_or_indices() -> None:
    assert find_task("classification").gold(classes("pos", "neg", "1"), ["neg", "pos"], "train") == [1, 0, 1]
    assert find_task("classification").gold(classes("1", "2.0"), ["1.0", "2"], "train") == [0, 1]
    with pytest.raises(CompressError, match="label 'A', which"):
        find_task("classification").gold(classes("A"), ["a b", "a\u200bB"], "train")
    assert find_task("classification").gold(classes("1", "2"), ["1", "2"], "train") == [0, 1]
    assert find_task("regression").gold(classes("0.5", "3"), (), "train") == [0.5, 3.0]


@pytest.mark.parametrize(
    ("label", "known", "message"),
    [
        ("negativ", ["negative", "positive"], r"Row 2 of test \('[a-z ]*'\) has the label 'negativ'.*mean 'negative'"),
        ("2", ["negative", "positive"], "label '2'"),
        ("0", ["1", "2"], "label '0'"),
        ("-1", ["negative", "positive"], "label '-1'"),
        ("no", [f"class{number}" for number in range(77)], r"class9, \.\.\. \(77 in all\)"),
    ],
)
def test_encode_labels_refuses(label: str, known: list[str], message: str) -> None:
    with pytest.raises(CompressError, match=message):
        find_task("classification").gold(classes(known[0], label), known, "test")


@pytest.mark.parametrize("label", ["high", "nan", "inf"])
def test_encode_scores_refuses(label: str) -> None:
    with pytest.raises(CompressError, match=rf"Row 1 of train \('.*'\) has the label '{label}'"):
        find_task("regression").gold(classes(label), (), "train")


def test_unlabelled_rows_cannot_be_encoded() -> None:
    with pytest.raises(CompressError, match=r"Row 1 of train \('text'\) has no label"):
        find_task("classification").gold([Example("text")], ["a", "b"], "train")


def test_disjoint_roles_pass_unchanged(tmp_path: Path) -> None:
    texts = pool(tmp_path / "pool.txt", "one", "two", "two")
    checked = check_roles(
        {"train": rows("one"), "unlabeled": texts, "validation": rows("three"), "test": rows("four")}, "refuse"
    )
    assert checked.rows == {"train": 1, "unlabeled": 3, "validation": 1, "test": 1}
    assert not checked.left_out and checked.sets["unlabeled"] is texts


@pytest.mark.parametrize(("earlier", "later"), [("train", "test"), ("train", "validation"), ("validation", "test")])
def test_overlap_is_refused_or_left_out_as_asked(earlier: str, later: str) -> None:
    sets = {earlier: rows("one", "Two .", "three"), later: rows("two", "four")}
    said = rf"1 of the 3 rows of {earlier} also occur in {later} \(there 1 of 2\), .* row 2 of .*--drop-overlap"
    with pytest.raises(CompressError, match=said):
        check_roles(sets, "refuse")
    with pytest.raises(CompressError, match=f"{said[:-16]}.*so many mean that files or their split are mixed up"):
        check_roles(sets)
    checked = check_roles(sets, "drop")
    assert [row.text for row in checked.sets[earlier]] == ["one", "three"]
    assert checked.rows == {earlier: 2, later: 2} and [*checked.left_out] == [earlier]
    assert "(1 left out)" in checked.describe()
    with pytest.raises(CompressError, match="overlap 'none' is not known; use few, drop, refuse"):
        check_roles(sets, "none")  # type: ignore[arg-type]


def test_a_few_overlapping_rows_are_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    def numbered(first: int, count: int) -> list[Example]:
        return rows(*(f"text {number}" for number in range(first, first + count)))

    sets = {"train": numbered(0, 1000), "validation": numbered(990, 1000), "test": numbered(1989, 300)}
    checked = check_roles(sets)
    assert checked.rows == {"train": 990, "validation": 999, "test": 300}
    assert [record.getMessage() for record in caplog.records] == [
        "1 of the 1,000 rows of validation also occur in test (there 1 of 300); left out of validation: row 1000 "
        "(--refuse-overlap refuses them)",
        "10 of the 1,000 rows of train also occur in validation (there 10 of 1,000); left out of train: row 991, 992, "
        "993, 994, 995, 996, 997, 998, 999, 1000 (--refuse-overlap refuses them)",
    ]
    train, validation, test = checked.described()
    assert train["left_out"] == {"rows": 10, "first": [*range(991, 1001)], "also_in": {"validation": 10}}
    assert train["given_sha256"] == content_sha256(sets["train"]) and train["rows"] == 990
    assert validation["left_out"]["also_in"] == {"test": 1} and "left_out" not in test


@pytest.mark.parametrize(
    ("shared", "train", "held", "few"),
    [(10, 1000, 1000, True), (11, 1000, 2000, False), (11, 2000, 1000, False), (3, 30, 299, True), (4, 30, 399, False)]
    + [(1, 10, 10, True), (1, 9, 100, False), (2, 19, 100, False)],
)
def test_how_many_overlapping_rows_are_few(shared: int, train: int, held: int, few: bool) -> None:
    names = [f"text {number}" for number in range(train + held)]
    sets = {"train": rows(*names[:train]), "validation": rows(*names[train - shared : train - shared + held])}
    if few:
        assert check_roles(sets).rows == {"train": train - shared, "validation": held}
    else:
        with pytest.raises(CompressError, match=f"{shared} of the {train:,} rows of train also occur in validation"):
            check_roles(sets)


def test_pools_are_checked_and_filtered_as_streams(tmp_path: Path) -> None:
    texts = pool(tmp_path / "pool.txt", "one", "TWO", "three", "four")
    held = {"validation": rows("two", "x"), "test": rows("four", "y")}
    with pytest.raises(CompressError, match="rows of unlabeled also occur in"):
        check_roles({"unlabeled": texts, **held}, overlap="refuse")
    checked = check_roles({"unlabeled": texts, **held}, overlap="drop")
    kept = checked.sets["unlabeled"]
    assert isinstance(kept, TextSource)
    assert [row.text for row in kept] == [row.text for row in kept] == ["one", "three"]
    assert [row.text for row in texts] == ["one", "TWO", "three", "four"], "the source itself is unchanged"


def test_same_file_in_two_roles(tmp_path: Path) -> None:
    path = tmp_path / "data.tsv"
    path.write_text("text\tlabel\na b\tx\nc d\ty\n")
    (tmp_path / "link.tsv").symlink_to(path)
    train = open_source(path, role="train", labelled=True)
    test = open_source(tmp_path / "link.tsv", role="test", labelled=True)
    with pytest.raises(CompressError, match="train and test are the same file, data.tsv"):
        check_roles({"train": train, "test": test}, overlap="drop")
    unlabeled = open_source(path, role="unlabeled", labelled=False)
    check_roles({"train": train, "unlabeled": unlabeled}, overlap="refuse")


def test_splits_in_one_file_are_different_data(tmp_path: Path) -> None:
    path = tmp_path / "data.json"
    path.write_text('{"train": [["a b c", "x"], ["d e f", "y"]], "test": [["g h i", "x"], ["j k l", "y"]]}')
    roles = {role: open_source(path, role=role, labelled=True) for role in ("train", "test")}
    assert check_roles(roles, overlap="refuse").rows == {"train": 2, "test": 2}


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(CompressError, match="All 2 rows of train also occur in test"):
        check_roles({"train": rows("a", "b"), "test": rows("a", "b", "c")}, overlap="drop")
    with pytest.raises(CompressError, match="The test set is empty"):
        check_roles({"train": rows("a"), "test": []}, overlap="drop")


def test_joined_sources(tmp_path: Path) -> None:
    (tmp_path / "b.csv").write_text("id,sentence\n1,three\n")
    second = open_source(tmp_path / "b.csv", role="unlabeled", labelled=False)
    joined = join_sources([pool(tmp_path / "a.txt", "one", "two"), second])
    assert [row.text for row in joined] == ["one", "three", "two"]
    assert [row.text for row in joined.without(frozenset({row_key(Example("Three"))}))] == ["one", "two"]


def naive_groups(texts: Sequence[str]) -> list[int]:
    """Group by the definition: containment in the first of the longest sentences."""
    tokens = [tuple(text.split()) for text in texts]
    roots: list[tuple[str, ...]] = []
    groups = [0] * len(texts)
    for index in sorted(range(len(texts)), key=lambda i: (-len(tokens[i]), tokens[i])):
        words = tokens[index]
        spans = (
            number
            for number, root in enumerate(roots)
            if any(root[at : at + len(words)] == words for at in range(len(root) - len(words) + 1))
        )
        groups[index] = next(spans, len(roots))
        if groups[index] == len(roots):
            roots.append(words)
    return groups


def test_groups_follow_the_definition() -> None:
    from compress.data.overlap import _groups

    chance = random.Random(0)
    texts = [" ".join(chance.choices("abcd", k=chance.randint(1, 9))) for _ in range(400)]
    assert _groups([tuple(text.split()) for text in texts]) == naive_groups(texts)


def test_grouped_split_keeps_fragments_with_their_sentence() -> None:
    sentences = [f"w{n} x{n} y{n} z{n}" for n in range(40)]
    fragments = [text for n in range(40) for text in (f"x{n} y{n}", f"Y{n} z{n} .", f"w{n}")]
    examples = rows(*fragments, *sentences)
    train, validation = grouped_split(examples, 0.2, seed=1)
    assert len(train) + len(validation) == 160 and len(validation) == 32
    numbers = [{row.text.lower().split()[0][1:] for row in part} for part in (train, validation)]
    assert not numbers[0] & numbers[1]
    assert grouped_split(examples, 0.2, seed=1) == (train, validation)
    assert grouped_split(examples, 0.2, seed=2) != (train, validation)
    check_roles({"train": train, "validation": validation}, overlap="refuse")


def test_grouped_split_never_parts_equal_rows() -> None:
    examples = rows(*(text for n in range(60) for text in (f"Text {n} here", f"text {n}  HERE .")))
    train, validation = grouped_split(examples, 0.1, seed=0)
    check_roles({"train": train, "validation": validation}, overlap="refuse")


def test_grouped_split_refuses_one_group() -> None:
    with pytest.raises(CompressError, match="can be held out"):
        grouped_split(rows("a b c d", "a b", "c d", "b c"), 0.25, seed=0)


@pytest.fixture
def data_root(tmp_path: Path) -> Path:
    names = [
        "glue/SST-2/train.tsv",
        "glue/SST-2/dev.tsv",
        "glue/MRPC/msr_paraphrase_train.txt",
        "glue/MRPC/dev.tsv",
        "glue/CoLA/in_domain_dev.tsv",
        "glue/CoLA/out_of_domain_dev.tsv",
        "glue/CoLA/in_domain_train.tsv",
        "glue/STS-B/sts-dev.csv",
        "imdb-sentences/unlabeled.txt.gz",
        "banking77/train.csv",
        "banking77/categories.json",
        "trec/TREC.test.all",
        "trec/TREC.train.all",
        "news/test.tsv",
        "news/official_test.csv",
        "tweets/irony/val_text.txt",
        "tweets/irony/val_labels.txt",
        "sms/SMSCollection",
        "snips/train_A_full.json",
        "snips/train_B_full.json",
        "snips/train_C_full.json",
        "yelp/sentiment.dev.0",
        "yelp/sentiment.dev.1",
        "sst/stsa.binary.dev",
        "sst/stsa.fine.dev",
        "clinc150/data_full.json",
        "clinc150/data_small.json",
    ]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "split", "found"),
    [
        ("glue/SST-2", "dev", "glue/SST-2/dev.tsv"),
        ("glue/SST-2", "validation", "glue/SST-2/dev.tsv"),
        ("glue/SST-2", "Dev", "glue/SST-2/dev.tsv"),
        ("glue/MRPC", "train", "glue/MRPC/msr_paraphrase_train.txt"),
        ("glue/CoLA", "train", "glue/CoLA/in_domain_train.tsv"),
        ("glue/CoLA/out_of_domain", "dev", "glue/CoLA/out_of_domain_dev.tsv"),
        ("glue/STS-B", "dev", "glue/STS-B/sts-dev.csv"),
        ("imdb-sentences", "unlabeled", "imdb-sentences/unlabeled.txt.gz"),
        ("banking77", "train", "banking77/train.csv"),
        ("trec", "test", "trec/TREC.test.all"),
        ("news", "test", "news/test.tsv"),
        ("tweets/irony", "dev", "tweets/irony/val_text.txt"),
        ("sms", "train", "sms/SMSCollection"),
        ("snips", "train", "snips/train_*_full.json"),
        ("yelp", "dev", "yelp/sentiment.dev.*"),
        ("sst/stsa.binary", "dev", "sst/stsa.binary.dev"),
        ("clinc150/data_full", "test", "clinc150/data_full.json"),
    ],
)
def test_find_set(data_root: Path, name: str, split: str, found: str) -> None:
    assert find_set(data_root, name, split) == data_root / found


@pytest.mark.parametrize(
    ("name", "split", "message"),
    [
        ("../glue/SST-2", "dev", "is not a name below the data root"),
        ("glue/../../etc", "dev", "is not a name below the data root"),
        ("/etc", "dev", "is not a name below the data root"),
        ("", "dev", "is not a name below the data root"),
        ("glue/SST-2", "../dev", "The split '../dev' is not a name"),
        ("glue/CoLA", "dev", "may be any of in_domain_dev.tsv, out_of_domain_dev.tsv"),
        ("sst", "dev", "may be any of stsa.binary.dev, stsa.fine.dev"),
        ("glue/SST-2", "test", "has no file for the split 'test'; it has dev.tsv, train.tsv"),
        ("bankin77", "train", "no set 'bankin77'.*mean 'banking77'"),
    ],
)
def test_find_set_refuses(data_root: Path, name: str, split: str, message: str) -> None:
    with pytest.raises(CompressError, match=message):
        find_set(data_root, name, split)


def test_find_set_needs_a_root() -> None:
    with pytest.raises(CompressError, match="The data root nowhere is not a folder: check --data-root"):
        find_set(Path("nowhere"), "glue/SST-2", "dev")
    with pytest.raises(CompressError, match="--data-root or set COMPRESS_DATA"):
        find_set(None, "glue/SST-2", "dev")


@pytest.mark.shared
def test_sst2_holds_the_overlap_that_is_known(shared_data: Path) -> None:
    """The data's README: SST-2 train holds 2 dev and 6 test sentences."""
    path = find_set(shared_data, "glue/SST-2", "train")
    train = read_examples(open_source(path, role="train", labelled=True))
    dev = open_source(find_set(shared_data, "glue/SST-2", "dev"), role="validation", labelled=True)
    test = open_source(find_set(shared_data, "glue/SST-2", "test"), role="test", labelled=False)
    keys = {row_key(example) for example in train}
    assert sum(row_key(example) in keys for example in dev) == 2
    assert sum(row_key(example) in keys for example in test) == 6
    checked = check_roles({"train": train, "validation": dev, "test": test}, overlap="drop")
    assert checked.rows["test"] == 1821 and checked.left_out["train"]["left_out"]["rows"] == 15
    assert check_roles({"train": train, "validation": dev, "test": test}).rows == checked.rows


@pytest.mark.shared
def test_sst2_is_split_by_sentence(shared_data: Path) -> None:
    path = find_set(shared_data, "glue/SST-2", "train")
    train = read_examples(open_source(path, role="train", labelled=True))
    fitting, held_out = grouped_split(train, 0.05, seed=0)
    assert len(fitting) + len(held_out) == 67_349 and 0.05 <= len(held_out) / 67_349 < 0.052
    check_roles({"train": fitting, "validation": held_out}, overlap="refuse")


SPELLINGS = [
    ("1", "1.0"),
    ("0", "-0"),
    ("1", "01"),
    ("e\u0301", "\u00e9"),
    ("good", "Good"),
    ("good", "go\u200bod"),
    ("good", "good\ufeff"),
    ("very good", "very\u00a0 good"),
    ("\uff27ood", "good"),
]


@pytest.mark.parametrize("pair", SPELLINGS)
def test_spellings_of_a_class_are_the_class_of_a_model(pair: tuple[str, str]) -> None:
    assert find_task("classification").gold(classes(*pair), ("other", pair[0]), "train") == [1, 1]


@pytest.mark.parametrize("pair", SPELLINGS)
def test_one_class_written_in_two_ways_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(CompressError, match="are one class written in two ways: write them alike"):
        infer_labels(classes(*pair, "x"))


def test_labels_that_only_look_alike_stay_classes() -> None:
    labels = ("10000000000000001", "10000000000000000", "a\nb", "\u05d0", "\U0001f600", "1_0", "nan", "inf")
    assert set(infer_labels(classes(*labels)) or ()) == set(labels)


def test_a_number_is_no_index_where_names_are_numbers() -> None:
    with pytest.raises(CompressError, match="label '0', which the model does not know: allowed are 1.0, 2.0"):
        find_task("classification").gold(classes("0"), ("1.0", "2.0"), "test")


def test_classes_are_counted_and_those_of_validation_alone_are_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "compress")
    check_classes(classes("a", "b", "b"), classes("b", "a"))
    assert caplog.messages == ["rows of each class of train: 'a' 1, 'b' 2"]
    check_classes(classes("a", "b"), classes("b", "d", "c", "c"))
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warned == ["validation has classes of which train has no row to learn from: c, d"]


def test_validation_of_other_classes_is_refused() -> None:
    with pytest.raises(CompressError, match="validation has the classes neg, pos, and train has 0, 1: write them"):
        check_classes(classes("0", "1"), classes("pos", "neg"))
