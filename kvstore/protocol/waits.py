"""Seconds by which waits of a job go on beyond their deadline, so that who knows best tells first who is missing."""

from __future__ import annotations

# A wait goes on beyond its deadline where somebody else may know better who is missing: the workers of a host of each
# other, then servers of hosts (which they ask), then who speaks to servers of these, and then the others on its host.
BEHIND_HOSTS, BEHIND_SERVERS, BEHIND_SPEAKERS = 1, 2, 3


def beyond(deadline: float, behind: int) -> float:
    """Return the seconds that a wait of one of `BEHIND_*` goes on beyond its deadline. The longer the deadline, the
    busier the processes may be that are asked meanwhile.

    >>> beyond(1.0, BEHIND_HOSTS), beyond(5.0, BEHIND_SERVERS), beyond(120.0, BEHIND_SPEAKERS)
    (0.15, 1.0, 3.0)
    """
    return behind * min(max(0.15, deadline / 10), 1.0)
