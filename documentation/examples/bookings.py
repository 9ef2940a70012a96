"""A small service with an OpenAPI document."""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

TRIP = {
    "type": "object",
    "properties": {"boat": {"enum": ["blue", "red"]}, "seats": {"type": "integer", "minimum": 1}},
    "required": ["boat", "seats"],
    "additionalProperties": False,
}
BOAT = {"name": "boat", "in": "path", "required": True, "schema": {"type": "string"}}
BODY = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Trip"}}}}
DOCUMENT = {
    "openapi": "3.1.0",
    "info": {"title": "Bookings", "version": "1"},
    "paths": {
        "/boats/{boat}": {
            "get": {"operationId": "show_boat", "summary": "Show free seats.", "parameters": [BOAT]}
        },
        "/bookings": {
            "post": {"operationId": "book", "summary": "Book seats.", "requestBody": BODY}
        },
    },
    "components": {"schemas": {"Trip": TRIP}},
}


class Bookings(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.answer(DOCUMENT if self.path == "/openapi.json" else {"free_seats": 4})

    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.answer({"booked": order["seats"], "boat": order["boat"]})

    def answer(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python bookings.py PORT")
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Bookings).serve_forever()
