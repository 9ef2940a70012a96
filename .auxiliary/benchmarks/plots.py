"""A plot of lines as SVG, both axes logarithmic, readable on a light and on a dark page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import ceil, floor, log10

_LEFT, _TOP, _WIDTH, _HEIGHT = 76, 44, 500, 360
_SIZE = (790, 460)
#: Between the labels of two lines.
_GAP = 18
_LIGHT = (
    "#0969da",
    "#cf222e",
    "#1a7f37",
    "#8250df",
    "#9a6700",
    "#bf3989",
    "#0f7b8a",
    "#57606a",
)
_DARK = (
    "#58a6ff",
    "#ff7b72",
    "#3fb950",
    "#bc8cff",
    "#d29922",
    "#f778ba",
    "#39c5cf",
    "#a8b1bb",
)

Lines = Mapping[str, Mapping[int, float]]


def draw_plot(title: str, across: str, lines: Lines) -> str:
    """The plot: what each name is by the number `across`, in milliseconds."""
    counts = sorted({count for line in lines.values() for count in line})
    values = [log10(value) for line in lines.values() for value in line.values()]
    low = floor(min(values))
    high = max(ceil(max(values)), low + 1)
    span = max(log10(counts[-1] / counts[0]), 1)

    def locate(count: int, value: float) -> tuple[float, float]:
        x = _LEFT + log10(count / counts[0]) / span * _WIDTH
        return x, _TOP + _HEIGHT - (log10(value) - low) / (high - low) * _HEIGHT

    width, height = _SIZE
    font = 'font-family="system-ui, sans-serif" font-size="13"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {font}>',
        f"<title>{escape(title)}</title>",
        *_style(len(lines)),
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<text x="{_LEFT}" y="24" font-weight="600">{escape(title)}</text>',
    ]
    for power in range(low, high + 1):
        _, y = locate(counts[0], 10.0**power)
        parts.append(f'<path class="grid" d="M{_LEFT} {y:.1f}h{_WIDTH}"/>')
        parts.append(
            f'<text x="{_LEFT - 10}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g} ms</text>'
        )
    for count in counts:
        x, y = locate(count, 10.0**low)
        parts.append(f'<path class="grid" d="M{x:.1f} {_TOP}v{_HEIGHT}"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 20:.1f}" text-anchor="middle">{count:,}</text>')
    parts.append(
        f'<text x="{_LEFT + _WIDTH / 2}" y="{height - 14}" text-anchor="middle">'
        f"{escape(across)}</text>"
    )
    points = [[locate(*point) for point in sorted(line.items())] for line in lines.values()]
    heights = _spread([line[-1][1] for line in points])
    for number, (name, line) in enumerate(zip(lines, points, strict=True)):
        parts += _draw_line(number, name, line, heights[number])
    return "\n".join([*parts, "</svg>", ""])


def _style(count: int) -> Iterator[str]:
    """The colors, by what the reader prefers."""
    yield "<style>"
    yield "polyline, .lead { fill: none; stroke-width: 2 } .lead { stroke-width: 1; opacity: .5 }"
    yield _color("#ffffff", "#1f2328", "#d0d7de", _LIGHT[:count])
    yield "@media (prefers-color-scheme: dark) {"
    yield _color("#0d1117", "#e6edf3", "#30363d", _DARK[:count])
    yield "}"
    yield "</style>"


def _color(ground: str, text: str, grid: str, colors: Sequence[str]) -> str:
    rules = [
        f".ground {{ fill: {ground} }}",
        f"text {{ fill: {text} }}",
        f".grid {{ stroke: {grid} }}",
    ]
    for number, color in enumerate(colors):
        rules.append(f".line{number} {{ stroke: {color} }} .name{number} {{ fill: {color} }}")
    return "\n".join(rules)


def _draw_line(
    number: int, name: str, points: Sequence[tuple[float, float]], height: float
) -> Iterator[str]:
    """A line with its name at the right, at this height."""
    (x, y), right = points[-1], _LEFT + _WIDTH
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    yield f'<polyline class="line{number}" points="{drawn}"/>'
    for one, other in points:
        yield f'<circle class="name{number}" cx="{one:.1f}" cy="{other:.1f}" r="3.5"/>'
    yield (
        f'<path class="lead line{number}" d="M{x:.1f} {y:.1f}L{right + 8} {y:.1f} '
        f'L{right + 22} {height:.1f}"/>'
    )
    yield f'<text class="name{number}" x="{right + 26}" y="{height + 4:.1f}">{escape(name)}</text>'


def _spread(heights: Sequence[float]) -> Sequence[float]:
    """Heights near these, in the same order, that leave room for a label each."""
    order = sorted(range(len(heights)), key=heights.__getitem__)
    spread = [*heights]
    for one, other in pairwise(order):
        spread[other] = max(spread[other], spread[one] + _GAP)
    # Not below the axis.
    most = float(_TOP + _HEIGHT)
    for one in reversed(order):
        spread[one] = min(spread[one], most)
        most = spread[one] - _GAP
    return spread
