"""Only what the run's trainer signed, for this run, is a manifest."""

from dataclasses import replace

import pytest

from prime_lab.attacks.relay_attacks import NETWORK, RUN, TRAINER, make_key
from prime_protocol.errors import RemoteError
from prime_protocol.weights.manifest import MANIFEST_KIND, Manifest, open_manifest, seal_manifest
from prime_protocol.weights.manifest_builder import SourceFile, build_keyframe
from prime_protocol.weights.safetensors_header import get_header_bytes, parse_safetensors_header
from prime_protocol.weights.transfer import encode_bitmap
from prime_protocol.wire.codec import encode
from prime_protocol.wire.envelope import seal_envelope
from prime_protocol.wire.ids import NetworkId, RunId, Step
from prime_protocol.wire.signing import WalletKey

HEAD = b'{"a":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}'
FILE = len(HEAD).to_bytes(8, "little") + HEAD + bytes(range(8))
HEADER = parse_safetensors_header(FILE[: get_header_bytes(FILE[:8])], file_bytes=len(FILE))
MANIFEST = build_keyframe(RUN, Step(3), [SourceFile(name="m.safetensors", header=HEADER, data=FILE)])


def make_frame(key: WalletKey, manifest: Manifest, kind: str = MANIFEST_KIND, run: RunId | None = RUN) -> bytes:
    body = encode(manifest)
    return seal_envelope(key, kind=kind, body=body, network=NETWORK, run=run, sequence=1, issued_at_ms=1, life_ms=1000)


def test_what_the_trainer_sealed_opens_at_any_time() -> None:
    signed = seal_manifest(TRAINER, MANIFEST, network=NETWORK, sequence=7, now_ms=1)
    assert signed.manifest == MANIFEST
    assert signed.root == MANIFEST.root
    assert open_manifest(signed.frame, network=NETWORK, run=RUN, trainer=TRAINER.node) == signed


@pytest.mark.parametrize(
    ("frame", "field"),
    [
        (make_frame(make_key("stranger"), MANIFEST), "Payload.sender"),
        (make_frame(TRAINER, MANIFEST, kind="heartbeat"), "Payload.kind"),
        (make_frame(TRAINER, MANIFEST, run=None), "Payload.run"),
        (make_frame(TRAINER, replace(MANIFEST, run=RunId("other"))), "Manifest.run"),
        (make_frame(TRAINER, MANIFEST)[:-1], "Payload"),
    ],
)
def test_anything_else_is_refused(frame: bytes, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        open_manifest(frame, network=NETWORK, run=RUN, trainer=TRAINER.node)
    assert caught.value.field.startswith(field)


def test_a_manifest_for_another_network_is_refused() -> None:
    with pytest.raises(RemoteError, match="network"):
        open_manifest(make_frame(TRAINER, MANIFEST), network=NetworkId("mainnet"), run=RUN, trainer=TRAINER.node)


def test_a_bitmap_has_as_many_bytes_as_its_shards_take() -> None:
    assert encode_bitmap(0b1_0000_0001, 9) == b"\x01\x01"
    assert encode_bitmap(0, 8) == b"\x00"
