"""Small charts, drawn on the server as SVG: no script, no style of their own, and words beside the picture.

Colours come from classes of the style sheet, so that a chart follows light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from markupsafe import Markup

WIDTH: Final = 360
HEIGHT: Final = 64


def stacks(columns: Sequence[Sequence[tuple[str, int]]], label: str) -> Markup:
    """Columns over time, the newest on the right; each a stack of (class, count) from the bottom up."""
    most = max((sum(count for _, count in column) for column in columns), default=0)
    width = WIDTH / max(1, len(columns))
    drawn = []
    for index, column in enumerate(columns):
        top = float(HEIGHT)
        for name, count in column:
            if not count:
                continue
            height = max(1.0, (HEIGHT - 2) * count / most)
            top -= height
            drawn.append(
                Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
                    f"fill-{name}", index * width + 0.5, max(0.0, top), max(0.6, width - 1.0), height
                )
            )
    return Markup(
        '<svg class="chart" viewBox="0 0 {0} {1}" preserveAspectRatio="none" role="img" aria-label="{2}">'
        '<line class="axis" x1="0" y1="{1}" x2="{0}" y2="{1}"/>{3}</svg>'
    ).format(WIDTH, HEIGHT, label, Markup("").join(drawn))


def meter(part: float, whole: float, label: str, *, tone: str = "busy") -> Markup:
    """How much of a whole: a bar, full where it is more."""
    share = 0.0 if whole <= 0 else min(1.0, max(0.0, part / whole))
    return Markup(
        '<svg class="meter" viewBox="0 0 100 6" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="6" rx="3"/>'
        '<rect class="fill-{}" width="{:.1f}" height="6" rx="3"/></svg>'
    ).format(label, tone, 100 * share)


def shares(parts: Sequence[tuple[str, int]], label: str) -> Markup:
    """Parts of one whole as (class, count), side by side."""
    total = sum(count for _, count in parts)
    drawn, left = [], 0.0
    for name, count in parts:
        if not count:
            continue
        width = 100 * count / total
        drawn.append(
            Markup('<rect class="fill-{}" x="{:.2f}" width="{:.2f}" height="8"/>').format(name, left, width)
        )
        left += width
    return Markup(
        '<svg class="shares" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<rect class="track" width="100" height="8"/>{}</svg>'
    ).format(label, Markup("").join(drawn))
