"""What a trainer publishes: keyframes in time, the right manifest named, old versions removed, settings checked."""

from pathlib import Path
from typing import Any

import pytest

from prime_protocol.errors import LocalError
from prime_protocol.weights.manifest import ManifestKind
from prime_protocol.wire.ids import Step
from prime_runtime.http.config import ListenConfig
from prime_runtime.keys import SequenceCounter
from prime_runtime.settings.schema import ConfigError
from prime_runtime.shardcast.config import UploadConfig
from prime_runtime.shardcast.publish import publish_checkpoint
from prime_runtime.shardcast.store import ShardStore
from prime_trainer.config import OriginServerConfig, PublishConfig
from prime_trainer.publish.publisher import choose_keyframe, choose_manifest, read_trained_on, remove_old_versions
from support.gossip_examples import NETWORK, NOW_MS, RUN, digest_of, key_of
from support.processes.swarm import make_checkpoint
from support.training_samples import flip_bit

TRAINER = key_of("trainer")
GIVEN: dict[str, Any] = {
    "store": Path("store"),
    "coordinator": "http://c:8440",
    "coordinator_id": "0x" + "11" * 20,
    "run": "demo",
}


def test_a_keyframe_comes_with_every_so_many_steps_unless_somebody_says_otherwise() -> None:
    assert [choose_keyframe(Step(step), forced=None, every=3) for step in range(5)] == [True, False, False, True, False]
    assert choose_keyframe(Step(1), forced=True, every=3)
    assert not choose_keyframe(Step(0), forced=False, every=3)


def test_submissions_are_read_from_a_file_and_a_wrong_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trained-on"
    path.write_text(f"{digest_of('a')}\n\n{digest_of('b')}\n")
    assert read_trained_on(path) == (digest_of("a"), digest_of("b"))
    assert read_trained_on(None) == ()
    path.write_text(f"{digest_of('a')}\n0x12\n")
    with pytest.raises(LocalError, match="submission 2"):
        read_trained_on(path)
    with pytest.raises(LocalError, match="cannot read"):
        read_trained_on(tmp_path / "nothing")


def test_the_log_names_the_keyframe_where_there_is_one_and_old_versions_go(tmp_path: Path) -> None:
    store = ShardStore(tmp_path / "store", network=NETWORK, run=RUN, trainer=TRAINER.node)
    sequence, made = SequenceCounter(), {}
    for step in range(4):
        checkpoint = make_checkpoint(tmp_path / f"step-{step}", seed=step, values=4_000, changed=0.01 * step)
        made[step] = publish_checkpoint(
            store, checkpoint, key=TRAINER, step=Step(step), sequence=sequence, now_ms=NOW_MS, keyframe=step in (0, 2)
        )
    assert [len(each) for each in made.values()] == [1, 1, 2, 1]
    assert [choose_manifest(each).manifest.kind for each in made.values()] == [
        ManifestKind.KEYFRAME,
        ManifestKind.DELTA,
        ManifestKind.KEYFRAME,
        ManifestKind.DELTA,
    ]
    assert choose_manifest(made[2][::-1]) == choose_manifest(made[2])
    assert remove_old_versions(store, 5) == 0
    assert remove_old_versions(store, 2) == 2, "the keyframe and the delta before the one that is kept"
    assert {stock.manifest.step for stock in store.shard_sets.values()} == {2, 3}


def test_no_delta_is_made_from_a_base_that_is_not_what_was_published(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = ShardStore(tmp_path / "store", network=NETWORK, run=RUN, trainer=TRAINER.node)
    made = []
    for step in range(3):
        checkpoint = make_checkpoint(tmp_path / f"step-{step}", seed=step, values=4_000, changed=0.01 * step)
        if step == 1:
            flip_bit(max(store.checkpoint_path(made[0][0].root).glob("*.safetensors")))
        made.append(
            publish_checkpoint(
                store,
                checkpoint,
                key=TRAINER,
                step=Step(step),
                sequence=SequenceCounter(),
                now_ms=NOW_MS,
                keyframe=False,
            )
        )
    assert [[each.manifest.kind for each in step] for step in made] == [
        [ManifestKind.KEYFRAME],
        [ManifestKind.KEYFRAME],
        [ManifestKind.DELTA],
    ]
    assert "differs from what was published" in caplog.text
    assert list(store.checkpoints()) == [made[2][0].root], "nothing is built on the damaged one again"


def test_settings_of_publish_and_origin_are_checked_by_name() -> None:
    assert PublishConfig(**GIVEN).run_id == "demo"
    assert OriginServerConfig(**GIVEN).urls == ("http://127.0.0.1:0",)
    assert OriginServerConfig(**GIVEN, listen=ListenConfig(host="::1")).urls == ("http://[::1]:0",)
    assert OriginServerConfig(**GIVEN, announce=("http://a:1",)).urls == ("http://a:1",)
    with pytest.raises(ConfigError, match="coordinator_id must be"):
        PublishConfig(**GIVEN | {"coordinator_id": "0x"})
    with pytest.raises(ConfigError, match="announce is empty"):
        OriginServerConfig(**GIVEN, listen=ListenConfig(host="0.0.0.0"))
    with pytest.raises(ConfigError, match=r"upload\.address_slots"):
        UploadConfig(slots=1, address_slots=2)
