"""What a launcher tells each process: read, written back, and refused by name."""

from __future__ import annotations

import pytest

import mezzo as mz
from mezzo.kvstore.environment import Environment, local, present

GIVEN = {
    "DMLC_ROLE": "server",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "4",
    "DMLC_NUM_SERVER": "2",
}


def test_what_is_read_can_be_handed_on() -> None:
    given = {**GIVEN, "MEZZO_HOST": "h", "MEZZO_KV_MEMORY": "7", "MEZZO_KV_DEADLINE": "1.5", "MEZZO_JOB_KEY": "k"}
    mine = Environment.read(given)
    assert (mine.role, mine.workers, mine.servers, mine.memory, mine.deadline) == ("server", 4, 2, 7 << 20, 1.5)
    assert Environment.read(mine.variables()) == mine
    other = mine.as_role("worker", 3, "g")
    assert Environment.read(other.variables()) == other
    assert (other.role, other.rank, other.host) == ("worker", 3, "g")


def test_the_host_is_the_machine() -> None:
    assert Environment.read(GIVEN).host
    assert Environment.read(GIVEN).most_bytes > 1 << 28
    assert present(GIVEN)
    assert not present({"PATH": "/bin"})


WRONG = {
    "DMLC_ROLE": ("boss", "worker, server, scheduler"),
    "DMLC_PS_ROOT_PORT": ("99999", "from 1 to 65535"),
    "DMLC_NUM_WORKER": ("0", "from 1"),
    "DMLC_NUM_SERVER": ("-1", "from 0"),
    "MEZZO_KV_DEADLINE": ("soon", "seconds above 0"),
    "MEZZO_KV_MEMORY": ("1.5", "integer"),
    "MEZZO_RANK": ("²", "integer"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_variable_is_named(name: str) -> None:
    text, told = WRONG[name]
    with pytest.raises(mz.InputError, match=name) as caught:
        Environment.read({**GIVEN, name: text})
    assert repr(text) in str(caught.value)
    assert told in str(caught.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(mz.InputError, match="DMLC_PS_ROOT_URI is missing") as caught:
        Environment.read({"DMLC_ROLE": "boss", "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "1"})
    assert [str(p).split(" ")[0] for p in caught.value.parts] == [
        "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "DMLC_ROLE='boss'",
    ]  # fmt: skip


def test_an_address_outside_needs_a_key() -> None:
    mine = Environment.read({**GIVEN, "MEZZO_BIND": "0.0.0.0"})
    with pytest.raises(mz.InputError, match="MEZZO_BIND"):
        mine.check_address(mine.bind)
    assert mine.check_address("127.0.0.1") == "127.0.0.1"
    with pytest.raises(mz.InputError, match="DMLC_PS_ROOT_URI"):
        mine.check_address("example.com")
    keyed = Environment.read({**mine.variables(), "MEZZO_JOB_KEY": "secret"})
    assert keyed.check_address("0.0.0.0") == "0.0.0.0"
    assert local("localhost")
    assert local("::1")
    assert not local("10.0.0.1")
