"""One page over HTTP, for this machine alone.

A page of some other site can make a browser ask 127.0.0.1, and by a name of its own that leads there even read the
answer (DNS rebinding): so whoever asks must call the server by its own address.
"""

import socket
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer

HOST = "127.0.0.1"
PATIENCE = 10.0
"""Seconds that a connection may last."""

MOST = 64
"""Connections at once; of more, the oldest ends."""


class Server(ThreadingTCPServer):
    """A server of one page, at one address that only this machine reaches; `serve_forever` answers.

    page  the page, as HTML
    port  where it listens; 0 for a free one

    Raises ValueError for a port that is none or is taken.

    >>> with Server("<!doctype html>") as server:
    ...     server.url.startswith("http://127.0.0.1:")
    True
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 32

    def __init__(self, page: str = "", port: int = 0) -> None:
        if not 0 <= port < 65_536:
            raise ValueError(f"a port is a number from 0 to 65535, where 0 takes a free one; got {port}")
        self.page, self.since = page.encode(), dict[socket.socket, float]()
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            raise ValueError(
                f"port {port} of {HOST} cannot be had ({error.strerror}); name another, or none for a free one"
            ) from error

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def process_request(self, request, client_address) -> None:
        self.since[request] = time.monotonic()
        super().process_request(request, client_address)

    def service_actions(self) -> None:
        """End what has lasted too long, however it is kept alive, and the oldest of too many; called all the time."""
        for newer, (request, since) in enumerate(reversed(list(self.since.items()))):
            if newer >= MOST or time.monotonic() - since > PATIENCE:
                # Its thread wakes, finds it closed, and takes it from the list.
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request) -> None:
        self.since.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request, client_address) -> None:
        """Nothing: a reader who went away is no news."""


class Handler(BaseHTTPRequestHandler):
    """The page for who asks for it by its address, and a refusal for all else."""

    server_version, sys_version = "posenc", ""

    @property
    def served(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_GET(self) -> None:
        if not self.refused():
            self.send_head()
            self.wfile.write(self.served.page)

    def do_HEAD(self) -> None:
        if not self.refused():
            self.send_head()

    def refused(self) -> bool:
        names = {f"{name}:{self.served.port}" for name in (HOST, "localhost")}
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or hosts[0].lower() not in names:
            self.send_error(421, explain=f"This server answers to {self.served.url} alone.")
        elif self.path != "/":
            self.send_error(404, explain=f"There is one page: {self.served.url}")
        else:
            return False
        return True

    def send_head(self) -> None:
        self.send_response(200)
        for name, value in {
            "Content-Type": "text/html; charset=utf-8",
            "Content-Length": str(len(self.served.page)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
            "Cross-Origin-Resource-Policy": "same-origin",
        }.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal says where the page is, and no more."""
