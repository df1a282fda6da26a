"""A pod's server in a thread of the test: it answers as the contract server does, at once.

For tests whose subject is the operator and not the worker: no process is started.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

from tests.support import contract_server


class PodServer:
    """What the kubelet needs of a container's process, and where it listens."""

    def __init__(self, *, exits: bool = False) -> None:
        self.returncode: int | None = None
        self._runs = threading.Event()
        self._runs.set()
        self._http: ThreadingHTTPServer | None = None
        self.port = 1
        self.stdout: Iterator[str] = iter(())
        if exits:
            self.returncode = 1
            self.stdout = iter(["this worker ends at once\n"])
            return
        runs = self._runs

        class Handler(contract_server.Handler):
            def do_GET(self) -> None:  # noqa: N802
                runs.wait(30)
                super().do_GET()

            def do_POST(self) -> None:  # noqa: N802
                runs.wait(30)
                super().do_POST()

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.port = int(self._http.server_address[1])
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout_s: float) -> None:
        """It has ended when `receive` returned."""

    def receive(self, number: int) -> None:
        """A signal, as a process takes it."""
        if number == signal.SIGSTOP:
            self._runs.clear()
        elif number == signal.SIGCONT:
            self._runs.set()
        elif self.returncode is None and self._http is not None:
            self.returncode = -number
            self._http.shutdown()
            self._http.server_close()
            contract_server.STATE["asleep"] = False
            self._runs.set()
