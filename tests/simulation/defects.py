"""Defects of the protocol to be planted, one at a time, in a copy of the checkout: the search must find each.

Each is a text in a file that stands there once, and what takes its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROTOCOL = "kvstore/protocol"


@dataclass(frozen=True)
class Defect:
    """`old` in `file` becomes `new`; `what` says which defect that is. An `early` one is found by a suite run, a `rare`
    one needs more seeds than a suite run has, if it is found at all."""

    what: str
    file: str
    old: str
    new: str
    early: bool = False
    rare: bool = False

    def plant(self, root: Path) -> None:
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


DEFECTS = (
    # rounds, and pushes that count by themselves
    Defect(
        "a push that is repeated on a new connection counts twice",
        f"{PROTOCOL}/one_key.py",
        ('            push.early = 0\n            self.counts["repeats"] += 1\n'),
        ("            push.early = push.arrived = 0\n            self.clocks[e.rank] = e.step - 1\n"),
    ),
    Defect(
        "an answer is sent before the sum is complete",
        f"{PROTOCOL}/one_key.py",
        ("        if self.version >= wait.step:\n            return self.nbytes\n"),
        ("        if self.version >= wait.step - 1:\n            return self.nbytes\n"),
        early=True,
    ),
    Defect(
        "sums are taken in the order of arrival",
        f"{PROTOCOL}/one_key.py",
        ("self.round = Round(e.step, sorted(self.clocks), how, not rule.elementwise)"),
        ("self.round = Round(e.step, sorted(self.clocks, key=lambda r: r != e.rank), how, not rule.elementwise)"),
        early=True,
    ),
    Defect(
        "a round is closed one push early",
        f"{PROTOCOL}/one_key.py",
        ("            if push is None or push.step != step:\n                return made\n"),
        (
            "            if push is None or push.step != step:\n"
            "                if rank != at.ranks[-1] or rank == at.ranks[0]:\n"
            "                    return made\n"
            "                continue\n"
        ),
        early=True,
    ),
    Defect(
        "a range is applied before its bytes are in the sum",
        f"{PROTOCOL}/one_key.py",
        ("            if arrived < reach:\n                reach = arrived\n"),
        (""),
        early=True,
    ),
    Defect(
        "a push that has arrived in part is applied",
        f"{PROTOCOL}/one_key.py",
        ("        elif complete and push.step > self.clocks[rank]:\n"),
        ("        elif push.step > self.clocks[rank]:\n"),
    ),
    Defect(
        "a rank may be one push further ahead than the bound",
        f"{PROTOCOL}/consistency.py",
        ("return clock - slowest <= self.staleness"),
        ("return clock - slowest <= self.staleness + 1"),
    ),
    Defect(
        "a rank that has left is still waited for",
        f"{PROTOCOL}/one_key.py",
        ("        del self.clocks[rank]\n        self.waits.pop(rank, None)\n"),
        ("        self.waits.pop(rank, None)\n"),
    ),
    Defect(
        "the first frame after a lost connection is taken for one of the old connection",
        f"{PROTOCOL}/one_key.py",
        ("        if stream and stream.session == session and e.step <= stream.step:\n"),
        ("        if stream and e.step <= stream.step:\n"),
    ),
    Defect(
        "what was staged before a connection was lost is staged again",
        f"{PROTOCOL}/one_key.py",
        ("e.hi <= push.arrived:\n"),
        ("e.hi < push.arrived:\n"),
        rare=True,
    ),
    # deadlines and culprits
    Defect(
        "nobody looks at the deadline of a round",
        f"{PROTOCOL}/rounds.py",
        ("e.now - key.since > self.deadline + self._answers * (1 if self._late_ranks(key) else EXCUSED):\n"),
        ("e.now - key.since > 100 * self.deadline:\n"),
    ),
    Defect(
        "a late round names those who have come",
        f"{PROTOCOL}/one_key.py",
        ("if missing]\n"),
        ("if not missing]\n"),
    ),
    Defect(
        "a lost connection is a failure of another rank",
        f"{PROTOCOL}/rounds.py",
        "        who = e.who or self._named((e.rank,))\n",
        "        who = self._named((0,))\n",
    ),
    # clients
    Defect(
        "offsets of the second of two servers begin at its own bytes",
        f"{PROTOCOL}/client.py",
        ("        base = part.shard.lo\n"),
        ("        base = 0\n"),
        early=True,
    ),
    Defect(
        "operations of low priority go first",
        f"{PROTOCOL}/client.py",
        ("heappush(server.ready, (-part.priority, part.order, part))"),
        ("heappush(server.ready, (part.priority, part.order, part))"),
        early=True,
    ),
    Defect(
        "what was under way is not said again on a new connection",
        f"{PROTOCOL}/client.py",
        ("            if not part.ended:\n                part.answered = False\n"),
        ("            if not part.ended and part.sent < 0:\n                part.answered = False\n"),
    ),
    Defect(
        "an operation ends with the answer of one of its servers",
        f"{PROTOCOL}/client.py",
        ("        for each in key.parts.values():\n            if not each.ended:\n                return []\n"),
        (""),
        early=True,
    ),
    # the scheduler
    Defect(
        "a barrier opens when all but one have come",
        f"{PROTOCOL}/membership.py",
        ("if not self._awaited(name)]:"),
        ("if len(self._awaited(name)) < 2]:"),
        early=True,
    ),
    Defect(
        "two workers may have one rank",
        f"{PROTOCOL}/membership.py",
        ("free = iter(sorted({*range(most)} - {m.hello.rank for m in members}))"),
        ("free = iter(range(most))"),
    ),
    Defect(
        "a worker that ends with an error leaves as if it had none",
        f"{PROTOCOL}/membership.py",
        ("        if bye.code:\n"),
        ("        if bye.code and self._welcome is None:\n"),
    ),
    # workers of one host
    Defect(
        "a member sums before the last operand is ready",
        f"{PROTOCOL}/host.py",
        ("        at.ready |= bit\n        if at.ready == self._all:\n"),
        ("        at.ready |= bit\n        if at.ready == self._all or at.ready & self._mine:\n"),
        early=True,
    ),
    Defect(
        "an operand that came early is forgotten",
        f"{PROTOCOL}/host.py",
        ("at.ready, at.ahead, at.done, at.begun = at.ahead, 0, 0, False"),
        ("at.ready, at.ahead, at.done, at.begun = 0, 0, 0, False"),
        early=True,
    ),
    Defect(
        "a round is complete before all parts of the sum are",
        f"{PROTOCOL}/host.py",
        ("return told + self._reduced(at, key) if at.done == at.reducers else told"),
        ("return told + self._reduced(at, key) if at.done & self._mine or at.done == at.reducers else told"),
    ),
    # drivers: what the search has found in them
    Defect(
        "who comes when the job has ended hears nothing",
        "kvstore/scheduler.py",
        ("        if self._ended is not None:\n            self._part_from(stream)\n"),
        "",
    ),
    Defect(
        "who comes when the job has failed is not told by a server",
        "kvstore/server.py",
        "        if self._member.failure is not None:  # the others have been told\n",
        "        if False:\n",
        rare=True,
    ),
    Defect(
        "an older connection takes the place of a newer one",
        "kvstore/server.py",
        "if before is not None and before.number > peer.number:",
        "if before is None and peer.number < 0:",
        rare=True,
    ),
    Defect(
        "the level above a host looks at its clock once a second",
        "kvstore/host/waiting.py",
        "self._patience = PATIENCE if above is None else TICK ",
        "self._patience = PATIENCE ",
        rare=True,
    ),
    Defect(
        "a member that waits for the servers is blamed",
        "kvstore/host/waiting.py",
        "all(self._late_here(at) for at in (value, *self._under_way()))",
        "any(m < self.members for m in self._missing(value))",
    ),
    Defect(
        "an agent that cannot reach the job leaves without a word",
        "kvstore/agent.py",
        "            resign(mesh, reason)\n",
        "            mesh.close()\n",
    ),
    Defect(
        "errors name hosts by the numbers of workers",
        "kvstore/server.py",
        "Keys(environment.most_bytes, self._levels.names(welcome))",
        "Keys(environment.most_bytes)",
    ),
    Defect(
        "the first frame on a new connection is that of any key",
        "kvstore/protocol/client.py",
        "                made += self._say(server, part)\n",
        "                made += self._say(server, part) + self._pump(server)\n",
    ),
    Defect(
        "bytes that come again after a lost connection are staged beside those before",
        "kvstore/shards.py",
        "            self._blocks.give(parts.pop()[1])\n",
        "            break\n",
        rare=True,
    ),
    Defect(
        "a connection that is lost is asked for its early payload",
        "kvstore/server.py",
        "        self._early.discard(stream)\n",
        "",
        rare=True,
    ),
    Defect(
        "a connection that was replaced is still heard",
        "kvstore/server.py",
        "            before.stream.close()\n",
        "            self._peers[before.stream] = before\n",
        rare=True,
    ),
    Defect(
        "a scheduler that says nothing is waited for",
        "kvstore/member.py",
        "            if self._unheard * BEAT > silence(self.deadline):\n",
        "            if self._unheard < 0:\n",
        rare=True,
    ),
    Defect(
        "a member that has begun a round and not summed it is not missed",
        "kvstore/host/group.py",
        "        sums = value.reducers or ()  # None: every member for itself\n",
        "        sums = ()\n",
        rare=True,
    ),
    Defect(
        "who waits for a member does not tell for whom that one waits",
        "kvstore/host/waiting.py",
        "            kept = next((at for at in (value, *self._under_way()) if not self._late_here(at)), None)\n",
        "            pass\n",
        rare=True,
    ),
    Defect(
        "who cannot reach a server does not say which",
        "kvstore/dist.py",
        'f"{error.where}: {error.message}" if isinstance(error, MezzoError) else reason(error)',
        "reason(error)",
        rare=True,
    ),
    # servers that are started again
    Defect(
        "a record of a server's memory counts before it is complete",
        "kvstore/kept.py",
        "        fill(room[first:])\n",
        "        store(self._end, 0, at + total)\n        fill(room[first:])\n",
    ),
    Defect(
        "what was answered of an open round is forgotten with the server",
        "kvstore/kept_shards.py",
        "        held.kept.apply_in_part(held.applied)\n",
        "        pass\n",
    ),
    Defect(
        "a push counts again when its server was started again",
        "kvstore/kept_shards.py",
        "{rank: counts[rank] + 1}",
        "{rank: counts[rank]}",
    ),
    Defect(
        "the word of a buffer is written before those that belong to it",
        "kvstore/kept.py",
        "        words, count = self.words, COUNTS + PER_RANK * self.ranks\n",
        "        words, count = self.words, COUNTS + PER_RANK * self.ranks\n"
        "        store(words, 0, int(words[0]) + 1)\n"
        "        store(words, 0, int(words[0]) - 1)\n",
    ),
    Defect(
        "a server that is back is not looked for at its new address",
        "kvstore/uplink.py",
        "            self._addresses[number] = text\n",
        "",
    ),
    Defect(
        "a server that comes before the end of the one before it is refused",
        f"{PROTOCOL}/membership.py",
        "            self._replace(hello)\n",
        "",
        rare=True,
    ),
    # jobs that do not fit together
    Defect(
        "numbers of workers and servers are not compared",
        f"{PROTOCOL}/gathering.py",
        "    if not hello.num_workers or told == (workers, servers):\n",
        "    if True:\n",
    ),
    Defect(
        "who comes later finds nobody",
        f"{PROTOCOL}/membership.py",
        '        return [*told, End(failure, max(0, workers + max(servers, self._declared["server"]) - come))]\n',
        "        return [*told, End(failure)]\n",
        early=True,
    ),
    # jobs that gather again
    Defect(
        "who stood at a barrier before the job gathered again counts afterwards",
        f"{PROTOCOL}/membership.py",
        "        for known in (self._members, self._barriers, self._words, self._since, self._away):\n",
        "        for known in (self._members, self._since, self._away):\n",
    ),
    Defect(
        "what others tell of a death is taken for the end of the job",
        f"{PROTOCOL}/membership.py",
        "        if not self._rejoin or self._welcome is None:\n",
        "        if True:\n",
    ),
    Defect(
        "members of a host meet those of an earlier gathering",
        "kvstore/host/opening.py",
        '    again = f"/{welcome.gathering}" if welcome.gathering else ""\n',
        '    again = ""\n',
    ),
    Defect(
        "a server ends where the job gathered again",
        "kvstore/server.py",
        "self._rejoins and self._member.gathers():\n                return True\n",
        "self._rejoins and self._member.gathers():\n                return False\n",
    ),
)
