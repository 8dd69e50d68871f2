"""A web server of our own that sends files, for tests of downloads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Site:
    """Files by path, how they are sent, and what was asked for."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.kind = "application/octet-stream"
        self.missing = 0  # bytes at the end that are promised and not sent
        self.tells_length = True
        self.redirects: dict[str, str] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                path = self.path.partition("?")[0]
                if path in site.redirects:
                    self.send_response(302)
                    self.send_header("Location", site.redirects[path])
                    self.end_headers()
                    return
                if path not in site.files:
                    self.send_error(404)
                    return
                content = site.files[path]
                self.send_response(200)
                self.send_header("Content-Type", site.kind)
                if site.tells_length:
                    self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) - site.missing])

            def do_HEAD(self) -> None:
                self.send_response(200 if self.path.partition("?")[0] in site.files else 404)
                self.end_headers()

            def log_message(self, *_arguments: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def put(self, path: str, content: bytes) -> str:
        self.files[path] = content
        return f"http://127.0.0.1:{self.server.server_port}{path}"

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    try:
        yield site
    finally:
        site.close()
