"""Arena of the seven networks of the MXNet paper's memory figure, beside MXNet's own planner and the floor.

The peer `mxnet` is what MXNet 1.9.1's planner was measured to need for the same network (in place and sharing
together). The floor is the largest sum of bytes alive at one step in the order that runs. All in MiB, float32; data,
parameters and the output are not counted. `forward` is inference, `training` the loss and its gradients, which are
outputs; nothing is computed twice to save memory. `step` is the whole step with momentum, its gradients counted: MXNet
has no such program. Then planning time against the number of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from rows import Row, arguments, show

from mezzo.models.convnets import NETS
from mezzo.models.training import forward_and_backward, whole_step
from mezzo.ops import Tensor
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import options_for
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.memory.liveness import Life, Sharing
from mezzo.runtime.memory.plan import Strategy, plan
from mezzo.runtime.optimizer import SGD

# Measured, by what is planned and batch.
MXNET: dict[tuple[str, int], dict[str, float]] = {
    ("forward", 64): {
        "alexnet_owt": 59.66,
        "alexnet_2012": 100.28,
        "googlenet_v1": 506.84,
        "inception_bn": 487.18,
        "vgg_a": 1006.5,
        "vgg_d": 1619.0,
        "vgg_e": 1619.0,
    },
    ("forward", 1): {
        "alexnet_owt": 0.93,
        "googlenet_v1": 7.92,
        "inception_bn": 7.61,
        "vgg_a": 15.73,
        "vgg_d": 25.30,
        "vgg_e": 25.30,
    },
    ("training", 64): {
        "alexnet_owt": 190.97,
        "alexnet_2012": 297.08,
        "googlenet_v1": 1672.42,
        "inception_bn": 2756.57,
        "vgg_a": 2979.24,
        "vgg_d": 4473.74,
        "vgg_e": 4792.24,
    },
    ("step", 64): {},
}
GRAPHS: dict[str, Callable[[Graph], Graph]] = {
    "forward": lambda graph: graph,
    "training": forward_and_backward,
    "step": lambda graph: whole_step(graph, SGD(momentum=0.9)),
}
MIB = 1 << 20


def arena_rows() -> tuple[list[Row], list[str]]:
    rows, notes = [], []
    for (kind, batch), measured in MXNET.items():
        for name, make in NETS.items():
            case = f"{kind}/{name}/b{batch}"
            program = specialise(compile_graph(GRAPHS[kind](make(batch)), options=options_for("cpu")), {}).program
            memory = program.plan
            peers = {"mxnet": measured[name]} if name in measured else {}
            rows.append(Row(case, "MiB", memory.size / MIB, peers, memory.bound / MIB))
            workspace = max((s.choice.workspace for s in program.steps), default=0) / MIB
            outputs = sum(p.type.nbytes for p in program.outputs if isinstance(p.type, Tensor)) / MIB
            notes.append(
                f"{case}: without reuse {memory.total() / MIB:.2f} MiB, kernel workspace at most {workspace:.2f} MiB, "
                f"outputs {outputs:.2f} MiB, {program.allocating} steps run allocating references"
            )
    return rows, notes


def chain(nodes: int) -> tuple[list[Life], list[Sharing]]:
    """Lives as of a deep network: each value is read by the next step, every eighth also by one further on."""
    lives = [
        Life(f"v{i}", 1024 * (1 + i * 7919 % 97), i, min(i + (9 if i % 8 == 0 else 1), nodes)) for i in range(nodes)
    ]
    return lives, [Sharing(f"v{i}", f"v{i - 1}") for i in range(1, nodes)]


def time_rows(quick: bool) -> list[Row]:
    rows = []
    for nodes in (100, 1000, 10_000, 100_000):
        for strategy in (Strategy.LINEAR, Strategy.BOTH):
            if strategy is Strategy.BOTH and nodes > 1000:
                continue  # above runtime/memory/offsets.py's limit both modes are the linear one
            lives, offers = chain(nodes)
            times = []
            for _ in range(1 if quick else 3):
                at = perf_counter()
                plan(lives, offers, strategy)
                times.append(perf_counter() - at)
            rows.append(Row(f"planning/{strategy.value}/{nodes}", "ms", min(times) * 1e3))
    return rows


def picture(rows: list[Row]) -> list[str]:
    """Planning time against nodes, both logarithmic, as text."""
    from math import log10

    lines = []
    for r in rows:
        bar = "#" * max(1, round(12 * log10(max(r.ours, 0.1) * 10)))
        lines.append(f"{r.case:<26}{r.ours:>10.1f} ms  {bar}")
    return lines


def main() -> None:
    args = arguments(__doc__)
    rows, notes = arena_rows()
    timed = time_rows(args.quick)
    show([*rows, *timed], args, [*notes, *picture(timed)])


if __name__ == "__main__":
    main()
