"""What a section gathers: which rows are compared, and how speeds change with threads and with the length of rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from compress.benchmarking.results.files import Results
from compress.benchmarking.results.schema import Measurement
from compress.errors import CompressError
from compress.reporting.curves import sweep
from compress.reporting.report import origins, view
from compress.reporting.sections import gather, section
from compress.reporting.tables import repeats
from tests.support.report_study import study
from tests.support.results import line

TEACHER = line("teacher", kind="teacher")


def student(**fields: Any) -> Measurement:
    return line("s", runtime="onnxruntime", model_sha256="5" * 64, **fields)


def test_results_shown_have_fewest_threads_and_own_lengths() -> None:
    lines = [
        replace(one, **more)
        for one in (TEACHER, student())
        for more in ({"threads": 4}, {"threads": 2}, {"threads": 2, "length": 16})
    ]
    (found,) = gather(lines)
    assert {(row.small_batch.threads, row.small_batch.length) for row in found.rows} == {(2, None)}
    assert len(found.rows) == 2 and len(found.swept) == 4
    assert [row.small_batch.length for row in found.fixed] == [16, 16]


def test_only_fixed_lengths_begin_with_the_shortest() -> None:
    (found,) = gather([replace(one, length=length) for one in (TEACHER, student()) for length in (128, 16)])
    assert {row.small_batch.length for row in found.rows} == {16}
    shown = section(found, {})
    assert shown.title.endswith("every row 16 tokens long") and list(shown.at_lengths) == [128]


def test_that_the_first_was_chosen_among_several_is_said() -> None:
    (one,), (two,) = gather([TEACHER, student()]), gather([TEACHER, student(), line("other")])
    assert not any("chosen among" in note for note in section(one, {}).notes)
    said = "chosen among 2 combinations of a compressed model and a runtime on these examples"
    assert any(said in note for note in section(two, {}).notes)


def test_data_hosts_and_devices_are_apart() -> None:
    changes: list[dict[str, Any]] = [{}, {"device": "cuda"}, {"host_id": "other"}, {"data_sha256": "1" * 64}]
    assert [len(part.rows) for part in gather([replace(TEACHER, **change) for change in changes])] == [1] * 4
    with pytest.raises(CompressError, match="'tpu', which this compress does not know"):
        gather([replace(TEACHER, device="tpu")])


def test_threads_have_a_chart_of_some_and_a_table_of_all() -> None:
    (cpu, gpu) = gather(study())
    best = next(line for line in cpu.small_batches if line.model == "bilstm-int8")
    found = sweep(cpu.swept, "threads", best)
    assert found is not None and [row[0].text for row in found.rows[:4]] == ["teacher"] * 2 + ["bilstm-int8"] * 2
    assert [row[1].value for row in found.rows[:4]] == [1, 2, 1, 2] and len(found.rows) == 2 * 27
    rough = [row[4] for row in found.rows if row[0].text == "torchao-int8"]
    assert len(rough) == 2 and all(cell.text.startswith("×") and cell.small.endswith(", wide") for cell in rough)
    assert "bert-large" not in found.pictures[0].wide and "bilstm-int8 in onnxruntime" in found.pictures[0].wide
    assert sweep(gpu.swept, "threads", None) is None


def test_lengths_are_a_chart_where_there_are_several() -> None:
    (cpu, gpu) = gather(study())
    found = sweep(cpu.fixed, "length", None)
    assert found is not None and [row[1].value for row in found.rows[:3]] == [16, 64, 128]
    assert sweep(gpu.fixed, "length", None) is None
    assert sweep([row for row in cpu.fixed if row.small_batch.length == 16], "length", None) is None


def test_a_chart_of_the_smallest_batch_leaves_out_who_was_not_measured_there() -> None:
    several = [replace(TEACHER, threads=threads, batch_size=size) for threads in (1, 2) for size in (1, 32)]
    large = [student(threads=threads, batch_size=32, latency_p50_ms=99.0) for threads in (1, 2)]
    for lines in (several + large, (several + large)[::-1]):
        (found,) = gather(lines)
        made = sweep(found.swept, "threads", None)
        assert made is not None and made.headings[2] == "p50 of the model, batch 1" and len(made.rows) == 4
        assert {row[2].value for row in made.rows if row[0].text == "s"} == {None}
        assert all(row[2].value and row[5].value for row in made.rows if row[0].text == "teacher")


def test_a_run_on_a_gpu_and_its_baseline_on_the_processor_are_one() -> None:
    lines = [replace(TEACHER, device="cuda"), line("tf-idf", kind="baseline", max_length=0)]
    assert len(origins(lines)) == 1


@pytest.mark.parametrize(("alone", "to_label", "named"), [(3.0, 6.0, False), (10.0, 3.0, True)])
def test_a_competitor_is_compared_from_text_to_label(alone: float, to_label: float, named: bool) -> None:

    def at(one: Measurement, speed: float, tokenizer: float) -> Measurement:
        spans = {"speedup": speed, "speedup_with_tokenizer": tokenizer}
        ends = {f"{key}_{end}": by * value for key, value in spans.items() for end, by in (("low", 0.9), ("high", 1.1))}
        return replace(one, **spans, **ends)

    other = line("m", kind="competitor", runtime="setfit", model_sha256="7" * 64, tokenizer_inside=True)
    own = at(student(), alone, to_label)
    (found,) = gather([TEACHER, own, at(other, 4.5, 4.5)])
    assert any("is faster" in note for note in section(found, {}).notes) == named


def test_a_competitor_that_is_surely_faster_at_a_batch_size_is_named() -> None:
    def at(size: int, one: Measurement, speed: float) -> Measurement:
        name = "speedup_with_tokenizer"
        return replace(one, batch_size=size, **{name: speed, f"{name}_low": 0.9 * speed, f"{name}_high": 1.1 * speed})

    other = line("m", kind="competitor", runtime="ctranslate2-int8", model_sha256="7" * 64)
    speeds = {1: (7.4, 8.0), 32: (3.4, 4.6)}  # within noise of each other, and not
    lines = [
        at(size, one, speed)
        for size, both in speeds.items()
        for one, speed in zip((student(), other), both, strict=True)
    ]
    (found,) = gather([TEACHER, replace(TEACHER, batch_size=32), *lines])
    notes = [note for note in section(found, {}).notes if "is faster" in note]
    assert len(notes) == 1 and notes[0].startswith("At batch 32 m in ctranslate2-int8 is faster (×4.60)")
    assert "s in onnxruntime: ×3.40" in notes[0] and "'compress show ctranslate2-int8'" in notes[0]


def curve_of(name: str, rows: int | None, kept: float, **fields: Any) -> Measurement:
    """A student; every seed and every number of rows is a model of its own."""
    settings: dict[str, Any] = {
        "recipe": name,
        "unlabeled_rows": rows,
        "metric_kept_percent": kept,
        "model_sha256": name.ljust(64, "0"),
    }
    return line(name, **settings | fields)


def test_more_text_is_a_chart_with_the_mean_of_seeds_and_the_level_of_the_control() -> None:
    lines = [
        TEACHER,
        curve_of("cnn", 860_000, 98.0, control="cnn-control"),
        curve_of("cnn-seed-1", 860_000, 97.0, recipe="cnn"),
        curve_of("cnn-10000", 10_000, 94.0),
        curve_of("cnn-10000-int8", 10_000, 70.0, kind="baseline"),
        curve_of("minilm-3", 860_000, 99.0),
        curve_of("minilm-3-10000", 10_000, 96.0),
        curve_of("other", 10_000, 90.0),
        curve_of("another", 20_000, 91.0),
        curve_of("cnn-control", None, 92.0, kind="control", control_of="cnn"),
    ]
    (found,) = gather(lines)
    (curve,) = (one for one in section(found, {}).sweeps if one.title == "What more text is worth")
    assert [row[0].text for row in curve.rows] == [
        *("cnn-control", "cnn-10000", "cnn", "cnn-seed-1"),
        *("minilm-3-10000", "minilm-3"),
    ]
    assert [row[1].text for row in curve.rows] == ["–", "10,000", "860,000", "860,000", "10,000", "860,000"]
    cnn, minilm = (picture.wide for picture in curve.pictures)
    assert "cnn: 10,000 → 94" in cnn and "cnn: 860,000 → 97.5" in cnn
    assert "gold rows alone: 10,000 → 92" in cnn and "gold rows alone: 860,000 → 92" in cnn
    assert "minilm-3: 10,000 → 96" in minilm and "gold rows alone" not in minilm


def test_a_competitor_takes_no_part_in_what_is_said_of_models() -> None:
    lines = [TEACHER, curve_of("cnn", 860_000, 98.0), curve_of("cnn-10000", 10_000, 94.0)]
    rivals = [replace(one, kind="competitor", runtime="slow", tokenizer_inside=True) for one in lines[1:]]
    (found,) = gather([*lines, *rivals])
    shown = section(found, {})
    (curve,) = (one for one in shown.sweeps if one.title == "What more text is worth")
    assert [row[0].text for row in curve.rows] == ["cnn-10000", "cnn"]
    assert f"{rivals[0].title}, {rivals[1].title} take texts: the model alone was not measured." in shown.notes


def test_what_was_measured_with_more_threads_alone_is_named() -> None:
    (found,) = gather([TEACHER, student(), line("wide", threads=2), line("wide", threads=4)])
    said = "wide in torch was measured with 2 and 4 threads alone, and is not in this table"
    assert any(note.startswith(said) for note in section(found, {}).notes)
    (found,) = gather([TEACHER, student(), student(threads=2)])
    assert not any("threads alone" in note for note in section(found, {}).notes)


def test_one_number_of_rows_is_no_curve() -> None:
    same = [curve_of(name, 500, 97.0, recipe="cnn") for name in ("cnn", "cnn-seed-1")]
    (found,) = gather([TEACHER, *same, curve_of("without", None, 90.0, recipe="cnn")])
    assert section(found, {}).sweeps == []


def test_the_page_of_one_line_is_a_page(tmp_path: Any) -> None:
    page = view(Results((line("m"),)))
    assert page.title == "made-up" and page.costs is not None and page.sections[0].waterfalls == []
    assert "teacher in torch was not measured" in page.sections[0].verdict[0]
    unknown = ("metric", "metric_name", "difference_points", "metric_kept_percent", "flips_lost_rows")
    bert = line("bert", kind="reference-model", calibration_error=None, **dict.fromkeys(unknown))
    reference_model = view(Results((bert,)))
    assert reference_model.sections[0].picture is None and reference_model.sections[0].flips == []
    with pytest.raises(CompressError, match="does not exist"):
        Results.open(tmp_path / "nothing.jsonl")


@pytest.mark.parametrize(("name", "mean", "spread"), [("accuracy", "80.00%", "1.41"), ("pearson", "0.8000", "0.0141")])
def test_means_over_seeds_have_the_digits_of_their_metric(name: str, mean: str, spread: str) -> None:
    seeds = [
        line(f"m-{seed}", recipe="m", training_seed=seed, metric=0.79 + 0.02 * seed, metric_name=name)
        for seed in (0, 1)
    ]
    found = repeats(seeds)
    assert found is not None
    (row,) = found.rows
    assert (row[3].text, row[4].text) == (mean, spread)


def test_a_baseline_on_the_processor_is_beside_models_on_a_gpu() -> None:
    on_gpu = [replace(one, device="cuda") for one in (TEACHER, student())]
    baseline = line("majority", kind="baseline", runtime="numpy")
    (found,) = gather([*on_gpu, baseline])
    assert [row.small_batch.model for row in found.rows] == ["teacher", "s", "majority"]
    other_run = replace(baseline, created="2026-11-21T12:00:00+00:00")
    assert len(gather([*on_gpu, other_run])) == 2


def test_a_run_of_large_batches_only_has_no_speed_at_a_small_one() -> None:
    lines = [replace(TEACHER, batch_size=size) for size in (1, 32)]
    lines += [student(), replace(student(batch_size=32), speedup=9.0)]
    large = line("large", batch_size=32, speedup=772.0, speedup_low=700.0, speedup_high=800.0)
    (found,) = gather([*lines, large])
    assert found.judged.best is not None and found.judged.best.model == "s"
    shown = section(found, {})
    row = {row.model: row.cells for row in shown.table.rows}["large"]
    assert row["speedup"].text == row["text_p50_ms"].text == "–" and row["speedup_large"].text == "×772"
    assert row["metric"].text == "89.50%" and shown.picture is not None and "×772" not in shown.picture.wide
    assert not any("large in torch" in sentence for sentence in shown.verdict)
