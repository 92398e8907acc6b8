"""The peers of yesterday: bounded, over many address ranges, and harmless when the file is damaged."""

from pathlib import Path

import pytest

from prime_runtime.gossip.known_peers import (
    FILE_BYTES_MAX,
    SAVED_OF_RANGE_MAX,
    SAVED_PEERS_MAX,
    KnownPeers,
    choose_known_peers,
    read_known_peers,
    write_known_peers,
)
from support.gossip_network import wallet


def address(number: int, host: str) -> str:
    return f"/ip4/{host}/tcp/4001/p2p/{wallet(number).peer_id()}"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    known = KnownPeers(addresses=(address(1, "8.8.8.8"), f"/dns4/a.example/tcp/1/p2p/{wallet(2).peer_id()}"), port=4001)
    assert read_known_peers(file) == read_known_peers(None) == KnownPeers()
    write_known_peers(file, known)
    assert read_known_peers(file) == known


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"port": 1}',
        '{"port": 70000, "addresses": []}',
        '{"port": "1", "addresses": []}',
        '{"port": 1, "addresses": ["/ip4/8.8.8.8/tcp/1"]}',
        '{"port": 1, "addresses": [7]}',
        '{"port": 1, "addresses": [' + " " * FILE_BYTES_MAX + "]}",
    ],
)
def test_a_damaged_file_is_the_same_as_none(tmp_path: Path, text: str) -> None:
    file = tmp_path / "peers.json"
    file.write_text(text)
    assert read_known_peers(file) == KnownPeers()


def test_a_file_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "peers.json").mkdir()
    write_known_peers(tmp_path / "peers.json", KnownPeers())


def test_one_address_range_gets_a_few_places_and_those_of_before_stay() -> None:
    cheap = [address(number, f"11.7.0.{number}") for number in range(1, 200)]
    honest = [address(1_000 + number, f"{number}.1.1.1") for number in range(20, 100)]
    chosen = choose_known_peers(cheap, honest)
    assert len(chosen) == SAVED_PEERS_MAX
    assert chosen[: SAVED_OF_RANGE_MAX + 1] == (*cheap[:SAVED_OF_RANGE_MAX], honest[0])


def test_a_building_has_one_address_range_and_all_its_peers_are_kept() -> None:
    inside = [address(number, f"192.168.1.{number}") for number in range(1, 30)]
    assert choose_known_peers(inside, inside) == tuple(inside), "each once"
