"""A wallet key encrypted at rest: the Web3 Secret Storage format, version 3, that other wallets read too.

Salt, initialisation vector and file id come in as arguments; the caller draws them.
"""

import hashlib
import hmac
import json
from typing import Any

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from prime_protocol.constants import KEYSTORE_BYTES_MAX, KEYSTORE_PBKDF2_ROUNDS_MAX, KEYSTORE_SCRYPT_MEMORY_BYTES_MAX
from prime_protocol.errors import LocalError, RemoteError
from prime_protocol.wire.ids import NodeId
from prime_protocol.wire.signing import WalletKey, keccak
from prime_protocol.wire.strict_json import parse_json


def encrypt_key(key: WalletKey, password: str, *, salt: bytes, iv: bytes, file_id: str, scrypt_n: int) -> str:
    """The keystore file of a key."""
    kdf = {"dklen": 32, "n": scrypt_n, "p": 1, "r": 8, "salt": salt.hex()}
    derived = _derive(password, "scrypt", kdf)
    sealed = _aes(derived, iv, key.secret())
    crypto = {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": iv.hex()},
        "ciphertext": sealed.hex(),
        "kdf": "scrypt",
        "kdfparams": kdf,
        "mac": keccak(derived[16:] + sealed).hex(),
    }
    return json.dumps({"address": key.node.hex(), "crypto": crypto, "id": file_id, "version": 3}, indent=2)


def decrypt_key(text: str, password: str) -> WalletKey:
    """The key in a keystore file. A wrong password and a damaged file are told apart as far as the format can."""
    try:
        document = _parse(text)
        crypto = document["crypto"]
        sealed, iv = bytes.fromhex(crypto["ciphertext"]), bytes.fromhex(crypto["cipherparams"]["iv"])
        if len(iv) != 16:
            raise ValueError(f"the initialisation vector has {len(iv)} bytes, expected 16")
        mac = bytes.fromhex(crypto["mac"])
        claimed = NodeId(bytes.fromhex(document["address"].removeprefix("0x"))) if "address" in document else None
        derived = _derive(password, crypto["kdf"], crypto["kdfparams"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RemoteError) as error:
        raise LocalError(f"the keystore file is damaged ({error!r}); restore it from your backup") from None
    if not hmac.compare_digest(mac, keccak(derived[16:32] + sealed)):
        raise LocalError("wrong password, or the keystore file is damaged")
    key = WalletKey.from_secret(_aes(derived, iv, sealed))
    if claimed not in (None, key.node):
        raise LocalError(f"the keystore file names {claimed} but holds the key of {key.node}; restore your backup")
    return key


def read_keystore_address(text: str) -> NodeId:
    """The address that a keystore names. Only its password proves that it holds the key."""
    try:
        return NodeId(bytes.fromhex(_parse(text)["address"].removeprefix("0x")))
    except (KeyError, TypeError, ValueError, AttributeError, RemoteError) as error:
        raise LocalError(f"the keystore file is damaged or names no address ({error!r})") from None


def _parse(text: str) -> dict[str, Any]:
    if len(text) > KEYSTORE_BYTES_MAX:
        raise ValueError(f"it is larger than {KEYSTORE_BYTES_MAX} bytes")
    read: Any = parse_json("keystore", text.encode())
    document = {name.lower(): value for name, value in read.items()}  # some wallets write "Crypto"
    if document["version"] != 3 or document["crypto"]["cipher"] != "aes-128-ctr":
        raise ValueError("only version 3 with aes-128-ctr is read")
    return document


def _derive(password: str, name: str, params: dict[str, Any]) -> bytes:
    """32 bytes: 16 to encrypt with, 16 to authenticate with."""
    salt, length = bytes.fromhex(params["salt"]), int(params["dklen"])
    if length != 32:
        raise ValueError(f"dklen is {length}, expected 32")
    if name == "scrypt":
        n, r, p = int(params["n"]), int(params["r"]), int(params["p"])
        memory = 128 * n * r * p
        if not 0 < memory <= KEYSTORE_SCRYPT_MEMORY_BYTES_MAX:
            raise ValueError(f"scrypt with n={n} r={r} p={p} is out of bounds")
        if n.bit_length() > 16 * r:  # the bound of RFC 7914, which OpenSSL keeps and some old wallets did not
            raise LocalError(
                f"scrypt with n={n} r={r} cannot be computed here; have the wallet that wrote it export anew"
            )
        return hashlib.scrypt(password.encode(), salt=salt, n=n, r=r, p=p, dklen=32, maxmem=2 * memory + 2**20)
    rounds = int(params["c"])
    if name != "pbkdf2" or params["prf"] != "hmac-sha256" or not 0 < rounds <= KEYSTORE_PBKDF2_ROUNDS_MAX:
        raise ValueError(f"kdf {name} with {rounds} rounds is not read here")
    return hashlib.pbkdf2_hmac("sha256", password.encode(), salt, rounds, 32)


def _aes(derived: bytes, iv: bytes, data: bytes) -> bytes:
    step = Cipher(AES(derived[:16]), CTR(iv)).encryptor()
    return step.update(data) + step.finalize()
