"""The search for what is wrong between operators that are right alone: random graphs, planned under every switch, must
answer what their operators answer one by one.

    generate(seed) -> Case            a valid graph of 1 to 60 nodes and its feeds (maker.py, moves.py)
    oracle.evaluated(graph, feeds)    what it answers: references in float64, and how far rounding may lead away
    switches.sample(rng)              combinations of the planner's switches that cover all pairs
    drawing.PROPERTIES                what must hold of a session besides its answers
    search.judge(case, ...)           all of that for one graph
    shrink.shrunk(failure)            a failure in as few nodes as show it, as lines for tests/regressions/
    python -m tests.random_graphs     the command (`--help`)
"""
