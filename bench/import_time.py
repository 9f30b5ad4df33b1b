"""What `import mezzo` costs beyond numpy: each import in a process of its own, interleaved."""

from __future__ import annotations

import statistics
import subprocess
import sys

from rows import Row, arguments, machine, show, users_environment

CODE = "import numpy, time; t = time.perf_counter(); import {}; print(time.perf_counter() - t)"
MODULES = {"mezzo": "mezzo", "ort": "onnxruntime", "onnx": "onnx", "torch": "torch"}


def milliseconds(module: str) -> float | None:
    """What a fresh process measured, or None where the peer is absent."""
    command = [sys.executable, "-c", CODE.format(module)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=users_environment())
    return float(done.stdout) * 1e3 if done.returncode == 0 else None


def main() -> None:
    args = arguments(__doc__)
    taken: dict[str, list[float]] = {name: [] for name in MODULES}
    milliseconds("mezzo")  # compiles its modules once, as the first start on a machine does
    for _ in range(5 if args.quick else 20):
        for name, module in MODULES.items():
            one = milliseconds(module)
            if one is not None:
                taken[name].append(one)
    middle = {name: statistics.median(times) for name, times in taken.items() if times}
    show([Row("import/beyond-numpy", "ms", middle.pop("mezzo"), middle)], args, [machine()])


if __name__ == "__main__":
    main()
