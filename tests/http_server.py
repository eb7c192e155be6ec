"""A plain HTTP server on loopback, whose answers a test gives."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType

Answer = Callable[[BaseHTTPRequestHandler, bytes], tuple[int, bytes]]
"""Takes a request (`command`, `path`, `headers`) and its body, and returns a status and a body."""


@contextmanager
def http_server(answer: Answer, headers: Mapping[str, str] = MappingProxyType({})) -> Iterator[str]:
    """Serve GET and POST until the end of the block, with these further headers. Yields the URL, without a
    slash at its end.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self, self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            with suppress(OSError):  # the client may have left
                self.end_headers()
                self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - http.server looks for this name

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
