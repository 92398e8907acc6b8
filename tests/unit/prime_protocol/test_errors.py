"""The two errors."""

from prime_protocol.errors import LocalError, RemoteError, explain_version


def test_a_remote_error_keeps_the_field_and_the_problem_apart_and_prints_both() -> None:
    error = RemoteError("manifest.shards[3].digest", "is 31 bytes, expected 32")
    assert (error.field, error.problem) == ("manifest.shards[3].digest", "is 31 bytes, expected 32")
    assert str(error) == "manifest.shards[3].digest: is 31 bytes, expected 32"


def test_neither_error_is_caught_as_the_other() -> None:
    assert not issubclass(RemoteError, LocalError)
    assert not issubclass(LocalError, RemoteError)


def test_a_newer_version_says_to_upgrade_and_another_one_does_not() -> None:
    assert explain_version(2, 1) == "is 2, this program reads 1: upgrade prime-swarm"
    assert explain_version(0, 1) == "is 0, this program reads 1"
    assert explain_version("two", 1) == "is two, this program reads 1"
