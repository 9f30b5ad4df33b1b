"""Does it pay that gradients travel while backward goes on? ResNet-18 as in bench/training.py, two workers of one
thread each, one step of both together.

`mezzo` pushes each gradient when it is final; `after-backward` pushes all of them, at once, when the backward part is
done; the floor is the same step of two processes that share nothing. Rounds of the three are interleaved in one job; a
figure is the median over rounds of rank 0's time from barrier to barrier, a ratio the median over rounds.

`same-host` is shared memory alone; `tcp` pretends two hosts, which meet at two servers over loopback: as fast as two
processors can copy, while they compute too. `tcp-10gbit` and `tcp-1gbit` have a loopback of their own (a network
namespace) with a link's speed, as between real hosts; they need `unshare`, `ip`, `tc` and the rights to use them.

    python bench/overlap.py --rows 'tcp*' --trace overlap.json --picture overlap.svg

`--trace` writes one step of rank 0 for chrome://tracing or ui.perfetto.dev, `--picture` draws it; both are of the last
row.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from rows import Row, arguments, machine, show

from mezzo.tools.trace_picture import draw

HERE = Path(__file__).parent
BATCH = 16  # of each worker
# servers, pretended hosts, and the speed of the link between them
ROWS = {
    "same-host": (0, 1, ""),
    "tcp": (2, 2, ""),
    "tcp-10gbit": (2, 2, "10gbit"),
    "tcp-1gbit": (2, 2, "1gbit"),
}
SHAPED = 'ip link set lo up && tc qdisc add dev lo root tbf rate "$0" burst 1mb latency 200ms && exec "$@"'


def measured(row: str, rounds: int, net: str, trace: Path | None) -> dict[str, list[float]]:
    """Milliseconds of a step by way, of each round; raises CalledProcessError where the job fails."""
    servers, hosts, link = ROWS[row]
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "net": net,
            "batch": BATCH,
            "rounds": rounds,
            "out": f"{folder}/told.json",
            "trace": str(trace or ""),
        }
        script = [str(HERE / "peers/overlap_worker.py"), json.dumps(settings)]
        job = ["launch", "-n", "2", "-s", str(servers), "--hosts", str(hosts), *script]
        command = [sys.executable, "-m", "mezzo", *job]
        if link:
            command = ["unshare", "-n", "sh", "-c", SHAPED, link, *command]
        subprocess.run(command, check=True, stdout=sys.stderr, env={**os.environ, "OMP_NUM_THREADS": "1"})
        found: dict[str, list[float]] = json.loads(Path(f"{folder}/told.json").read_text())
    return found


def shapes_links() -> bool:
    """Whether this machine and this user can make a link of their own."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return False
    return subprocess.run(["unshare", "-n", "sh", "-c", SHAPED, "1gbit", "true"], capture_output=True).returncode == 0


def _options(parser: argparse.ArgumentParser) -> Any:
    parser.add_argument("--rows", default="*", help="patterns of rows, with commas between them")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--net", default="resnet18", help="another lesson of mezzo.models.training")
    parser.add_argument("--trace", metavar="FILE.json", type=Path)
    parser.add_argument("--picture", metavar="FILE.svg", type=Path)


def main() -> None:
    args = arguments(__doc__, _options)
    able, rows, notes = shapes_links(), list[Row](), [machine()]
    chosen = [r for r in ROWS if any(fnmatch.fnmatchcase(r, p) for p in args.rows.split(","))]
    with tempfile.TemporaryDirectory() as folder:
        trace = args.trace or (Path(folder) / "trace.json" if args.picture else None)
        for row in chosen:
            if ROWS[row][2] and not able:
                notes.append(f"{row}: not measured, since no link can be made here")
                continue
            found = measured(row, 5 if args.quick else args.rounds, args.net, trace)
            figures = {way: median(times) for way, times in found.items()}
            rows.append(Row(f"{row}/{args.net}/b{BATCH}", "ms", figures["overlap"],
                            {"after-backward": figures["after"]}, figures["alone"]))  # fmt: skip
            ratio = median(a / o for a, o in zip(found["after"], found["overlap"], strict=True))
            notes.append(f"{row}: after-backward takes {ratio:.3f} times as long")
        if args.picture and trace:
            draw(
                json.loads(trace.read_text())["traceEvents"],
                f"{args.net}, one step of rank 0 ({chosen[-1]})",
                args.picture,
            )
    show(rows, args, notes)


if __name__ == "__main__":
    main()
