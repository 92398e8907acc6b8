"""The password of a key: from the settings, or from a file that they name. Asking on a terminal is for cli.py."""

from pathlib import Path

from prime_protocol.errors import LocalError
from prime_runtime.secret import Secret

PASSWORD_CHARS_MIN = 8


def read_password(password: Secret | None, file: Path | None) -> str:
    """LocalError where there is none, or one that is too short to guard anything."""
    if password is not None:
        return password.reveal()
    if file is None:
        raise LocalError("the key's password is missing: set PRIME_PASSWORD, or password_file to a file that holds it")
    text = read_first_line(file)
    if len(text) < PASSWORD_CHARS_MIN:
        raise LocalError(f"the password in {file} is shorter than {PASSWORD_CHARS_MIN} characters")
    return text


def read_first_line(file: Path) -> str:
    """A password as it stands in a file, however short."""
    try:
        return file.read_text().partition("\n")[0]
    except (OSError, UnicodeDecodeError) as error:
        raise LocalError(f"cannot read the password file {file}: {error}") from None
