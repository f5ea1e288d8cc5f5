"""Draws bench/scale.py's page: panels of lines over numbers that double. It runs nothing."""
import math
from xml.sax.saxutils import escape

WIDTH, HEIGHT, GAP = 420, 250, 24
LEFT, RIGHT, TOP, BOTTOM = 66, 54, 40, 40
# The lines, in their order, on light and on dark ground.
LIGHT, DARK = ('#2a6fbb', '#c4511c'), ('#6aa9ea', '#f0925f')
STYLE = """svg { background: #ffffff; font: 12px sans-serif; } text { fill: #333333; } .title { font-weight: bold; }
.grid { stroke: #dddddd; } .line { fill: none; stroke-width: 2; }"""
DARK_STYLE = 'svg { background: #1b1b1b; } text { fill: #dddddd; } .grid { stroke: #3a3a3a; }'


def number(value):
    """At most three digits and what they count, as people write it."""
    for unit, of in (('M', 1e6), ('k', 1e3)):
        if value >= of:
            return f'{value / of:.3g}{unit}'
    return f'{value:.3g}'


def ticks(top, logarithmic, bottom=0.0):
    """Round values of an axis, the last of them at or above `top`."""
    if logarithmic:
        first = math.floor(math.log10(bottom))
        return [10.0 ** p for p in range(first, max(first + 1, math.ceil(math.log10(top))) + 1)]
    magnitude = 10.0 ** math.floor(math.log10(top))
    step = next(s * magnitude for s in (0.25, 0.5, 1, 2, 2.5) if s * magnitude * 4 >= top)
    return [step * i for i in range(math.ceil(top / step) + 1)]


def panel(title, lines, logarithmic, at):
    """One panel: `lines` is {name: {x: y}}, at least one, whose values are above 0."""
    xs = sorted({x for line in lines.values() for x in line})
    values = [y for line in lines.values() for y in line.values()]
    marks = ticks(max(values), logarithmic, min(values))
    scale = math.log10 if logarithmic else float
    low, high = scale(marks[0]) if logarithmic else 0.0, scale(marks[-1])
    span = math.log2(xs[-1]) - math.log2(xs[0]) or 1.0

    def x_at(x):
        return at[0] + LEFT + (WIDTH - LEFT - RIGHT) * (math.log2(x) - math.log2(xs[0])) / span

    def y_at(y):
        return at[1] + HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (scale(y) - low) / (high - low)

    out = [f'<text class="title" x="{at[0] + 8}" y="{at[1] + 20}">{escape(title)}</text>']
    for mark in marks:
        y = y_at(mark)
        out.append(f'<line class="grid" x1="{at[0] + LEFT}" x2="{at[0] + WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(f'<text x="{at[0] + LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{number(mark)}</text>')
    for x in xs:
        out.append(f'<text x="{x_at(x):.1f}" y="{at[1] + HEIGHT - BOTTOM + 18}" text-anchor="middle">{x}</text>')
    for i, (name, line) in enumerate(lines.items()):
        points = [(x_at(x), y_at(y)) for x, y in sorted(line.items())]
        path = ' '.join(f'{x:.1f},{y:.1f}' for x, y in points)
        out.append(f'<polyline class="line s{i}" points="{path}"/>')
        out += [f'<circle class="dot{i}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>' for x, y in points]
        out.append(f'<text x="{points[-1][0] + 8:.1f}" y="{points[-1][1] + 4:.1f}">{escape(name)}</text>')
    return out


def page(panels, note):
    """An SVG page of two columns: `panels` is [(title, {name: {x: y}}, logarithmic)]."""
    rows = math.ceil(len(panels) / 2)
    width, height = 2 * WIDTH + GAP, rows * (HEIGHT + GAP) + 24
    light, dark = (' '.join(f'.s{i} {{ stroke: {c}; }} .dot{i} {{ fill: {c}; }}' for i, c in enumerate(colors))
                   for colors in (LIGHT, DARK))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
           f'<style>{STYLE} {light} @media (prefers-color-scheme: dark) {{ {DARK_STYLE} {dark} }}</style>']
    for i, (title, lines, logarithmic) in enumerate(panels):
        out += panel(title, lines, logarithmic, ((i % 2) * (WIDTH + GAP), (i // 2) * (HEIGHT + GAP)))
    out.append(f'<text x="8" y="{height - 10}">{escape(note)}</text></svg>')
    return '\n'.join(out) + '\n'
