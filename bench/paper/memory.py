"""Fig. 7 of the MXNet paper (arXiv 1512.01274): memory of its networks without reuse, in place, by sharing, by both,
forward and in training, beside what MXNet 1.9.1's own planner was measured to need.

    python bench/paper/memory.py --json bench/results/DATE-fig7.json --svg docs/fig7.svg

Batch 64, images of 224 x 224, float32, in MiB: data, parameters, their gradients and the output are not counted. It
plans and does not run. Then VGG-16 at batch 1, whose bound is 16 MB. The floor is the largest sum of bytes that are
alive at one step of the order that runs. Layouts, and so copies into them, follow from the processor.
"""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from memory_plan import GRAPHS, MXNET
from paper.picture import bars
from rows import Row, arguments, show

from mezzo.models.convnets import NETS
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import options_for
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.memory.plan import Strategy

MIB = 1 << 20
WAYS = {"none": Strategy.NONE, "in place": Strategy.INPLACE, "sharing": Strategy.SHARING, "both": Strategy.BOTH}


def planned(graph: Graph) -> dict[str, float]:
    """MiB by way of planning, and the floor, for one network."""
    options, sizes = options_for("cpu"), dict[str, float]()
    for name, strategy in WAYS.items():
        plan = specialise(compile_graph(graph, options=replace(options, strategy=strategy)), {}).program.plan
        sizes[name] = plan.size / MIB
        sizes["floor"] = plan.bound / MIB  # of the last: both
    return sizes


def main() -> None:
    def more(parser: ArgumentParser) -> None:
        parser.add_argument("--svg", type=Path, help="draw the figure into this file")

    args, rows = arguments(__doc__, more), list[Row]()
    panels: dict[str, dict[str, dict[str, float]]] = {"forward": {}, "training": {}}
    for kind, groups in panels.items():
        for net in list(NETS)[:2] if args.quick else NETS:
            sizes = planned(GRAPHS[kind](NETS[net](64)))
            mxnet = MXNET[kind, 64][net]
            rows += [Row(f"{kind}/{net}/{way}", "MiB", sizes[way], {}, None) for way in WAYS if way != "both"]
            rows.append(Row(f"{kind}/{net}/both", "MiB", sizes["both"], {"mxnet": mxnet}, sizes["floor"]))
            groups[net.replace("alexnet_", "alex_").replace("googlenet_v1", "googlenet")] = {
                **{way: sizes[way] for way in WAYS}, "MXNet, both": mxnet
            }  # fmt: skip
    one = planned(NETS["vgg_d"](1))
    rows.append(Row("forward/vgg_d/b1", "MiB", one["both"], {"mxnet": MXNET["forward", 1]["vgg_d"]}, one["floor"]))
    show(rows, args, [f"VGG-16 at batch 1: {one['both'] * MIB / 1e6:.2f} MB, against 16 MB"])
    if args.svg:
        args.svg.write_text(bars(panels, [*WAYS, "MXNet, both"], "MiB"), "utf8")


if __name__ == "__main__":
    main()
