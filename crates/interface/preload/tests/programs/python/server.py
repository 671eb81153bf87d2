"""A server with a thread for each request."""

import http.server


class Echo(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_) -> None:
        pass


server = http.server.ThreadingHTTPServer(("", 0), Echo)
print(server.server_port, flush=True)
server.serve_forever()
