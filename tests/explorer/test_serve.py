"""The page over HTTP, asked over real sockets on this machine."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from posenc.cli import main
from posenc.explorer import serve
from posenc.explorer.serve import Server

PAGE = "<!doctype html><p>ñ"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(PAGE) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join(5)


def ask(server: Server, method: str = "GET", path: str = "/", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=5)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, body, dict(answer.getheaders())


def raw(server: Server, sent: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_the_page_is_served_at_its_address(server):
    status, body, headers = ask(server)
    assert (status, body.decode()) == (200, PAGE)
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert ask(server, Host=f"localhost:{server.port}")[0] == 200


def test_head_has_no_body(server):
    status, body, headers = ask(server, "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(PAGE.encode())))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "0.0.0.0:{port}"])
def test_another_name_is_refused(server, host):
    status, body, _ = ask(server, Host=host.format(port=server.port))
    assert status == 421 and PAGE.encode() not in body
    assert f"This server answers to {server.url} alone." in body.decode()


def test_no_name_and_two_names_are_refused(server):
    good = f"Host: 127.0.0.1:{server.port}\r\n".encode()
    assert b" 421 " in raw(server, b"GET / HTTP/1.0\r\n\r\n")
    assert b" 421 " in raw(server, b"GET / HTTP/1.1\r\n" + good + b"Host: evil.example\r\n\r\n")


@pytest.mark.parametrize("path", ["/favicon.ico", "/../etc/passwd", "/?x", "/index.html", "*", "/%00"])
def test_there_is_one_page(server, path):
    status, body, _ = ask(server, path=path)
    assert status == 404 and PAGE.encode() not in body


def test_it_is_no_proxy(server):
    good = f"Host: 127.0.0.1:{server.port}\r\n\r\n".encode()
    assert b" 404 " in raw(server, b"GET http://evil.example/ HTTP/1.1\r\n" + good)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT", "TRACE"])
def test_other_methods_are_refused(server, method):
    status, body, headers = ask(server, method)
    assert status == 501 and PAGE.encode() not in body and "Access-Control-Allow-Origin" not in headers


def test_noise_ends_no_server_and_says_nothing(server, capfd):
    raw(server, b"\x16\x03\x01\x02\x00\xff\xfe\r\n\r\n")
    raw(server, b"GET / HTTP/1.1\r\n" + b"x" * 70_000 + b"\r\n\r\n")
    assert ask(server)[0] == 200
    assert capfd.readouterr() == ("", "")


def test_who_stays_silent_keeps_nobody_waiting_and_is_let_go(server, monkeypatch):
    monkeypatch.setattr(serve, "PATIENCE", 0.2)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as silent:
        assert ask(server)[0] == 200
        assert silent.recv(1) == b""


def test_who_sends_byte_by_byte_is_let_go(server, monkeypatch):
    monkeypatch.setattr(serve, "PATIENCE", 0.3)
    with socket.create_connection(("127.0.0.1", server.port), timeout=5) as connection, pytest.raises(OSError):
        for _ in range(400):
            connection.sendall(b"G")
            time.sleep(0.02)


def test_of_too_many_connections_the_oldest_end(server):
    before, held = threading.active_count(), []
    for _ in range(3 * serve.MOST):
        held.append(socket.create_connection(("127.0.0.1", server.port), timeout=5))
    assert ask(server)[0] == 200
    assert held[0].recv(1) == b""
    for _ in range(500):
        time.sleep(0.01 * (threading.active_count() - before > serve.MOST))
    assert threading.active_count() - before <= serve.MOST
    for connection in held:
        connection.close()


def test_it_listens_on_this_machine_alone(server):
    assert server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_and_one_that_is_none(server):
    with pytest.raises(ValueError, match=f"port {server.port} of 127.0.0.1 cannot be had .*; name another, or none"):
        Server(PAGE, server.port)
    with pytest.raises(ValueError, match="a port is a number from 0 to 65535, where 0 takes a free one; got 65536"):
        Server(PAGE, 65_536)


def test_a_port_without_serving_is_a_mistake(capsys, tmp_path):
    assert main(["explore", "none", "--port", "8000", "--out", str(tmp_path / "page.html")]) == 2
    assert "--port says where --serve listens; give --serve too" in capsys.readouterr().err


@pytest.mark.parametrize("has_one", [True, False])
def test_open_asks_for_the_browser_and_says_where_there_is_none(capsys, tmp_path, monkeypatch, has_one):
    asked = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda url: asked.append(url) or has_one)
    file = tmp_path / "page.html"
    assert main(["explore", "none", "--open", "--out", str(file)]) == 0
    assert asked == [file.as_uri()]
    said = capsys.readouterr().err
    assert has_one or f"No browser opened here: open {file.as_uri()} in one, or copy {file}" in said.replace("\n", "")
    assert not has_one or "No browser" not in said


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals as on POSIX")
def test_ctrl_c_ends_it_in_one_line(tmp_path):
    command = [sys.executable, "-m", "posenc", "explore", "none", "--serve", "--out", str(tmp_path / "page.html")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = iter(process.stdout.readline, "")
        port = next(int(found[1]) for line in lines if (found := re.search(r"http://127\.0\.0\.1:(\d+)/", line)))
        connection = HTTPConnection("127.0.0.1", port, timeout=5)
        connection.request("GET", "/")
        assert b"posenc-data" in connection.getresponse().read()
        connection.close()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert errors.strip().splitlines() == [
        "posenc: interrupted; what was finished is kept, give the same command again"
    ]
