#!/usr/bin/env python3
"""An example scorer, Python 3 without packages. Change `reward` and it is yours.

command: --set scorer.kind=command --set scorer.command="python3 configs/scorer.py"
http:    python3 configs/scorer.py --port 8080, and --set scorer.kind=http --set scorer.url=http://localhost:8080/
"""
import argparse
import http.server
import json
import sys


def reward(row):
    """A finite number. row: id, prompt_id, prompt, completion, prompt_ids, completion_ids, answer, metadata."""
    return row["completion"].count("e") / max(len(row["completion_ids"]), 1)


def score(row):
    """The reward, or {"error": why}: such a completion is not trained on."""
    try:
        return reward(row)
    except Exception as e:
        return {"error": repr(e)}


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps({"scores": [score(row) for row in batch["inputs"]]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, help="serve http there (0 = any, printed); without it, JSON lines")
    port = parser.parse_args().port
    if port is not None:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        print(server.server_address[1], flush=True)
        server.serve_forever()
    for line in sys.stdin:
        row = json.loads(line)
        value = score(row)
        reply = value if isinstance(value, dict) else {"reward": value}
        # Standard output is for replies alone; messages go to standard error.
        print(json.dumps({"id": row["id"], **reply}), flush=True)


main()
