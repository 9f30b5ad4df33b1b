"""How far the ways through the product are: calls, files and depth of `mz.load`, of a session's first and tenth run, of
`Trainer.step` and of `mz.nd.sin`. Only calls of the product's own functions count.

    python -m tests.paths            # a table; --list also the calls of the short ones, in order
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

LISTED = 80  # calls; longer ways are told as figures alone


class Way:
    """The calls between two moments of one thread."""

    def __init__(self) -> None:
        import mezzo

        self._home = str(Path(mezzo.__file__).parent)
        self._at = 0
        self.depth = 0
        self.calls: list[str] = []
        self.files: set[str] = set()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(self._home):
            return
        if event == "call":
            file = code.co_filename.removeprefix(f"{self._home}/")
            self._at += 1
            self.depth = max(self.depth, self._at)
            self.files.add(file)
            self.calls.append(f"{file}: {code.co_qualname}")
        elif event == "return":
            self._at -= 1


def traced(what: Callable[[], object]) -> Way:
    """The way of one call."""
    way = Way()
    gc.collect()
    gc.disable()
    sys.setprofile(way)
    try:
        what()
    finally:
        sys.setprofile(None)
        gc.enable()
    return way


def tenth_run() -> Way:
    """The way of the tenth run of the digits' model, which has a pool whose result is looked at."""
    import mezzo as mz
    from mezzo.models.digits import digits_model, held_out

    session, image = mz.load(digits_model()), held_out().inputs[:8]
    for _ in range(9):
        session.run({"image": image})
    return traced(lambda: session.run({"image": image}))


def ways() -> dict[str, Way]:
    """The ways, each traced in a process that has imported what it needs and has gone it once with another model."""
    import mezzo as mz
    from mezzo.models.digits import digits_model, held_out

    data = held_out()
    image, target = data.inputs[:8], data.labels[:8]
    mz.load(digits_model())(image)
    feeds = {"image": image, "target": target}
    mz.Trainer(digits_model()).step(feeds)
    x = mz.nd.array(np.ones(4, np.float32))
    for _ in range(3):
        mz.nd.sin(x).asnumpy()
    found: dict[str, Way] = {}
    sessions: list[mz.Session] = []
    found["mz.load"] = traced(lambda: sessions.append(mz.load(digits_model())))
    session = sessions[0]
    found["first run"] = traced(lambda: session.run({"image": image}))
    found["tenth run"] = tenth_run()
    trainer = mz.Trainer(digits_model())
    for _ in range(9):
        trainer.step(feeds)
    found["tenth Trainer.step"] = traced(lambda: trainer.step(feeds))
    found["mz.nd.sin, read"] = traced(lambda: mz.nd.sin(x).asnumpy())
    return found


def main() -> None:
    found = ways()
    for name, way in found.items():
        print(f"{name:20} {len(way.calls):6} calls, {len(way.files):4} files, {way.depth:3} deep")
        if "--list" in sys.argv and len(way.calls) <= LISTED:
            print(*(f"    {call}" for call in way.calls), sep="\n")


if __name__ == "__main__":
    main()
