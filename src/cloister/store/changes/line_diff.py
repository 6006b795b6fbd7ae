"""The shortest way from one list of lines to another, as hunks, within a bounded effort."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# More edits than these, and the part that differs is replaced as a whole: the search costs their
# square, and who wrote the files may have written them for that.
MOST_EDITS = 800
_CONTEXT = 3
_NO_NEWLINE = b"\n\\ No newline at end of file\n"


@dataclass(slots=True)
class Effort:
    """What may still be spent on searching; once it is gone every difference is a replacement."""

    steps: int = 20_000_000


def hunks(old: bytes, new: bytes, effort: Effort) -> Iterator[bytes]:
    """Yield the hunks of a unified diff."""
    before, after = _lines(old), _lines(new)
    for group in _grouped(_spans(before, after, effort)):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (
            _range(first.old_start, last.old_end),
            _range(first.new_start, last.new_end),
        )
        for span in group:
            if span.same:
                yield from _marked(b" ", before[span.old_start : span.old_end])
            else:
                yield from _marked(b"-", before[span.old_start : span.old_end])
                yield from _marked(b"+", after[span.new_start : span.new_end])


def _lines(content: bytes) -> list[bytes]:
    # Not splitlines: that also ends lines at carriage returns.
    lines = content.split(b"\n")
    rest = lines.pop()
    found = [line + b"\n" for line in lines]
    return [*found, rest] if rest else found


def _range(start: int, end: int) -> bytes:
    count = end - start
    # An empty range is said by the line before it.
    return b"%d,%d" % (start + 1 if count else start, count)


def _marked(mark: bytes, lines: Sequence[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + (line if line.endswith(b"\n") else line + _NO_NEWLINE)


@dataclass(frozen=True, slots=True)
class _Span:
    same: bool
    old_start: int
    old_end: int
    new_start: int
    new_end: int


def _grouped(spans: list[_Span]) -> Iterator[list[_Span]]:
    """Cut long equal stretches down to a few lines around each difference."""
    group: list[_Span] = []
    for index, span in enumerate(spans):
        if not span.same:
            group.append(span)
            continue
        length = span.old_end - span.old_start
        is_last = index == len(spans) - 1
        if group and (length > 2 * _CONTEXT or is_last):
            kept = min(length, _CONTEXT)
            group.append(_cut(span, 0, kept))
            yield group
            group = []
        if is_last:
            return
        if group:
            group.append(span)
        else:
            group = [_cut(span, max(0, length - _CONTEXT), length)]
    if any(not span.same for span in group):
        yield group


def _cut(span: _Span, start: int, end: int) -> _Span:
    return _Span(
        True,
        span.old_start + start,
        span.old_start + end,
        span.new_start + start,
        span.new_start + end,
    )


def _spans(old: list[bytes], new: list[bytes], effort: Effort) -> list[_Span]:
    head = 0
    most = min(len(old), len(new))
    while head < most and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < most - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    numbers: dict[bytes, int] = {}
    middle_old = [numbers.setdefault(line, len(numbers)) for line in old[head : len(old) - tail]]
    middle_new = [numbers.setdefault(line, len(numbers)) for line in new[head : len(new) - tail]]
    pairs = _pair(middle_old, middle_new, effort)
    found: list[_Span] = []
    old_at = new_at = 0

    def add(old_end: int, new_end: int, same: bool) -> None:
        nonlocal old_at, new_at
        if (old_end, new_end) != (old_at, new_at):
            found.append(_Span(same, old_at, old_end, new_at, new_end))
        old_at, new_at = old_end, new_end

    add(head, head, True)
    for old_start, new_start, length in pairs:
        add(head + old_start, head + new_start, False)
        add(old_at + length, new_at + length, True)
    add(len(old) - tail, len(new) - tail, False)
    add(len(old), len(new), True)
    return found


def _pair(old: list[int], new: list[int], effort: Effort) -> list[tuple[int, int, int]]:
    """Return the equal stretches of a shortest edit (old start, new start, length).

    Myers, "An O(ND) Difference Algorithm and Its Variations", 1986, the greedy form.
    """
    if not old or not new:
        return []
    furthest = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(MOST_EDITS, len(old) + len(new)) + 1):
        history.append(furthest.copy())
        effort.steps -= 2 * edits + 1
        if effort.steps < 0:
            return []
        for diagonal in range(-edits, edits + 1, 2):
            if diagonal == -edits or (
                diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
            ):
                x = furthest[diagonal + 1]
            else:
                x = furthest[diagonal - 1] + 1
            start = x
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x += 1
                y += 1
            effort.steps -= x - start
            furthest[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _trace(history, len(old), len(new))
    return []


def _trace(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int, int]]:
    found = []
    for edits in range(len(history) - 1, -1, -1):
        furthest = history[edits]
        diagonal = x - y
        if diagonal == -edits or (
            diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1]
        ):
            above = diagonal + 1
        else:
            above = diagonal - 1
        before_x = furthest[above]
        before_y = before_x - above
        start_x = before_x if above == diagonal + 1 else before_x + 1
        length = x - start_x if edits else x
        if length > 0:
            found.append((x - length, y - length, length))
        x, y = before_x, before_y
    return found[::-1]
