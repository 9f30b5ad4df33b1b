"""Models that several threads of a fresh process plan and run at the same time."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import faulthandler, threading
import numpy as np
from mezzo.gluon import nn
from mezzo.ops.types import f32
from mezzo import nd
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.execution.session import Session

faulthandler.enable()
shapes = [((16, 1, 28, 28), (20, 1, 5, 5)), ((16, 20, 12, 12), (50, 20, 5, 5)), ((8, 16, 14, 14), (32, 16, 3, 3)),
          ((4, 3, 32, 32), (8, 3, 3, 3))]
gate, wrong = threading.Barrier(len(shapes)), []

def plan(x, w):
    try:
        g = GraphBuilder()
        y = g.Conv(g.input("x", f32(*x)), g.input("w", f32(*w)), kernel_shape=w[2:])
        graph = g.graph([g.MaxPool(g.Tanh(y), kernel_shape=(2, 2), strides=(2, 2))])
        gate.wait()
        (found,) = Session(graph).run({"x": np.ones(x, np.float32), "w": np.full(w, 1e-3, np.float32)}).values()
        np.testing.assert_allclose(found, np.tanh(np.prod(w[1:]) * 1e-3), rtol=1e-4)
    except Exception as error:
        wrong.append(error)

threads = [threading.Thread(target=plan, args=s) for s in shapes]
for t in threads:
    t.start()
for t in threads:
    t.join()
net = nn.HybridSequential(nn.Conv2D(20, 5, activation="tanh"), nn.MaxPool2D(), nn.Conv2D(50, 5, activation="tanh"),
                          nn.MaxPool2D(), nn.Dense(50, "tanh"), nn.Dense(10)).initialize("xavier")
x = nd.ones((16, 1, 28, 28))
for _ in range(5):
    last = net(x)
last.wait_to_read()
assert not wrong, wrong
"""


def test_models_that_are_planned_at_the_same_time() -> None:
    """Found by bench/blocks.py: the first use of oneDNN by two threads at once made two engines of it."""
    for _ in range(3):
        subprocess.run([sys.executable, "-c", PROGRAM], check=True)
