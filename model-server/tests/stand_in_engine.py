"""A process with the outside of `vllm serve`: /health on --port, TLS, a child process, SIGTERM.

The first argument, where vLLM has the model, says how it behaves.
"""

import http.server
import signal
import ssl
import subprocess
import sys

SLEEPER = "import time; time.sleep(600)"


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.asked = self.path
        self.send_response(200)
        self.end_headers()


def main(behaviour, arguments):
    host, port = (arguments[arguments.index(flag) + 1] for flag in ("--host", "--port"))
    print("the stand-in says hello", flush=True)
    if behaviour == "dies":
        sys.exit(7)
    if behaviour == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", SLEEPER])
    print("child", child.pid, flush=True)
    if behaviour == "never-healthy":
        child.wait()
    with http.server.HTTPServer((host, int(port)), Healthy) as server:
        if "--ssl-certfile" in arguments:
            files = (
                arguments[arguments.index(f"--ssl-{each}file") + 1] for each in ("cert", "key")
            )
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*files)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        if behaviour == "dies-later":
            server.asked = ""
            while server.asked != "/":  # of which it dies; the launcher asks for /health
                server.handle_request()
            sys.exit(8)
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
