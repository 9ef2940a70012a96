import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

PAGE = """<!doctype html>
<title>Opening hours</title>
<nav><a href="/">Home</a></nav>
<article>
<h1>Opening hours</h1>
<p>The library is open from ten to six on weekdays, and from ten to two on Saturdays.</p>
<p>On Sundays, and on the days between Christmas and the new year, it stays closed.</p>
</article>
"""


FOUND = {"title": "Opening hours", "content": "Open from ten to six on weekdays."}


class Library(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/":
            self.send_response(302)
            self.send_header("location", "/hours")
            self.end_headers()
            return
        kind, body = "text/html; charset=utf-8", PAGE.encode()
        if self.path.startswith("/search?"):
            found = {**FOUND, "url": f"http://{self.headers['host']}/hours"}
            kind, body = "application/json", json.dumps({"results": [found]}).encode()
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@contextmanager
def serve_pages() -> Iterator[str]:
    """The host of a server on this machine that has one page, and finds it as SearXNG does."""
    with HTTPServer(("127.0.0.1", 0), Library) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
