"""Figures of a real matplotlib, read as data and given to E2B's own classes."""

from __future__ import annotations

import datetime
from typing import Any

import pytest
from e2b_code_interpreter import charts
from matplotlib.figure import Figure

from cloister.e2b.interpreter.inside_charts import chart_of


def read(figure: Figure) -> Any:
    return charts._deserialize_chart(chart_of(figure))


def drawn() -> tuple[Figure, Any]:
    figure = Figure()
    return figure, figure.add_subplot()


def test_lines_have_their_points_labels_units_and_ticks() -> None:
    figure, axes = drawn()
    axes.plot([0, 1, 2], [1, 10, 100], label="grows")
    axes.plot([0, 1], [2, 3])
    axes.set(title="Growth", xlabel="Time (s)", ylabel="Size [m]", yscale="log")
    chart = read(figure)
    assert isinstance(chart, charts.LineChart)
    assert (chart.title, chart.x_unit, chart.y_unit) == ("Growth", "s", "m")
    assert (chart.x_scale, chart.y_scale) == (charts.ScaleType.LINEAR, charts.ScaleType.LOG)
    assert [(each.label, each.points) for each in chart.elements] == [
        ("grows", [(0.0, 1.0), (1.0, 10.0), (2.0, 100.0)]),
        ("Line 2", [(0.0, 2.0), (1.0, 3.0)]),
    ]
    assert len(chart.x_ticks) == len(chart.x_tick_labels) > 1


def test_days_and_names_are_what_they_are_and_not_numbers() -> None:
    figure, axes = drawn()
    axes.plot([datetime.datetime(2026, 1, day) for day in (1, 2)], [1, 2])
    chart = read(figure)
    assert chart.x_scale is charts.ScaleType.DATETIME
    assert chart.elements[0].points[0] == ("2026-01-01T00:00:00", 1.0)
    figure, axes = drawn()
    axes.scatter(["a", "b"], [1, 2], label="ones")
    chart = read(figure)
    assert isinstance(chart, charts.ScatterChart)
    assert chart.x_scale is charts.ScaleType.CATEGORICAL
    assert [(each.label, each.points) for each in chart.elements] == [
        ("ones", [("a", 1.0), ("b", 2.0)])
    ]


@pytest.mark.parametrize("lies", [False, True], ids=["standing", "lying"])
def test_bars_have_their_groups_and_values(lies: bool) -> None:
    figure, axes = drawn()
    draw = axes.barh if lies else axes.bar
    draw(["a", "b"], [1, 2], label="first")
    draw(["a", "b"], [3, 4], label="second")
    chart = read(figure)
    assert isinstance(chart, charts.BarChart)
    assert [(each.label, each.group, each.value) for each in chart.elements] == [
        *(("a", "first", 1.0), ("b", "first", 2.0)),
        *(("a", "second", 3.0), ("b", "second", 4.0)),
    ]


def test_slices_have_their_angles() -> None:
    figure, axes = drawn()
    axes.pie([1, 3], labels=["little", "much"], radius=2)
    chart = read(figure)
    assert isinstance(chart, charts.PieChart)
    told = [(each.label, round(each.angle), each.radius) for each in chart.elements]
    assert told == [("little", 90, 2.0), ("much", 270, 2.0)]


@pytest.mark.parametrize("filled", [False, True], ids=["lines", "filled"])
def test_boxes_have_their_quartiles_and_outliers(filled: bool) -> None:
    figure, axes = drawn()
    axes.boxplot([[1, 2, 3, 4, 5, 40], [10, 11, 12, 13, 14]], patch_artist=filled)
    axes.set_xticks([1, 2], ["low", "high"])
    chart = read(figure)
    assert isinstance(chart, charts.BoxAndWhiskerChart)
    low, high = chart.elements
    assert (low.label, low.min, low.median, low.max) == ("low", 1.0, 3.5, 5.0)
    assert (low.first_quartile, low.third_quartile, low.outliers) == (2.25, 4.75, [40.0])
    assert (high.label, high.min, high.median, high.max) == ("high", 10.0, 12.0, 14.0)
    assert high.outliers == []


def test_several_axes_are_one_chart_of_charts_and_nothing_is_none() -> None:
    figure = Figure()
    figure.suptitle("Both")
    left, right = figure.subplots(1, 2)
    left.plot([1, 2])
    right.bar(["a"], [1])
    chart = read(figure)
    assert isinstance(chart, charts.SuperChart)
    assert chart.title == "Both"
    assert [type(each) for each in chart.elements] == [charts.LineChart, charts.BarChart]
    assert chart_of(Figure()) is None
    figure, axes = drawn()
    axes.imshow([[1, 2], [3, 4]])
    assert read(figure).type is charts.ChartType.UNKNOWN
