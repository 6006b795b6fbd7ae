"""Runs inside a sandbox: what a matplotlib figure shows, as data, in the form E2B's clients read.

Needs nothing but matplotlib, which whoever made the figure has imported.
"""

from __future__ import annotations

import math
import re
from typing import Any

_UNIT = re.compile(r"[(\[]([^()\[\]]+)[)\]]\s*$")
_SCALES = ("linear", "log", "symlog", "logit", "function", "functionlog", "asinh")
_MOST_POINTS = 100_000


def chart_of(figure: Any) -> dict[str, Any] | None:
    """Return the chart of a figure; of several axes, one that holds the charts of all."""
    charts = [chart for axes in figure.get_axes() if (chart := _chart(axes)) is not None]
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    title = figure.get_suptitle() if hasattr(figure, "get_suptitle") else ""
    return {"type": "superchart", "title": title or None, "elements": charts}


def _chart(axes: Any) -> dict[str, Any] | None:
    for kind, find in (
        ("pie", _wedges),
        ("box_and_whisker", _boxes),
        ("bar", _bars),
        ("scatter", _scattered),
        ("line", _lines),
    ):
        elements = find(axes)
        if elements:
            return {
                "type": kind,
                "title": axes.get_title() or None,
                "elements": elements,
                **({} if kind == "pie" else _labels(axes)),
                **(_ticks(axes) if kind in ("scatter", "line") else {}),
            }
    if not axes.has_data():
        return None
    return {"type": "unknown", "title": axes.get_title() or None, "elements": []}


def _wedges(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.patches import Wedge

    return [
        {
            "label": _named(wedge.get_label(), ""),
            # Shares of a circle are kept in single precision.
            "angle": round(abs(float(wedge.theta2) - float(wedge.theta1)), 4),
            "radius": float(wedge.r),
        }
        for wedge in axes.patches
        if isinstance(wedge, Wedge)
    ]


def _boxes(axes: Any) -> list[dict[str, Any]]:
    """Find what `boxplot` drew: it leaves nothing but lines, or shapes where boxes are filled."""
    shapes = [line.get_xydata() for line in axes.lines]
    shapes += [patch.get_path().vertices for patch in axes.patches if not hasattr(patch, "theta1")]
    found = []
    for shape in shapes:
        edges = _edges(shape)
        if edges is not None:
            box = _box(axes, *edges)
            if box is not None:
                found.append(box)
    return found


def _edges(shape: Any) -> tuple[float, float, float, float] | None:
    """Return left, right, bottom and top of a closed rectangle."""
    points = [(float(x), float(y)) for x, y in shape[:5]]
    if len(points) != 5 or points[0] != points[4] or len(shape) > 6:
        return None
    across, up = sorted({x for x, _ in points}), sorted({y for _, y in points})
    if len(across) != 2 or len(up) != 2:
        return None
    return across[0], across[1], up[0], up[1]


def _box(axes: Any, left: float, right: float, bottom: float, top: float) -> dict[str, Any] | None:
    center = (left + right) / 2
    low, high, median = bottom, top, None
    outliers: list[float] = []
    for line in axes.lines:
        points = [(float(x), float(y)) for x, y in line.get_xydata()]
        if line.get_linestyle() in ("None", "", " "):
            outliers += [y for x, y in points if math.isclose(x, center)]
            continue
        if len(points) != 2:
            continue
        (x, y), (other_x, other_y) = points
        if math.isclose(x, center) and math.isclose(other_x, center):
            low, high = min(low, y, other_y), max(high, y, other_y)
        elif math.isclose(min(x, other_x), left) and math.isclose(max(x, other_x), right):
            median = y
    if median is None:
        return None
    return {
        "label": _tick_at(axes.xaxis, center),
        "min": low,
        "first_quartile": bottom,
        "median": median,
        "third_quartile": top,
        "max": high,
        "outliers": outliers,
    }


def _bars(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.container import BarContainer

    elements: list[dict[str, Any]] = []
    groups: list[str] = []
    for container in axes.containers:
        if not isinstance(container, BarContainer):
            continue
        lies = getattr(container, "orientation", None) == "horizontal"
        group = _named(container.get_label(), f"Group {len(groups)}")
        groups.append(group)
        for bar in container.patches:
            at = bar.get_y() + bar.get_height() / 2 if lies else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if lies else bar.get_height()
            label = _tick_at(axes.yaxis if lies else axes.xaxis, float(at))
            elements.append({"label": label, "group": group, "value": float(value)})
    return elements


def _scattered(axes: Any) -> list[dict[str, Any]]:
    from matplotlib.collections import PathCollection

    groups = [each for each in axes.collections if isinstance(each, PathCollection)]
    return [
        {
            "label": _named(group.get_label(), f"Group {number}"),
            "points": _points(axes, group.get_offsets()),
        }
        for number, group in enumerate(groups, 1)
    ]


def _lines(axes: Any) -> list[dict[str, Any]]:
    return [
        {
            "label": _named(line.get_label(), f"Line {number}"),
            "points": _points(axes, line.get_xydata()),
        }
        for number, line in enumerate(axes.lines, 1)
    ]


def _points(axes: Any, pairs: Any) -> list[list[Any]]:
    shown: list[list[Any]] = []
    for x, y in pairs:
        if len(shown) == _MOST_POINTS:
            break
        shown.append([_value(axes.xaxis, x), _value(axes.yaxis, y)])
    return shown


def _labels(axes: Any) -> dict[str, Any]:
    across, up = axes.get_xlabel(), axes.get_ylabel()
    return {
        "x_label": across or None,
        "y_label": up or None,
        "x_unit": _unit(across),
        "y_unit": _unit(up),
    }


def _unit(label: str) -> str | None:
    found = _UNIT.search(label)
    return None if found is None else found[1]


def _ticks(axes: Any) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        told[f"{name}_ticks"] = [_value(axis, each) for each in axis.get_majorticklocs()]
        told[f"{name}_tick_labels"] = [label.get_text() for label in axis.get_majorticklabels()]
        told[f"{name}_scale"] = _scale(axis)
    return told


def _scale(axis: Any) -> str:
    if _names(axis):
        return "categorical"
    if _is_time(axis):
        return "datetime"
    scale = str(axis.get_scale())
    return scale if scale in _SCALES else "unknown"


def _value(axis: Any, value: Any) -> Any:
    """Return a number, the name of a category, or a time as ISO 8601 writes it."""
    number = float(value)
    if not math.isfinite(number):
        return None
    names = _names(axis)
    if names:
        return names.get(round(number), number)
    if _is_time(axis):
        from matplotlib.dates import num2date

        moment: Any = num2date(number)  # type: ignore[no-untyped-call]
        return moment.replace(tzinfo=None).isoformat()
    return number


def _names(axis: Any) -> dict[int, str]:
    mapping = getattr(axis.units, "_mapping", None)
    return {} if not mapping else {int(place): str(name) for name, place in mapping.items()}


def _is_time(axis: Any) -> bool:
    from matplotlib.dates import DateLocator

    return isinstance(axis.get_major_locator(), DateLocator)


def _tick_at(axis: Any, place: float) -> str:
    names = _names(axis)
    if names:
        return names.get(round(place), str(place))
    places, labels = axis.get_majorticklocs(), axis.get_majorticklabels()
    # Python 3.9 knows no `strict`.
    for tick, label in zip(places, labels):  # noqa: B905
        if math.isclose(float(tick), place, abs_tol=1e-9) and label.get_text():
            return str(label.get_text())
    return str(_value(axis, place))


def _named(label: object, otherwise: str) -> str:
    # What matplotlib calls things that nobody has given a name begins so.
    text = str(label)
    return otherwise if text.startswith("_") else text
