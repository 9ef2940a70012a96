import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

DOT = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"


class Painter(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        print(f"The server paints {asked['prompt']!r} with {asked['model']}.", flush=True)
        answer = json.dumps({"created": 1, "data": [{"b64_json": DOT}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(answer)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


@contextmanager
def serve_pictures() -> Iterator[str]:
    """The address of a server that speaks OpenAI's images interface and paints a single dot."""
    with HTTPServer(("127.0.0.1", 0), Painter) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/v1"
        finally:
            server.shutdown()
            thread.join()
