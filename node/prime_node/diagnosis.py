"""A bundle that helps somebody else to find a fault: plain files, without secrets, signed by the node it is about.

Every text goes through the redactor, whatever made it. Keys, passwords and the door's token are never read into it.
"""

import io
import json
import tarfile
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path

from prime_protocol.errors import LocalError
from prime_protocol.ids import Digest
from prime_protocol.signing import WalletKey
from prime_runtime.redaction import Redactor
from prime_runtime.secret import Secret

FILE_CHARS_MAX = 4_000_000
PREFIX = b"prime-swarm diagnosis\n"
LISTING = "CONTENTS.json"
SIGNATURE = "SIGNATURE.txt"


def redact(files: Mapping[str, str], secrets: Iterable[Secret]) -> dict[str, bytes]:
    """The same files, line by line without secrets and without anything that looks like a private key."""
    redactor = Redactor(secrets)
    clean = {}
    for name, text in files.items():
        lines = text[:FILE_CHARS_MAX].split("\n")
        clean[name] = "\n".join(redactor.clean(line, FILE_CHARS_MAX) for line in lines).encode()
    return clean


def write_bundle(path: Path, files: Mapping[str, bytes], key: WalletKey | None) -> list[str]:
    """One tar.gz, never over another file. The signature covers the list of digests, and so every file."""
    listing = json.dumps({name: sha256(data).hexdigest() for name, data in sorted(files.items())}, indent=2).encode()
    signed = {**files, LISTING: listing}
    if key is not None:
        digest = Digest(sha256(PREFIX + listing).digest())
        signed[SIGNATURE] = f"{key.node}\n{key.sign(digest)}\n".encode()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as bundle:
        for name, data in signed.items():
            entry = tarfile.TarInfo(f"prime-node-diagnosis/{name}")
            entry.size = len(data)
            bundle.addfile(entry, io.BytesIO(data))
    try:
        with path.open("xb") as file:
            file.write(packed.getvalue())
    except FileExistsError:
        raise LocalError(f"{path} exists and is kept; choose another name with --out") from None
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from None
    return list(signed)
