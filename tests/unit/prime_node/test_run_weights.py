"""The weights of several runs: one address for all, and changed tensors only within one run."""

from types import SimpleNamespace
from typing import Any

from prime_node.run_weights import ShardRoutes, find_changed_tensors
from prime_protocol.wire.ids import Digest


def digest(number: int) -> Digest:
    return Digest(bytes([number]) * 32)


def server(*known: Digest) -> Any:
    store = SimpleNamespace(shard_sets={known[0]: None}, find=lambda wanted: wanted in known[1:] or None)
    return SimpleNamespace(store=store)


def checkpoint(**tensors: int) -> Any:
    listed = [SimpleNamespace(name=name, digest=digest(number)) for name, number in tensors.items()]
    return SimpleNamespace(manifest=SimpleNamespace(tensors=listed))


def test_a_digest_leads_to_the_server_whose_run_has_it() -> None:
    one, two = server(digest(1), digest(2)), server(digest(3), digest(4))
    routes = ShardRoutes([one, two])
    for text, expected in ((digest(1), one), (digest(2), one), (digest(3), two), (digest(4), two)):
        request: Any = SimpleNamespace(match_info={"digest": str(text)})
        assert routes._find(request) is expected
    for text in (str(digest(9)), "no digest"):
        unknown: Any = SimpleNamespace(match_info={"digest": text})
        assert routes._find(unknown) is one, "any server can say that it is unknown"


def test_only_checkpoints_of_one_run_have_tensors_in_common() -> None:
    held: list[dict[Digest, Any]] = [
        {digest(1): checkpoint(a=1, b=2), digest(2): checkpoint(a=1, b=3)},
        {digest(3): checkpoint(a=1, b=3)},
    ]
    stores: list[Any] = [SimpleNamespace(checkpoints=lambda each=each: each) for each in held]
    assert find_changed_tensors(stores, digest(1), digest(2)) == {"b"}
    assert find_changed_tensors(stores, digest(2), digest(3)) is None
