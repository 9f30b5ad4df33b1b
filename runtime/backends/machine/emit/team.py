"""Work that threads share: chunks are numbered, and each thread takes the next one until there are none.

A kernel's block of arguments begins with the number of the next chunk, the number of chunks, of threads, and the
address of `GOMP_parallel` or 0. A chunk is computed alike by whoever takes it.
"""

from __future__ import annotations

from collections.abc import Callable

from ..blocks import Chunked
from .ir import I32, I64, PTR, Function, Value, number


def shared(
    name: str, chunk: Callable[[Function, Value, Value], None], before: Callable[[Function, Value], None] | None = None
) -> list[Function]:
    """The functions of a kernel: `before` prepares in the calling thread, `chunk` writes the code of one chunk."""
    task = Function(f"{name}.task", inside=True)
    block = task.arguments[0]
    with task.forever() as out:
        taken = task.value(I64, f"atomicrmw add {block}, i64 1 monotonic")
        task.leave(task.compare("sge", taken, task.word(block, Chunked.CHUNKS)), out)
        chunk(task, block, taken)
    task.give()

    run = Function(name)
    block = run.arguments[0]
    if before is not None:
        before(run, block)
    run.store(number(0, I64), block)
    parallel, threads = run.word(block, Chunked.PARALLEL, PTR), run.word(block, Chunked.THREADS)
    yes, no, out = run.either(
        run.binary("and", run.compare("sgt", threads, 1), run.value("i1", f"icmp ne {parallel}, null"))
    )
    run.mark(yes)
    count = run.convert("trunc", threads, I32)
    run.line(f"call void {parallel.name}(ptr @{task.name}, {block}, {count}, i32 0)")
    run.go(out)
    run.mark(no)
    run.line(f"call void @{task.name}({block})")
    run.go(out)
    run.mark(out)
    run.give()
    return [task, run]
