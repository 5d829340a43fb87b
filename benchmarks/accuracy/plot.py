"""Lines over steps as an SVG, one panel below the other. Standard library only."""
import html
import math

COLORS = ["#222222", "#777777", "#bbbbbb", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"]
WIDTH, HEIGHT = 640, 300  # of a panel's frame
LEFT, TOP, GAP, RIGHT = 70, 30, 60, 150


def ticks(low, high, count=6):
    """Round numbers from low to high, about `count`."""
    least = (high - low) / count
    power = 10.0 ** math.floor(math.log10(least))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least)
    first = -int(-low // size)
    return [size * i for i in range(first, int(high // size) + 1)]


def panel(title, lines, top):
    """`lines`: {name: {step: value}}."""
    points = [point for line in lines.values() for point in line.items()]
    if not points:
        return ""
    x_high = max(x for x, _ in points)
    low, high = min(y for _, y in points), max(y for _, y in points)
    margin = 0.05 * (high - low) or 1
    low, high = low - margin, high + margin

    def place(x, y):
        return LEFT + WIDTH * x / x_high, top + HEIGHT * (high - y) / (high - low)

    out = [f'<rect x="{LEFT}" y="{top}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>',
           f'<text x="{LEFT}" y="{top - 8}">{html.escape(title)}</text>']
    for value in ticks(low, high):
        y = place(0, value)[1]
        out.append(f'<path d="M{LEFT},{y:.1f}h{WIDTH}" stroke="#ddd"/>'
                   f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.10g}</text>')
    for value in ticks(0, x_high):
        x = place(value, low)[0]
        out.append(f'<text x="{x:.1f}" y="{top + HEIGHT + 16}" text-anchor="middle">{value:.10g}</text>')
    for i, (name, line) in enumerate(lines.items()):
        color = COLORS[i % len(COLORS)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line.items()))
        y = top + 12 + 18 * i
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.5"/>'
                   f'<path d="M{LEFT + WIDTH + 10},{y}h20" stroke="{color}" stroke-width="3"/>'
                   f'<text x="{LEFT + WIDTH + 36}" y="{y + 4}">{html.escape(name)}</text>')
    return "\n".join(out)


def svg(panels):
    """`panels`: (title, lines) of each."""
    height = TOP + len(panels) * (HEIGHT + GAP)
    width = LEFT + WIDTH + RIGHT
    body = "\n".join(panel(title, lines, TOP + i * (HEIGHT + GAP)) for i, (title, lines) in enumerate(panels))
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')
