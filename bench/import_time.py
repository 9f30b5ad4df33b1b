"""What `import mezzo` costs beyond numpy, in milliseconds: each import in a process of its own, interleaved."""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

CASES = {"mezzo": "import numpy, time; t = time.perf_counter(); import mezzo; print(time.perf_counter() - t)"}
PEERS = {
    "ort": "import numpy, time; t = time.perf_counter(); import onnxruntime; print(time.perf_counter() - t)",
    "onnx": "import numpy, time; t = time.perf_counter(); import onnx; print(time.perf_counter() - t)",
    "torch": "import numpy, time; t = time.perf_counter(); import torch; print(time.perf_counter() - t)",
}


def seconds(code: str) -> float | None:
    """What a fresh process measured, or None where the peer is absent."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return float(done.stdout) if done.returncode == 0 else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 rounds instead of 20")
    parser.add_argument("--json", help="write the rows to this file, or - for standard output")
    args = parser.parse_args()
    codes = CASES | PEERS
    taken: dict[str, list[float]] = {name: [] for name in codes}
    for _ in range(5 if args.quick else 20):
        for name, code in codes.items():
            one = seconds(code)
            if one is not None:
                taken[name].append(one * 1e3)
    medians = {name: round(statistics.median(t), 2) for name, t in taken.items() if t}
    row = {
        "case": "import/beyond-numpy",
        "unit": "ms",
        "ours": medians["mezzo"],
        "peers": {n: medians[n] for n in PEERS if n in medians},
        "floor": None,
    }
    if args.json:
        text = json.dumps([row], indent=1)
        if args.json == "-":
            print(text)
            return
        with open(args.json, "w") as file:
            file.write(text + "\n")
    print(f"{'case':<24}{'mezzo':>10}" + "".join(f"{n:>10}" for n in row["peers"]))
    print(f"{row['case']:<24}{row['ours']:>10}" + "".join(f"{v:>10}" for v in row["peers"].values()) + "  ms")


if __name__ == "__main__":
    main()
