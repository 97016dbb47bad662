#!/usr/bin/env python3
"""An example proposer for `greenfast evolve`: it turns the knobs that a source shows as #define NAME NUMBER.

Each candidate is a child of the best source so far with one number doubled or halved; what was tried before is not
proposed again. A real proposer, a person at an editor or a model, speaks the same lines (docs/evolve.md).
"""
import json
import random
import re
import sys

KNOB = re.compile(r"^#define (\w+) (\d+)$", re.MULTILINE)


def children(source):
    """Every source that differs from this one in one knob, in a random order that is the same every time."""
    found = []
    for match in KNOB.finditer(source):
        value = int(match[2])
        for other in {value * 2, value // 2} - {0, value}:
            child = f"{source[:match.start(2)]}{other}{source[match.end(2):]}"
            found.append((child, f"{match[1]} from {value} to {other}"))
    random.Random(len(source)).shuffle(found)
    return found


def main():
    tried = set()
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "task":
            tried.add(message["source"])
        elif message["type"] == "propose":
            answer = {"type": "done"}
            for parent, source in ((best["id"], best["source"]) for best in message["best"]):
                fresh = [(child, note) for child, note in children(source) if child not in tried]
                if fresh:
                    child, note = fresh[0]
                    tried.add(child)
                    answer = {"type": "candidate", "id": message["id"], "parents": [parent], "source": child, "note": note}
                    break
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
