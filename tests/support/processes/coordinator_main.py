"""A coordinator as a process of its own: `python coordinator_main.py FOLDER`. Settings are the folder's."""

import asyncio
import os
import sys
from pathlib import Path

from prime_coordinator.app import run
from prime_coordinator.config import resolve_coordinator_config
from prime_protocol.errors import LocalError
from prime_runtime.logs import LogConfig, LogFormat, configure_logging
from prime_runtime.redaction import Secret

PASSWORD = "correct horse battery staple"


def main(folder: Path) -> int:
    secrets = {name: value for name, value in os.environ.items() if name.startswith("PRIME_S3_")}
    config = resolve_coordinator_config(folder, {}, {"PRIME_PASSWORD": PASSWORD, **secrets}).config
    configure_logging(LogConfig(format=LogFormat.JSON), stream=sys.stderr, secrets=[Secret(PASSWORD)])
    try:
        return asyncio.run(run(config))
    except LocalError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
