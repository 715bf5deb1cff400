"""A Hugging Face hub on the loopback: a server that answers huggingface_hub and records each request."""

import hashlib
import json
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest


@dataclass
class Hub:
    """The server's contents and the requests that it received.

    repositories  "owner/name" -> file -> bytes
    commits       "owner/name" -> revision -> its commit
    gated         repositories whose licence the user has not accepted
    cut           file -> number of bytes after which every download breaks off
    requests      the paths of requests, in order
    """

    endpoint: str = ""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: dict[str, dict[str, str]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def add_repository(self, repository: str, files: dict[str, bytes]) -> str:
        """Add a repository and return its commit."""
        commit = hashlib.sha1(repository.encode()).hexdigest()
        self.repositories[repository] = files
        self.commits[repository] = {"main": commit, "v1": commit, commit: commit}
        return commit

    def requested_files(self) -> set[str]:
        return {path.rpartition("/")[2] for path in self.requests if "/resolve/" in path}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, body: bool) -> None:
        path = self.path.partition("?")[0]
        self.hub.requests.append(path)
        words = path.strip("/").split("/")
        api = words[0] == "api"
        repository = "/".join(words[2:4] if api else words[:2])
        files = self.hub.repositories.get(repository)
        if files is None:
            return self.refuse(404, "RepoNotFound", body)
        revision = words[5] if api and len(words) > 5 else "main" if api else words[3]
        commit = self.hub.commits[repository].get(revision)
        if commit is None:
            return self.refuse(404, "RevisionNotFound", body)
        if api and "tree" in words:
            return self.json([self.file_entry(name, data) for name, data in files.items()], body)
        if api:
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            return self.json({"id": repository, "sha": commit, "siblings": siblings}, body)
        if repository in self.hub.gated:
            return self.refuse(403, "GatedRepo", body)
        name = "/".join(words[4:])
        if name not in files:
            return self.refuse(404, "EntryNotFound", body)
        return self.file(name, files[name], commit, body)

    def file_entry(self, name: str, data: bytes) -> dict[str, Any]:
        return {"type": "file", "path": name, "size": len(data), "oid": hashlib.sha1(data).hexdigest()}

    def refuse(self, code: int, why: str, body: bool) -> None:
        self.json({"error": why}, body, code, {"X-Error-Code": why})

    def json(self, answer: Any, body: bool, code: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(code, json.dumps(answer).encode(), headers or {}, body)

    def file(self, name: str, data: bytes, commit: str, body: bool) -> None:
        headers = {"ETag": f'"{hashlib.sha1(data).hexdigest()}"', "X-Repo-Commit": commit, "Accept-Ranges": "bytes"}
        first = int(self.headers.get("Range", "bytes=0-")[6:].partition("-")[0])
        if first:
            headers["Content-Range"] = f"bytes {first}-{len(data) - 1}/{len(data)}"
        self.send(
            206 if first else 200,
            data[first:],
            headers,
            body,
            max(self.hub.cut[name] - first, 0) if name in self.hub.cut else None,
        )

    def send(self, code: int, data: bytes, headers: dict[str, str], body: bool, cut: int | None = None) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(data[:cut])
        self.close_connection = cut is not None


@contextmanager
def running_hub(monkeypatch: pytest.MonkeyPatch, home: Any) -> Generator[Hub]:
    """Run a hub and point this process's huggingface_hub at it, with a new cache folder."""
    from huggingface_hub import constants

    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": hub}))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
