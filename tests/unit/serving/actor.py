"""The processes of a run, for tests to kill: an owner, as Snakemake is, and the clients it starts.

``actor.py owner PROJECT``: each line of standard input is the order of a client; ends with it.
``actor.py client ORDER``: has a lease until the order's ``release`` file exists; tells in ``out``.
``actor.py turn PROJECT`` and ``actor.py lock PROJECT [-n]``: take it, say so, and wait for input.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from leverbench.serving import locks
from leverbench.serving.lease import ServerError, lease
from leverbench.serving.owner import clear_stale_lock, hold_owner, take_turn
from leverbench.serving.spec import ServerSpec


def owner(project: str) -> None:
    hold_owner(Path(project))
    print("holding", flush=True)
    clients = [
        subprocess.Popen([sys.executable, __file__, "client", line], stdin=subprocess.DEVNULL)
        for line in sys.stdin
    ]
    for client in clients:
        client.wait()


def client(text: str) -> None:
    order = json.loads(text)
    out, release = Path(order["out"]), Path(order["release"])

    def tell(**fields: Any) -> None:
        temporary = out.with_suffix(".tmp")
        temporary.write_text(json.dumps({"pid": os.getpid(), **fields}))
        temporary.replace(out)

    try:
        with lease(
            ServerSpec(**order["spec"]),
            measured=order["measured"],
            timeout_s=order["timeout_s"],
        ) as server:
            if order["load_s"]:
                subprocess.Popen(["sleep", str(order["load_s"])], pass_fds=server.inherited)
            told = {"state": locks.read_state(server.device), "launched_here": server.launched_here}
            tell(status="ready", processes=server.processes(), **told)
            while not release.exists():
                server.check_alive()
                time.sleep(0.02)
        tell(status="done", **told)
    except ServerError as error:
        tell(status="error", cause=error.cause, text=str(error), exit_code=error.exit_code)


def hold(action: Any, project: str) -> None:
    action(Path(project))
    print("holding", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    {
        "owner": owner,
        "client": client,
        "turn": lambda project: hold(take_turn, project),
        "lock": lambda project: hold(clear_stale_lock, project),
    }[sys.argv[1]](sys.argv[2])
