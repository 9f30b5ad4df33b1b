"""Training beside PyTorch (eager and compiled) and MXNet 1.9.1: one call is a whole step on a batch at hand, that is
forward, loss, backward and update.

Each engine runs in a process of its own with two threads; rounds are interleaved, and a ratio is the median over the
rounds of the peer's time over ours: above 1, ours is faster. All begin with the same weights. Before, the losses of
their first three steps are compared with ours; an engine that is further away than the row allows has failed. Rows of
bfloat16 say what each engine ran in: ours is `Trainer(amp="bf16")`, PyTorch's its autocast. `fig6` are the networks of
Fig. 6 in MXNet's paper (arXiv 1512.01274), with SGD, by batch: bench/paper/speed.py draws them.

    python bench/training.py --rows 'resnet18/*,mlp/b64/fp32' --peers torch-eager,mxnet --rounds 15 --json FILE

Rows of other runs that the JSON file already has stay in it, so that a table can be made in parts; the chart is drawn
beside it. `first` is the time of the first step, compilers included. MXNet's environment is made on first use.
"""

from __future__ import annotations

from typing import Any

from cases import Case, engine, framework, weights
from racing import Races, run

from mezzo.tools.compare import OURS, Agreement, Contestant

TORCH = ("torch-eager", "torch-compile")
PEERS = (*TORCH, "mxnet")
STEPS = 3  # whose losses are compared
TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}
AIM = {"fp32": 1.5, "bf16": 3.0}


def _case(name: str, workload: str, batch: int, precision: str = "fp32", torch: float = 0, mxnet: float = 0) -> Case:
    """`torch` is the bar against the better of eager and compiled PyTorch, so against each of them."""
    bars = {**dict.fromkeys(TORCH, torch), "mxnet": mxnet}
    return Case(name, workload, batch, precision, {p: bar for p, bar in bars.items() if bar}, AIM[precision])


FIG6 = {"alexnet": "alexnet_owt", "googlenet": "googlenet_v1", "vgg-a": "vgg_a"}
CASES = {
    c.name: c
    for c in (
        _case("resnet18/b16/fp32", "resnet18", 16, torch=1.15, mxnet=1.1),
        _case("mlp/b64/fp32", "mlp", 64, torch=1.7, mxnet=2.3),
        _case("transformer/b8/fp32", "transformer", 8, torch=1.0),
        _case("lstm/b16/fp32", "lstm_classifier", 16, torch=1.0),
        _case("gru/b16/fp32", "gru_classifier", 16),
        _case("resnet18/b16/bf16", "resnet18", 16, "bf16"),
        _case("mlp/b64/bf16", "mlp", 64, "bf16"),
        _case("transformer/b8/bf16", "transformer", 8, "bf16"),
        _case("lstm/b16/bf16", "lstm_classifier", 16, "bf16"),
        _case("gru/b16/bf16", "gru_classifier", 16, "bf16"),
        *(_case(f"fig6/{name}/b{batch}", net, batch) for name, net in FIG6.items() for batch in (1, 8, 32)),
    )
}
QUICK = ("mlp/b64/fp32", "lstm/b16/fp32", "transformer/b8/fp32", "resnet18/b16/fp32")


def feeds(case: Case) -> dict[str, Any]:
    """The batch: inputs, then the labels."""
    from mezzo.models.training import LESSONS

    return LESSONS[case.workload].feeds(case.batch)


def contestants(case: Case, peers: tuple[str, ...]) -> list[Contestant]:
    """Ours first, then the peers that can run it: MXNet trains in 32 bits."""
    from mezzo.models.training import LESSONS

    lesson = LESSONS[case.workload]
    settings = {"net": case.workload, "precision": case.precision}
    made = [engine(OURS, "mezzo_training.py", {**settings, "batch": case.batch})]
    able = [p for p in peers if p in TORCH or case.precision == "fp32"]
    if able:
        settings |= {"weights": str(weights(case.workload, lesson.build)), "optimizer": lesson.optimizer.to_dict()}
    return made + [framework(p, "training", settings) for p in able]


def agreement(case: Case) -> Agreement:
    return Agreement(STEPS, OURS, TOLERANCE[case.precision])


RACES = Races(CASES, PEERS, QUICK, ("torch-eager",), contestants, feeds, agreement)

if __name__ == "__main__":
    run(__doc__, RACES)
