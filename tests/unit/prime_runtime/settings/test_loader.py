"""Settings: precedence, types, refusals that name the key and its source, flags, and nothing secret shown."""

import argparse
import copy
import pickle
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import pytest

from prime_runtime.redaction import Secret
from prime_runtime.settings.flags import add_flags, read_flags, render_config
from prime_runtime.settings.loader import describe_config, list_secrets, load_config, resolve_config
from prime_runtime.settings.schema import Between, CommaList, ConfigError, settings_class


class Role(StrEnum):
    WORKER = "worker"
    RELAY = "relay"


@settings_class
class Wallet:
    passphrase: Secret | None = None
    """Opens the keystore."""
    tokens: tuple[Secret, ...] = ()


@settings_class
class Peers:
    peers_max: Annotated[int, Between(1, 100)] = 50
    """Open sessions at once.
    Each costs about 2 % of a GiB."""
    bootstrap: tuple[str, ...] = ()
    ports: tuple[Annotated[int, Between(1, 65_535)], ...] = (4001,)
    patience_s: Annotated[float, Between(0, 60)] | None = 1.5
    wait_ms: Annotated[int, Between(0, 10**9)] = 1_000
    cache_bytes_max: Annotated[int, Between(0, 10**15)] = 0

    def __post_init__(self) -> None:
        if self.peers_max < len(self.bootstrap):
            raise ConfigError(f"peers_max is {self.peers_max}, but {len(self.bootstrap)} bootstrap peers are named")


@settings_class
class Config:
    folder: Path
    """Where everything is kept."""
    role: Role = Role.WORKER
    is_public: bool = False
    name: str | None = None
    motto: str = field(default_factory=lambda: "none")
    wallet: Wallet
    peers: Peers


FOLDER = {"folder": "data"}


def load(toml: str = "", environ: dict[str, str] | None = None, **flags: Any) -> Config:
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return load_config(Config, {**FOLDER, **given}, environ or {}, toml.encode())


def refusal(toml: str = "", environ: dict[str, str] | None = None, **flags: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(toml, environ, **flags)
    return str(caught.value)


def test_defaults_fill_what_no_source_names() -> None:
    config = load()
    assert config == Config(folder=Path("data"), wallet=Wallet(), peers=Peers())


def test_flag_beats_environment_beats_file_beats_default() -> None:
    toml, environ = "[peers]\npeers_max = 10", {"PRIME_PEERS_PEERS_MAX": "20"}
    assert load().peers.peers_max == 50
    assert load(toml).peers.peers_max == 10
    assert load(toml, environ).peers.peers_max == 20
    assert load(toml, environ, peers__peers_max="30").peers.peers_max == 30


def test_every_type_is_read_from_toml() -> None:
    config = load(
        """
        role = "relay"
        is_public = true
        name = "ada"
        motto = "slow"
        [wallet]
        passphrase = "correct horse"
        tokens = ["aaaaaaaa", "bbbbbbbb"]
        [peers]
        bootstrap = ["a", "b"]
        ports = [1, 2]
        patience_s = 3
        """
    )
    assert (config.role, config.is_public, config.name, config.motto) == (Role.RELAY, True, "ada", "slow")
    assert config.wallet.passphrase == Secret("correct horse")
    assert config.peers == Peers(bootstrap=("a", "b"), ports=(1, 2), patience_s=3.0)
    assert type(config.peers.patience_s) is float


def test_every_type_is_read_from_the_environment() -> None:
    environ = {
        "PRIME_ROLE": "relay",
        "PRIME_IS_PUBLIC": "TRUE",
        "PRIME_NAME": "",
        "PRIME_PEERS_BOOTSTRAP": "a, b,",
        "PRIME_PEERS_PORTS": "1,2",
        "PRIME_PEERS_PATIENCE_S": "2.5e-1",
        "PRIME_WALLET_PASSPHRASE": "correct horse",
        "OTHER": "x",
    }
    config = load('name = "ada"', environ)
    assert config.role is Role.RELAY
    assert config.is_public is True
    assert config.name is None
    assert config.peers == Peers(bootstrap=("a", "b"), ports=(1, 2), patience_s=0.25)
    assert config.wallet.passphrase is not None
    assert config.wallet.passphrase.reveal() == "correct horse"


@settings_class
class Runs:
    run: Annotated[str, CommaList()] = ""


@pytest.mark.parametrize("toml", ['run = ["a", "b"]', 'run = "a,b"'])
def test_a_text_of_names_may_be_a_list_in_the_file(toml: str) -> None:
    assert load_config(Runs, {}, {}, toml.encode()).run == "a,b"
    assert load_config(Runs, {"run": "c"}, {}, toml.encode()).run == "c"


def test_a_list_of_other_things_is_refused_for_a_text_of_names() -> None:
    with pytest.raises(ConfigError, match="names separated by commas"):
        load_config(Runs, {}, {}, b"run = [1, 2]")


def test_home_in_a_path_comes_from_the_given_environment() -> None:
    assert load(environ={"HOME": "/home/ada"}, folder="~/swarm").folder == Path("/home/ada/swarm")
    assert "HOME is not set" in refusal(folder="~")
    assert load(folder="~tilde").folder == Path("~tilde")


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ("[peers]\npeers_max = 0", ["peers.peers_max is 0", "line 2", "from 1 to 100"]),
        ('[peers]\npeers_max = "five"', ["peers.peers_max is 'five'", "valid integer", "whole number"]),
        ("[peers]\npeers_max = 1979-05-27", ["peers.peers_max is datetime.date", "valid integer"]),
        ("[peers]\npatience_s = nan", ["peers.patience_s is nan"]),
        ("[peers]\npatience_s = inf", ["peers.patience_s is inf"]),
        ('[peers]\nbootstrap = "a"', ["peers.bootstrap is 'a'", "valid tuple", "a list of text"]),
        ("[peers]\nbootstrap = [1]", ["peers.bootstrap is 1", "valid string"]),
        ("[peers]\nports = [1, 0]", ["peers.ports is 0", "greater than or equal to 1"]),
        ("[peers]\npers_max = 5", ["'peers.pers_max'", "line 2", "did you mean peers.peers_max?"]),
        ("[pears]\npeers_max = 5", ["'pears' in", "did you mean peers?"]),
        ("peers = 5", ["peers in the given TOML line 1 is a section"]),
        ("zzz = 5", ["'zzz' in the given TOML line 1 is not a setting"]),
        ('role = "boss"', ["role is 'boss'", "one of worker, relay"]),
        ("is_public = 2", ["is_public is 2", "true or false"]),
        ('name = "a\\u001b[2J"', ["cannot be printed"]),
        ('[wallet]\npassphrase = "short"', ["wallet.passphrase is ***", "at least 8 characters"]),
        ('[peers]\nwait_ms = "5 weeks"', ["peers.wait_ms is '5 weeks'", "ms, s, min, h, d"]),
        ('[peers]\ncache_bytes_max = "5min"', ["peers.cache_bytes_max is '5min'", "GB"]),
        ("a = @", ["is not TOML", "line 1"]),
        ("a = 1\na = 2", ["is not TOML"]),
    ],
)
def test_what_is_wrong_in_the_file_is_named(toml: str, words: list[str]) -> None:
    text = refusal(toml)
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("PRIME_PEERS_PEERS_MAX", "ten", "as an integer (from PRIME_PEERS_PEERS_MAX)"),
        ("PRIME_PEERS_PEERS_MAX", "", "is ''"),
        ("PRIME_PEERS_PEERS_MAX", "9" * 5000, "…"),
        ("PRIME_PEERS_PEERS_MAX", "٣", "is '٣'"),
        ("PRIME_IS_PUBLIC", "maybe", "is_public is 'maybe'"),
        ("PRIME_PEERS_PATIENCE_S", "nan", "is 'nan'"),
        ("PRIME_PEERS_PATIENCE_S", "1e999", "finite number"),
        ("PRIME_PEERS_PEERS_MX", "1", "did you mean PRIME_PEERS_PEERS_MAX?"),
        ("PRIME_PEERS_ZZZZZZZZZZ", "1", "PRIME_PEERS_ZZZZZZZZZZ is not a setting"),
        ("PRIME_IS_PUBLIK", "1", "did you mean PRIME_IS_PUBLIC?"),
        ("PRIME_WALLET_PASSPHRASE", "short", "at least 8 characters"),
    ],
)
def test_what_is_wrong_in_the_environment_is_named(variable: str, value: str, words: str) -> None:
    assert words in refusal(environ={variable: value})


def test_variables_of_another_program_are_left_alone() -> None:
    assert load(environ={"PRIME_COORDINATOR_URL": "http://x"}) == load()


def test_a_path_may_not_be_empty_and_an_unknown_flag_is_refused() -> None:
    assert "folder is empty" in refusal(folder="")
    assert "did you mean peers.ports?" in refusal(peers__portz=["1"])


def test_all_that_is_wrong_is_told_at_once() -> None:
    text = refusal("zzz = 1\n[peers]\npeers_max = 0", {"PRIME_ROLE": "boss"})
    assert len(text.splitlines()) == 3


def test_a_missing_value_tells_the_three_ways_to_set_it() -> None:
    with pytest.raises(ConfigError, match="folder is missing: set it in the file, as PRIME_FOLDER or with --folder"):
        load_config(Config, {}, {}, None)


def test_a_rule_between_fields_tells_where_they_came_from() -> None:
    text = refusal('[peers]\nbootstrap = ["a", "b"]', {"PRIME_PEERS_PEERS_MAX": "1"})
    assert "2 bootstrap peers" in text
    assert "peers.peers_max from PRIME_PEERS_PEERS_MAX, peers.bootstrap from the given TOML line 2" in text


def test_a_key_seen_twice_by_the_scan_gets_no_line() -> None:
    text = refusal('motto = """\nrole = 1\n"""\nrole = "boss"')
    assert "(from the given TOML);" in text


def test_file_problems_are_explained(tmp_path: Path) -> None:
    missing, folder, binary, large = tmp_path / "no.toml", tmp_path, tmp_path / "b.toml", tmp_path / "l.toml"
    binary.write_bytes(b"\xff\xfe")
    large.write_bytes(b"#" * (2**20 + 1))
    for path, words in [(missing, "No such file"), (folder, "directory"), (binary, "UTF-8"), (large, "limit is")]:
        with pytest.raises(ConfigError, match=words) as caught:
            load_config(Config, FOLDER, {}, path)
        assert str(path) in str(caught.value)


def test_a_secret_in_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "c.toml"
    path.write_text('[wallet]\npassphrase = "correct horse"')
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        load_config(Config, FOLDER, {}, path)
    path.chmod(0o600)
    assert load_config(Config, FOLDER, {}, path).wallet.passphrase == Secret("correct horse")


def test_description_shows_value_and_source_but_no_secret() -> None:
    environ = {"PRIME_WALLET_PASSPHRASE": "correct horse", "PRIME_NAME": ""}
    lines = describe_config(resolve_config(Config, FOLDER, environ, b"is_public = true"))
    assert "folder = 'data'  (--folder)" in lines
    assert "is_public = true  (the given TOML line 1)" in lines
    assert "name = nothing  (PRIME_NAME)" in lines
    assert "peers.ports = [4001]  (default)" in lines
    assert "wallet.passphrase = ***  (PRIME_WALLET_PASSPHRASE)" in lines
    assert "horse" not in "".join(lines)


def parse(*argv: str) -> Config:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("command", nargs="?")
    add_flags(parser, Config)
    return load_config(Config, read_flags(parser.parse_args(list(argv)), Config), {}, None)


def test_flags_are_made_from_the_config() -> None:
    config = parse("--folder", "d", "--is-public", "--peers-ports", "1", "--peers-ports", "2", "--role", "relay")
    assert (config.is_public, config.peers.ports, config.role) == (True, (1, 2), Role.RELAY)
    assert parse("--folder", "d", "--no-is-public").is_public is False
    with pytest.raises(ConfigError, match="--peers-peers-max"):
        parse("--folder", "d", "--peers-peers-max", "0")


def test_help_shows_the_text_below_the_field() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Config, show_all=True)
    text = " ".join(parser.format_help().split())
    assert "Open sessions at once. Each costs about 2 % of a GiB." in text
    assert "from 1 to 100; PRIME_PEERS_PEERS_MAX" in text
    assert "passphrase" not in text


def test_a_secret_is_no_flag() -> None:
    assert "other users can see a command line" in refusal(wallet__passphrase="correct horse")


def test_help_shows_the_common_flags_and_help_all_the_others() -> None:
    common = {"where": ("folder",), "network": ("peers.peers_max", "peers.wait_ms")}
    short, long = argparse.ArgumentParser(), argparse.ArgumentParser()
    add_flags(short, Config, common)
    add_flags(long, Config, common, show_all=True)
    assert "--peers-wait-ms" in short.format_help()
    assert "30s, 5min, 2h" in short.format_help()
    assert "--peers-ports" not in short.format_help()
    assert "--peers-ports" in long.format_help()
    assert short.parse_args(["--peers-ports", "1"]) == argparse.Namespace(**{"peers.ports": ["1"]})


def test_sizes_and_durations_take_units() -> None:
    peers = load('[peers]\ncache_bytes_max = "40GB"', peers__wait_ms="1.5min").peers
    assert (peers.cache_bytes_max, peers.wait_ms) == (40 * 10**9, 90_000)
    assert load(environ={"PRIME_PEERS_CACHE_BYTES_MAX": "512 MiB"}).peers.cache_bytes_max == 2**29
    assert load("[peers]\nwait_ms = 5").peers.wait_ms == 5


def test_a_rendered_config_explains_every_setting_and_reads_back() -> None:
    config = load("is_public = true\n[peers]\npeers_max = 7", folder="d")
    text = render_config(config, always=("role",), never=("folder",))
    assert "# Open sessions at once. Each costs about 2 % of a GiB. (one whole number from 1 to 100)\n" in text
    assert "peers_max = 7\n" in text
    assert "\n# motto = " in text
    assert '\nrole = "worker"\n' in text
    assert "passphrase" not in text
    assert load(text, folder="d") == config


def test_a_class_without_source_has_no_help_but_works() -> None:
    namespace: dict[str, Any] = {"dataclass": dataclass, "__name__": "made"}
    exec("@dataclass(frozen=True)\nclass Made:\n    size: int = 1\n    'lost'", namespace)
    assert load_config(namespace["Made"], {"size": "2"}, {}).size == 2


def test_a_secret_shows_nowhere() -> None:
    secret = Secret("correct horse")
    wallet = Wallet(passphrase=secret, tokens=(Secret("aaaaaaaa"),))
    assert f"{secret} {secret!r} {secret:>5} {wallet}".count("horse") == 0
    assert copy.deepcopy(secret) is secret
    assert secret != "correct horse"
    assert len({secret, Secret("correct horse"), Secret("other one")}) == 2
    assert [found.reveal() for found in list_secrets(Config(folder=Path("d"), wallet=wallet, peers=Peers()))] == [
        "correct horse",
        "aaaaaaaa",
    ]
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(secret)
