"""A harness that forks as real ones do: it asks again with its history cut short, sends out sub-agents, and compacts.

forking_agent.py SOCKET MODEL MAX_TOKENS TEMPERATURE TASK
"""

import http.client
import json
import os
import socket
import sys

TURNS, HELPERS, HELPER_TURNS = 8, 2, 3
SYSTEM = (
    "You repair small programs. " + "Read before you write, change one thing at a time, and run what you have. " * 6
)
HELPER = "You look things up for another agent. " + "Answer in one line, with the name of the file. " * 4
OUTPUT = "def f{0}(x):\n    total = {0}\n    for i in range(x):\n        total += i * {0}\n    return total\n"


class Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.host)


def main(path, model, most, temperature, task):
    def ask(messages, **headers):
        connection = Connection(path)
        body = {
            "model": model, "messages": messages, "max_tokens": int(most), "temperature": float(temperature)
        }  # fmt: skip
        headers |= {"Authorization": f"Bearer {os.environ['LEGO_TOKEN']}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        if answer.status != 200:
            sys.exit(said.decode())
        return json.loads(said)["choices"][0]["message"]

    def work(history, turns, impatient, **headers):
        for turn in range(turns):
            history.append(ask(history, **headers))
            history.append({"role": "user", "content": OUTPUT.format(turn)})
            if impatient and turn % 2:
                ask([*history[:-3], {"role": "user", "content": "That took too long. Go on."}], **headers)

    start = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": task}]
    history = list(start)
    work(history, TURNS, True)
    for helper in range(HELPERS):
        question = {"role": "user", "content": f"{task}\nWhere is f{helper}?"}
        work([{"role": "system", "content": HELPER}, question], HELPER_TURNS, False, **{"X-Agent": str(helper)})
    summary = ask([*history, {"role": "user", "content": "Say in short what was done."}])
    about = f"{task}\nSo far: {summary['content'] or 'nothing'}"
    work([start[0], {"role": "user", "content": about}], TURNS, True)


if __name__ == "__main__":
    main(*sys.argv[1:])
