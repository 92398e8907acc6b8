"""`prime-trainer keys` and `prime-trainer model`: make what a trainer needs before its first run."""

import getpass
import secrets
import sys
from pathlib import Path

from prime_protocol.errors import LocalError
from prime_protocol.wire.ids import checksum_address
from prime_runtime.keys import PASSWORD_CHARS_MIN, create_key_file, read_key_address, resolve_password
from prime_trainer.model.tiny import make_recurrent_checkpoint, make_tiny_checkpoint


def show_key(path: Path) -> str:
    return checksum_address(read_key_address(path))


def make_key(path: Path, password_file: Path | None) -> str:
    """Write a new key; what to tell its owner."""
    key = create_key_file(path, ask_password(password_file), secrets.token_bytes)
    kept = f"written to {path}. Keep a copy of it and of its password: a run has one trainer, this key."
    return f"address  {checksum_address(key.node)}\n{kept}"


def ask_password(file: Path | None) -> str:
    """The password of a new key: of the file, or typed twice."""
    if file is not None or not sys.stdin.isatty():
        return resolve_password(None, file)
    password = getpass.getpass("password for the new key: ")
    if getpass.getpass("again: ") != password:
        raise LocalError("the two passwords differ")
    if len(password) < PASSWORD_CHARS_MIN:
        raise LocalError(f"the password has {len(password)} characters, it needs at least {PASSWORD_CHARS_MIN}")
    return password


def make_model(folder: Path, *, seed: int, is_recurrent: bool) -> str:
    """Write a tiny model; what to tell its owner."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise LocalError(f"{folder} exists and is not overwritten; choose another folder with --out")
    make = make_recurrent_checkpoint if is_recurrent else make_tiny_checkpoint
    make(folder, seed=seed)
    return f"written to {folder}: config.json, tokenizer.json and random weights"
