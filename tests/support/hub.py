"""A stand-in of the Hugging Face hub: repositories in memory, and the addresses that its client asks for."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_test"
COMMIT = "c" * 40


class StandInHub:
    def __init__(self) -> None:
        self.files: dict[str, dict[str, bytes]] = {}  # repository -> path -> content
        self.private: set[str] = set()
        self.messages: list[str] = []
        self.asked: list[str] = []
        self.address = ""

    def create(self, content: dict[str, Any]) -> dict[str, Any]:
        repository = f"{content['organization']}/{content['name']}"
        self.files.setdefault(repository, {})
        if content.get("visibility") == "private" or content.get("private"):
            self.private.add(repository)
        return {"url": f"{self.address}/{repository}", "name": repository, "id": repository}

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
        for line in lines:
            if line["key"] == "header":
                self.messages.append(line["value"]["summary"])
            elif line["key"] == "file":
                self.files[repository][line["value"]["path"]] = base64.b64decode(line["value"]["content"])
        return {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.address}/{repository}/commit/{COMMIT}"}

    def about(self, repository: str) -> dict[str, Any]:
        siblings = [{"rfilename": name} for name in self.files[repository]]
        return {"_id": "1", "id": repository, "sha": COMMIT, "siblings": siblings, "tags": [], "private": False}

    def tree(self, repository: str) -> list[dict[str, Any]]:
        files = self.files[repository].items()
        return [
            {"type": "file", "path": path, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
            for path, content in files
        ]


def handler_of(hub: StandInHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def answer(self, content: Any, status: int = 200, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_POST(self) -> None:
            hub.asked.append(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                return self.answer({"error": "Invalid username or password."}, 401)
            if self.path == "/api/repos/create":
                return self.answer(hub.create(json.loads(body)))
            if self.path == "/api/validate-yaml":
                return self.answer({"errors": [], "warnings": []})
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/main", self.path)
            if found is None:
                return self.answer({"error": "unknown"}, 404)
            if found[2] == "preupload":
                files = [
                    dict(path=one["path"], uploadMode="regular", shouldIgnore=False)
                    for one in json.loads(body)["files"]
                ]
                return self.answer({"files": files})
            return self.answer(hub.commit(found[1], [json.loads(line) for line in body.splitlines() if line]))

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)(/revision/([^/?]+))?(\?.*)?", self.path)
            if found is not None and found[1] in hub.files:
                if found[3] not in (None, "main", COMMIT):
                    return self.answer({"error": "no"}, 404, X_Error_Code="RevisionNotFound")
                return self.answer(hub.about(found[1]))
            found = re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/[^/?]+(\?.*)?", self.path)
            if found is not None and found[1] in hub.files:
                return self.answer(hub.tree(found[1]))
            found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
            if found is None or found[1] not in hub.files:
                return self.answer({"error": "no"}, 404, X_Error_Code="RepoNotFound")
            content = hub.files[found[1]].get(found[2])
            if content is None:
                return self.answer({"error": "no"}, 404, X_Error_Code="EntryNotFound")
            digest = hashlib.sha256(content).hexdigest()
            return self.answer(content, X_Repo_Commit=COMMIT, ETag=f'"{digest}"')

        do_HEAD = do_GET

    return Handler


@contextmanager
def stand_in_hub() -> Iterator[StandInHub]:
    hub = StandInHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(hub))
    hub.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
