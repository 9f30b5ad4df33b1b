"""Operations on arrays: what a small one costs beside NumPy's, with the engine naive (in place) and on threads; runs of
pointwise ones on large arrays, fused and not.

A mode is a process; ours and the peer's take turns in it, and a figure is the least of many.
"""

from __future__ import annotations

import os
import subprocess
import sys
from json import dumps, loads

from rows import Row, arguments, machine, show, users_environment

# ours, NumPy's; over a and b, x and y of four float32
CASES = {
    "add": ("a + b", "x + y"),
    "scalar": ("a * 2", "x * 2"),
    "exp": ("nd.exp(a)", "np.exp(x)"),
    "less": ("a < b", "x < y"),
    "in place": ("a += b", "x += y"),
    "view": ("a[1:]", "x[1:]"),
    "matmul": ("a @ b", "x @ y"),
    "sum": ("nd.sum(a)", "np.sum(x)"),
    "read": ("a.asnumpy()", "x.copy()"),
}
CODE = """
import sys, timeit, json, numpy as np, mezzo as mz
nd = mz.nd
x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
a, b = nd.array(x), nd.array(y)
cases, loops, repeats = json.loads(sys.argv[1])
names = dict(globals())
def least(text):
    setup = "a, b, x, y = A, B, X, Y"
    timer = timeit.Timer(text, setup, globals=dict(names, A=a, B=b, X=x, Y=y))
    found = []
    for _ in range(repeats):
        found.append(timer.timeit(loops))
        nd.waitall()
    return min(found) / loops * 1e6
print(json.dumps({name: [least(ours), least(theirs)] for name, (ours, theirs) in cases.items()}))
"""
LARGE = """
import sys, json, time, numpy as np, mezzo as mz
nd = mz.nd
rounds = json.loads(sys.argv[1])
rng = np.random.default_rng(0)
x, y = (rng.normal(size=(2000, 2000)).astype(np.float32) for _ in range(2))
a, b = nd.array(x), nd.array(y)

def run(xp, x, y):
    return xp.tanh(x * 2 + y) * 0.5 - xp.exp(-x * x) / (1 + y * y)

def ours(fused):
    with nd.fusion(fused):
        run(nd, a, b).wait_to_read()

sides = {"fused": lambda: ours(True), "apart": lambda: ours(False), "numpy": lambda: run(np, x, y)}
taken = {name: [] for name in sides}
for _ in range(rounds):
    for name, side in sides.items():
        started = time.perf_counter()
        side()
        taken[name].append(time.perf_counter() - started)
print(json.dumps({name: min(times) * 1e3 for name, times in taken.items()}))
"""


def milliseconds(mode: str, rounds: int) -> dict[str, float]:
    """A run of eleven pointwise operations on 16 MB arrays: fused, apart, and NumPy's."""
    env = {**users_environment(), "MEZZO_ENGINE": mode}
    command = [sys.executable, "-c", LARGE, dumps(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    found: dict[str, float] = loads(done.stdout)
    return found


def microseconds(mode: str, loops: int, repeats: int) -> dict[str, list[float]]:
    """Ours and NumPy's for each case, with an engine of this mode."""
    env = {**users_environment(), "MEZZO_ENGINE": mode}
    given = dumps([CASES, loops, repeats])
    done = subprocess.run([sys.executable, "-c", CODE, given], capture_output=True, text=True, check=True, env=env)
    found: dict[str, list[float]] = loads(done.stdout)
    return found


def main() -> None:
    args = arguments(__doc__)
    repeats = 15 if args.quick else 60
    rows = []
    for mode in ("naive", "threaded"):
        for name, (ours, theirs) in microseconds(mode, 2000, repeats).items():
            rows.append(Row(f"arrays/{mode}/{name}", "us", ours, {"numpy": theirs}))
    for mode in ("naive", "threaded"):
        found = milliseconds(mode, repeats // 3)
        rows.append(Row(f"arrays/{mode}/eleven fused", "ms", found.pop("fused"), found))
    over = sorted(r.ours - r.peers["numpy"] for r in rows if "/naive/" in r.case and r.unit == "us")
    notes = [f"over NumPy in naive mode: {over[0]:.1f} to {over[-1]:.1f} us, middle {over[len(over) // 2]:.1f}"]
    if (load := os.getloadavg()[0]) > 0.5:
        notes.append(f"the machine was busy meanwhile (load {load:.1f})")
    show(rows, args, [*notes, machine()])


if __name__ == "__main__":
    main()
