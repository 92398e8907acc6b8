"""Write tests/vectors/keystore.json: the two files of the Web3 Secret Storage definition, and some by eth-keyfile.

python tests/oracle/make_keystore_vectors.py
"""

import json
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from unittest import mock

import eth_keyfile
from eth_keyfile import keyfile

VECTORS = Path(__file__).parents[1] / "vectors" / "keystore.json"
PUBLIC_SECRET = "7a28b5ba57c53603b0b07b56bba752f7784bf506fa95edc395f5cf6c7514fe9d"
PUBLIC_PBKDF2 = {
    "crypto": {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": "6087dab2f9fdbbfaddc31a909735c1e6"},
        "ciphertext": "5318b4d5bcd28de64ee5559e671353e16f075ecae9f99c7a79a38af5f869aa46",
        "kdf": "pbkdf2",
        "kdfparams": {
            "c": 262144,
            "dklen": 32,
            "prf": "hmac-sha256",
            "salt": "ae3cd4e7013836a3df6bd7241b12db061dbe2c6785853cce422d148a624ce0bd",
        },
        "mac": "517ead924a9d0dc3124507e3393d175ce3ff7c1e96529c6c555ce9e51205e9b2",
    },
    "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
    "version": 3,
}
PUBLIC_SCRYPT = {
    "crypto": {
        "cipher": "aes-128-ctr",
        "cipherparams": {"iv": "83dbcc02d8ccb40e466191a123791e0e"},
        "ciphertext": "d172bf743a674da9cdad04534d56926ef8358534d458fffccd4e6ad2fbde479c",
        "kdf": "scrypt",
        "kdfparams": {
            "dklen": 32,
            "n": 262144,
            "p": 8,
            "r": 1,
            "salt": "ab0c7876052600dd703518d6fc3fe8984592145b591fc8fb5c6d43190334ba19",
        },
        "mac": "2103ac29920d71da29f15d75b4a16dbe95cfd7ff8faea1056c33131d846e3097",
    },
    "id": "3198bc9c-6672-5ab3-d995-4942343ae5b6",
    "version": 3,
}


class Dice:
    """Bytes that are the same at every run."""

    def __init__(self):
        self.calls = 0

    def __call__(self, size):
        self.calls += 1
        return sha256(b"keystore %d" % self.calls).digest()[:size]


def made(kdf, secret, password, iterations, dice):
    with mock.patch.object(keyfile.Random, "get_random_bytes", dice):
        file = eth_keyfile.create_keyfile_json(secret, password, kdf=kdf, iterations=iterations)
    file["id"] = "00000000-0000-4000-8000-000000000001"
    return file


def damaged(file, *path_and_value):
    *path, last, value = path_and_value
    copy = json.loads(json.dumps(file))
    inner = copy
    for name in path:
        inner = inner[name]
    inner[last] = value
    return copy


def get_refused(file):
    return {
        "another version": damaged(file, "version", 1),
        "another cipher": damaged(file, "crypto", "cipher", "aes-256-gcm"),
        "another kdf": damaged(file, "crypto", "kdf", "argon2"),
        "a ciphertext that was changed": damaged(file, "crypto", "ciphertext", "00" * 32),
        "a ciphertext that is no hex": damaged(file, "crypto", "ciphertext", "zz"),
        "a mac that was changed": damaged(file, "crypto", "mac", "00" * 32),
        "an initialisation vector too short": damaged(file, "crypto", "cipherparams", "iv", "00"),
        "an initialisation vector that was changed": damaged(file, "crypto", "cipherparams", "iv", "00" * 16),
        "an address that is not the key's": damaged(file, "address", "00" * 20),
        "an address too short": damaged(file, "address", "00"),
        "an address that is a number": damaged(file, "address", 5),
        "a derived key of another length": damaged(file, "crypto", "kdfparams", "dklen", 64),
        "more memory than allowed": damaged(file, "crypto", "kdfparams", "n", 2**40),
        "n that is no power of two": damaged(file, "crypto", "kdfparams", "n", 1000),
        "n below zero": damaged(file, "crypto", "kdfparams", "n", -2),
        "n and r below zero": damaged(damaged(file, "crypto", "kdfparams", "n", -2), "crypto", "kdfparams", "r", -8),
        "n past every number": damaged(file, "crypto", "kdfparams", "n", 1e308),
        "no salt": damaged(file, "crypto", "kdfparams", {"dklen": 32}),
        "parameters that are a list": damaged(file, "crypto", "kdfparams", []),
        "crypto that is a text": damaged(file, "crypto", "text"),
    }


def main():
    dice = Dice()
    secret = sha256(b"keystore secret").digest()
    scrypt = made("scrypt", secret, b"correct horse", 2**10, dice)
    pbkdf2 = made("pbkdf2", secret, "pässword 漢".encode(), 1000, dice)
    ethers = {"Crypto" if name == "crypto" else name: value for name, value in scrypt.items()}
    ethers["address"] = "0x" + ethers["address"]
    vectors = {
        "made_by": f"eth-keyfile {version('eth-keyfile')}, tests/oracle/make_keystore_vectors.py; "
        "the first and the last are those of the Web3 Secret Storage definition",
        "accepted": [
            {"password": "testpassword", "secret": PUBLIC_SECRET, "file": PUBLIC_PBKDF2},
            {"password": "correct horse", "secret": secret.hex(), "file": scrypt},
            {"password": "pässword 漢", "secret": secret.hex(), "file": pbkdf2},
            {"password": "correct horse", "secret": secret.hex(), "file": ethers},
        ],
        "refused_password": "correct horse",
        "refused": get_refused(scrypt) | {"n of 2^16 or more with r of 1": PUBLIC_SCRYPT},
    }
    VECTORS.write_text(json.dumps(vectors, indent=1) + "\n")


if __name__ == "__main__":
    main()
