"""One party of bench/shardcast.py that runs the public `shardcast` package, in that package's own environment.

Clients share a file in the package's folder and one in the temporary folder; so each client is given a copy of the
package, and the caller starts them one after the other. Otherwise they would break each other.
"""

import json
import sys
import time
from pathlib import Path

# This folder holds a shardcast.py of its own.
sys.path.remove(str(Path(__file__).parent))


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def main(role: str, folder: str, port: int, upstream: int) -> None:
    servers = [f"http://127.0.0.1:{upstream}"]
    if role == "origin":
        from shardcast.origin_server import OriginServer

        origin = OriginServer(folder, port)
        say(ready=True)
        path = sys.stdin.readline().strip()
        say(version=origin.broadcast(path))
    elif role == "relay":
        from shardcast.middle_node import MiddleNode

        # Looks for news every second, not every 30 as it does by default.
        MiddleNode(servers, folder, port, check_interval=1)
        say(ready=True)
    else:
        from shardcast.client_node import ClientNode

        client = ClientNode(servers, folder)
        say(ready=True)
        sys.stdin.readline()
        while not (versions := client.list_available_versions()):
            time.sleep(0.1)
        say(have=client.download_version(max(versions)))
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
