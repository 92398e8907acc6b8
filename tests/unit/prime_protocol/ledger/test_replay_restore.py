"""The coordinator's own log after a restart: every rule is kept again, and no signature is checked twice."""

import pytest

from prime_protocol.errors import RemoteError
from prime_protocol.ledger.entries import Outcome
from prime_protocol.ledger.replay import Ledger
from support.ledger_network import NETWORK, World


def test_what_was_applied_before_gives_the_same_state_again() -> None:
    world = World.started()
    world.judge(world.submit(world.lease("ann")), Outcome.ACCEPT)
    ledger = Ledger(NETWORK)
    for leaf in world.leaves:
        ledger.restore(leaf)
    assert ledger.state == world.state
    with pytest.raises(RemoteError):
        ledger.restore(world.leaves[-1])
    assert ledger.state == world.state
