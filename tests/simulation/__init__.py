"""The KVStore's own processes in one, under virtual time: every run is that of its seed.

The scheduler, servers, agents and workers are those of the product, with their drivers. What they stand on is not:
clocks, connections, the sockets and the memory of a host (`world.py`, `network.py`, `streams.py`, `hosts.py`) are made
here, decided by the numbers of a seed. `plans.py` draws a job and what goes wrong with it, `jobs.py` runs it, and
`checks.py` says what must hold at every step and at the end. `defects.py` are defects that the search must find.

The way is that of FoundationDB (https://apple.github.io/foundationdb/testing.html).
"""
