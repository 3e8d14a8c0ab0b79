"""Runs embedded services in a process of its own until its input ends; tests start it, ask it and kill it.

`python holder.py STATE [WAIT]` writes one JSON line when ready: `{"addresses": {...}, "pids": {name: pid}}`, or exits
with status 3 and the refusal on the error stream.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from multica.embedded.errors import EmbeddedError
    from multica.embedded.services import Services

    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    wait = float(sys.argv[2]) if len(sys.argv) > 2 else 0.5
    try:
        with Services(Path(sys.argv[1]), wait=wait) as services:
            pids = {service.name: service.child.pid for service in services.running() if service.child}
            sys.stdout.write(json.dumps({"addresses": services.addresses(), "pids": pids}) + "\n")
            sys.stdout.flush()
            sys.stdin.read()
    except EmbeddedError as error:
        sys.stderr.write(f"refused: {error}\n")
        sys.exit(3)


if __name__ == "__main__":
    main()
