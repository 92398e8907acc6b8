"""Signed notes against the public vectors, and every way a line can be wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from prime_protocol.constants import COSIGNATURE_TIME_S_MAX, KEY_NAME_BYTES_MAX, NOTE_BYTES_MAX, NOTE_SIGNATURES_MAX
from prime_protocol.errors import RemoteError
from prime_protocol.log.tree_head import (
    NoteSignature,
    SignatureKind,
    SignedNote,
    VerifierKey,
    cosign_note,
    encode_cosigned_message,
    sign_note,
)

VECTOR: dict[str, Any] = json.loads((Path(__file__).parents[3] / "vectors" / "treehead.json").read_text())["note"]
PETER, ENOCH = (VerifierKey.parse(key) for key in VECTOR["keys"])
PETERS_KEY = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(VECTOR["seed"]))
TEXT: str = VECTOR["text"]
SIGNED = VECTOR["signed"].encode()
PETERS_LINE = VECTOR["signed"].removeprefix(TEXT + "\n")


def test_the_public_key_prints_as_it_was_parsed() -> None:
    assert [str(PETER), str(ENOCH)] == VECTOR["keys"]
    assert VerifierKey.of("PeterNeumann", PETERS_KEY) == PETER


def test_the_public_note_is_reproduced_byte_for_byte() -> None:
    note = SignedNote(TEXT, (sign_note(TEXT, "PeterNeumann", PETERS_KEY),))
    assert note.encode() == SIGNED
    assert SignedNote.parse(SIGNED) == note


def test_only_trusted_signers_are_reported() -> None:
    note = SignedNote.parse(VECTOR["signed_by_both"].encode())
    assert [signed.key for signed in note.verify_signatures([PETER])] == [PETER]
    assert [signed.key for signed in note.verify_signatures([ENOCH, PETER])] == [PETER, ENOCH]
    assert note.verify_signatures([]) == []


def test_a_key_that_shares_only_its_name_is_another_key() -> None:
    stranger = VerifierKey("PeterNeumann", SignatureKind.NOTE, ENOCH.public_key)
    assert SignedNote.parse(SIGNED).verify_signatures([stranger]) == []


def test_of_two_trusted_keys_with_one_name_and_id_either_may_have_signed() -> None:
    twin = VerifierKey("PeterNeumann", SignatureKind.NOTE, ENOCH.public_key)
    object.__setattr__(twin, "key_id", PETER.key_id)  # what four bytes of hash allow an attacker to find
    assert [signed.key for signed in SignedNote.parse(SIGNED).verify_signatures([twin, PETER])] == [PETER]


@pytest.mark.parametrize("cut", [0, 4, 63, 65])
def test_a_bad_signature_of_a_trusted_key_spoils_the_note(cut: int) -> None:
    good = sign_note(TEXT, "PeterNeumann", PETERS_KEY)
    bad = NoteSignature(good.name, good.key_id, (good.signature + b"\x00")[:cut] or b"\x00" * 64)
    with pytest.raises(RemoteError, match=r"^note\.signatures\[1\]: is not a valid"):
        SignedNote(TEXT, (good, bad)).verify_signatures([PETER])


def test_a_changed_text_is_refused() -> None:
    with pytest.raises(RemoteError, match="is not a valid signature of PeterNeumann"):
        SignedNote.parse(SIGNED.replace(b"answer", b"Answer")).verify_signatures([PETER])


WITNESS = VerifierKey.of("w", PETERS_KEY, SignatureKind.COSIGNATURE)


def test_a_cosignature_carries_its_time() -> None:
    note = SignedNote(TEXT, (cosign_note(TEXT, "w", PETERS_KEY, time_s=1_700_000_000),))
    (signed,) = SignedNote.parse(note.encode()).verify_signatures([WITNESS])
    assert (signed.key, signed.time_s) == (WITNESS, 1_700_000_000)


def test_a_cosignature_with_another_time_is_refused() -> None:
    good = cosign_note(TEXT, "w", PETERS_KEY, time_s=COSIGNATURE_TIME_S_MAX)
    assert SignedNote(TEXT, (good,)).verify_signatures([WITNESS])
    for time in ((5).to_bytes(8, "big"), (COSIGNATURE_TIME_S_MAX + 1).to_bytes(8, "big"), b""):
        bad = NoteSignature(good.name, good.key_id, time + good.signature[8:])
        with pytest.raises(RemoteError, match="is not a valid signature of w"):
            SignedNote(TEXT, (bad,)).verify_signatures([WITNESS])


def test_a_cosignature_past_the_end_of_time_is_refused_although_its_key_signed_it() -> None:
    late = COSIGNATURE_TIME_S_MAX + 1
    signature = late.to_bytes(8, "big") + PETERS_KEY.sign(encode_cosigned_message(TEXT, late))
    with pytest.raises(RemoteError, match="is not a valid signature of w"):
        SignedNote(TEXT, (NoteSignature("w", WITNESS.key_id, signature),)).verify_signatures([WITNESS])


def test_a_cosignature_is_never_a_logs_signature() -> None:
    good = cosign_note(TEXT, "w", PETERS_KEY, time_s=1)
    log = VerifierKey.of("w", PETERS_KEY)
    assert SignedNote(TEXT, (good,)).verify_signatures([log]) == []
    posing = NoteSignature("w", log.key_id, good.signature[8:])
    with pytest.raises(RemoteError):
        SignedNote(TEXT, (posing,)).verify_signatures([log])


@pytest.mark.parametrize("key", VECTOR["refused_keys"])
def test_the_public_bad_keys_are_refused(key: str) -> None:
    with pytest.raises(RemoteError, match=r"^verifier_key"):
        VerifierKey.parse(key)


def test_every_part_of_a_key_text_matters() -> None:
    text = VECTOR["keys"][0]
    slices = {text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)} - {text}
    bumped = {text[:i] + chr(ord(letter) + 1) + text[i + 1 :] for i, letter in enumerate(text)}
    for bad in slices | bumped:
        with pytest.raises(RemoteError):
            VerifierKey.parse(bad)


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("name", "verifier_key:"),
        ("name+0000000G+AA==", "verifier_key.key_id"),
        ("name+00000000+é", "verifier_key.public_key"),
        ("name+00000000+A", "verifier_key.public_key"),
        ("name+00000000+", "verifier_key.kind"),
        ("name+00000000+AB==", "verifier_key.public_key: is not canonical"),
        ("name+00000000+AQ==", "verifier_key.public_key: is 0 bytes"),
        ("\ud800+00000000+" + VECTOR["keys"][0].split("+", 2)[2], "verifier_key.name"),
        ("+00000000+" + VECTOR["keys"][0].split("+", 2)[2], "verifier_key.name"),
    ],
)
def test_a_bad_key_text_is_refused_by_field(key: str, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        VerifierKey.parse(key)
    assert str(caught.value).startswith(field)


@pytest.mark.parametrize("name", ["", "a b", "a\u2003b", "a+b", "a\nb", "a\x00b", "x" * (KEY_NAME_BYTES_MAX + 1)])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(RemoteError, match=r"^verifier_key\.name"):
        VerifierKey(name, SignatureKind.NOTE, PETER.public_key)


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        (b"", "note:"),
        (TEXT.encode(), "note:"),
        (TEXT.encode() + b"\n", "note.signatures:"),
        (SIGNED[:-1], "note.signatures:"),
        (b"\x01" + SIGNED, "note:"),
        (b"\xff" + SIGNED, "note:"),
        (SIGNED.replace(b"\n", b"\r\n"), "note:"),
        (SIGNED + b"Unexpected line.\n", "note.signatures[1]:"),
        (SIGNED + "— lonely\n".encode(), "note.signatures[1]:"),
        (SIGNED + "— a b c\n".encode(), "note.signatures[1]:"),
        (SIGNED + "—  AAAAAAA=\n".encode(), "note.signatures[1].name:"),
        (SIGNED + "— a AAAAAA==\n".encode(), "note.signatures[1]:"),
        (SIGNED + "— a AAAAAAB=\n".encode(), "note.signatures[1]:"),
        (SIGNED + PETERS_LINE.encode() * NOTE_SIGNATURES_MAX, "note.signatures:"),
        (SIGNED + b"x" * NOTE_BYTES_MAX, "note:"),
    ],
)
def test_a_malformed_note_is_refused_by_field(raw: bytes, field: str) -> None:
    with pytest.raises(RemoteError) as caught:
        SignedNote.parse(raw)
    assert str(caught.value).startswith(field)


def test_a_text_may_hold_empty_lines() -> None:
    text = "one\n\ntwo\n\n\n"
    note = SignedNote(text, (sign_note(text, "PeterNeumann", PETERS_KEY),))
    assert SignedNote.parse(note.encode()) == note
    assert note.verify_signatures([PETER])


def test_as_many_signatures_as_allowed_are_read() -> None:
    raw = TEXT.encode() + b"\n" + PETERS_LINE.encode() * NOTE_SIGNATURES_MAX
    assert len(SignedNote.parse(raw).signatures) == NOTE_SIGNATURES_MAX
