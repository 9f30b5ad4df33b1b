"""Fig. 6 of the MXNet paper (arXiv 1512.01274): forward, backward and update of AlexNet ("One weird trick"), GoogLeNet
and VGG (configuration A) by batch, as milliseconds for an image, beside PyTorch (eager and compiled) and MXNet 1.9.1.

    python bench/training.py --rows 'fig6/*' --json fig6.json
    python bench/paper/speed.py fig6.json docs/fig6.svg

The first command races the engines (and can be run in parts: rows that the file has stay), the second draws.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from paper.picture import lines


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    panels: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in json.loads(Path(sys.argv[1]).read_text("utf8")):
        kind, _, rest = row["case"].partition("/")
        if kind != "fig6":
            continue
        net, _, batch = rest.partition("/b")
        for name, engine in row["engines"].items():
            if "median_ms" in engine:
                points = panels.setdefault(net, {}).setdefault(name, [])
                points.append((float(batch), engine["median_ms"] / int(batch)))
                print(f"{row['case']:<22}{name:<15}{engine['median_ms'] / int(batch):>10.2f} ms an image")
    if not panels:
        sys.exit(f"{sys.argv[1]} has no rows of fig6")
    Path(sys.argv[2]).write_text(lines(panels, "ms an image", "images in a batch"), "utf8")


if __name__ == "__main__":
    main()
