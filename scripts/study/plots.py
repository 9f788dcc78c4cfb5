"""Results -> two SVG pictures that stand for themselves, in light and dark."""
import html, statistics

import tables

STYLE = """<style>
text{font:12px system-ui,sans-serif;fill:#333;stroke:none!important} .faint{fill:#888} .axis{stroke:#ccc} .zero{stroke:#888}
.held{fill:#2a6fbb;stroke:#2a6fbb} .off{fill:#c4622d;stroke:#c4622d} path{fill:none!important;stroke-width:1.5}
@media(prefers-color-scheme:dark){text{fill:#ddd} .axis{stroke:#444} .held{fill:#6db0ff;stroke:#6db0ff} .off{fill:#ff9d66;stroke:#ff9d66}}
</style>"""
COLOURS = ["#2a6fbb", "#c4622d", "#3a8a4d", "#9a4fb0", "#b08a1e", "#1e9aa8", "#d1497a", "#7a7a7a", "#5b6ee1", "#8b5a2b", "#4d9078", "#a83232"]


def frame(width, height, title, body):
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" aria-label="{html.escape(title)}">'
    return "\n".join([head, STYLE, f'<text x="10" y="18" font-weight="600">{html.escape(title)}</text>', *body, "</svg>", ""])


def text(x, y, words, anchor="start", kind=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{html.escape(words)}</text>'


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def ticks(low, high):
    """About six round numbers."""
    rough = (high - low) / 6
    size = 10 ** len(str(int(1 / rough))) if rough < 1 else 1
    step = next(s / size for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if s / size >= rough or s == 1000)
    first = int(low // step) + (low % step > 0)
    return [number * step for number in range(first, int(high // step) + 1)]


def limits(values):
    low, high = min([0.0, *values]), max([0.0, *values])
    edge = 0.08 * (high - low) or 0.5
    return low - edge, high + edge


def costs(study):
    """Percent above the yardstick: a dot for each seed, a bar for the mean."""
    rows = [row for row in study["rows"] if row != "yardstick" and tables.cost(study, row, "yardstick", "held")]
    found = {(row, kind): tables.cost(study, row, "yardstick", kind) for row in rows for kind in ("held", "off")}
    low, high = limits([value for values in found.values() for value in values])
    left, right, top, each = 110, 690, 50, 34
    bottom = top + each * len(rows)
    at = lambda value: left + (value - low) / (high - low) * (right - left)
    body = [text(left, 38, "held", kind="held"), text(left + 40, 38, "off", kind="off")]
    for tick in ticks(low, high):
        body += [line(at(tick), top, at(tick), bottom, "zero" if tick == 0 else "axis"), text(at(tick), bottom + 16, f"{tick:+g}%", "middle", "faint")]
    for number, row in enumerate(rows):
        y = top + each * number + each / 2
        body.append(text(left - 10, y + 4, row, "end"))
        for kind, shift in (("held", -5), ("off", 6)):
            values = found[row, kind]
            body += [f'<circle cx="{at(v):.1f}" cy="{y + shift:.1f}" r="3" class="{kind}" fill-opacity="0.5"/>' for v in values]
            mean = at(statistics.fmean(values))
            body.append(f'<line x1="{mean:.1f}" y1="{y + shift - 5:.1f}" x2="{mean:.1f}" y2="{y + shift + 5:.1f}" class="{kind}" stroke-width="2"/>')
    return frame(720, bottom + 30, "Loss of the exported model above the yardstick's, same seed", body)


def difference(study, row):
    """Smoothed training loss against the yardstick's in percent, mean of the seeds."""
    lines = []
    for run, base in tables.shared(study, row, "yardstick"):
        mine = theirs = None
        points = []
        for a, b in zip(run["curve"], base["curve"]):
            mine, theirs = (a, b) if mine is None else (0.95 * mine + 0.05 * a, 0.95 * theirs + 0.05 * b)
            points.append(100 * (mine / theirs - 1))
        lines.append(points)
    return [statistics.fmean(at) for at in zip(*lines)]


def curves(study):
    rows = {row: difference(study, row) for row in study["rows"] if row != "yardstick"}
    rows = {row: points for row, points in rows.items() if points}
    low, high = limits([value for points in rows.values() for value in points])
    left, right, top, bottom = 60, 570, 40, 340
    steps = max([len(points) for points in rows.values()], default=1)
    x = lambda step: left + step / steps * (right - left)
    y = lambda value: bottom - (value - low) / (high - low) * (bottom - top)
    body = []
    for tick in ticks(low, high):
        body += [line(left, y(tick), right, y(tick), "zero" if tick == 0 else "axis"), text(left - 8, y(tick) + 4, f"{tick:+g}%", "end", "faint")]
    for part in range(5):
        body.append(text(x(steps * part / 4), bottom + 18, f"{steps * part // 4}", "middle", "faint"))
    for number, (row, points) in enumerate(rows.items()):
        colour, every = COLOURS[number % len(COLOURS)], max(1, len(points) // 250)
        path = " L".join(f"{x(step + 1):.1f} {y(value):.2f}" for step, value in enumerate(points) if step % every == 0)
        body += [f'<path d="M{path}" stroke="{colour}"/>', line(right + 12, top + 17 * number + 4, right + 30, top + 17 * number + 4, "key").replace("/>", f' stroke="{colour}" stroke-width="3"/>'),
                 text(right + 36, top + 17 * number + 8, row)]
    return frame(720, bottom + 34, "Training loss above the yardstick's, step by step (smoothed)", body)
