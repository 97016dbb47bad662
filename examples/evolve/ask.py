#!/usr/bin/env python3
"""A proposer for `greenfast evolve` that asks a command of yours, a model's CLI say, for each candidate:

    greenfast evolve cuda.stage_c.stage2 --proposer "python3 examples/evolve/ask.py --command 'your-model --stdin'"

The command is run by the shell, gets the question on standard input, and answers on standard output. Its answer's last
block between ``` lines is the source, or the whole answer where it has none. The question holds the task, the fastest
right sources with their speedups and what their kernels take, what became of earlier candidates with the compiler's
messages, and what a profile advises (`greenfast evolve --profile FILE`). Each question and answer is kept under --log.
A command that fails, is silent or answers nothing costs that candidate alone; after three in a row evolve goes on with
what it has.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
NOTE = re.compile(r"^NOTE:[ \t]*(.+)$", re.MULTILINE)
LANGUAGES = {"c": "C11", "cpp": "C++20", "cu": "CUDA C++20"}


def taken(row):
    resources = row.get("resources")
    return "" if resources is None else ", {registers} registers, {local_bytes} bytes of local memory".format(**resources)


def times(row):
    return "not timed" if row["speedup"] is None else f"{row['speedup']:.3f}x"


def question(task, request, earlier):
    rows = {row["id"]: row for row in request["history"]}
    parts = [
        f"Improve this {LANGUAGES.get(task['language'], task['language'])} source of an attention kernel. It is compiled as one "
        "file, must stay right on every length and distribution of values (a float64 oracle decides), may not spill registers, "
        "and is judged by its time. Keep its exported interface. Answer with one line `NOTE: what you changed`, then the whole "
        "source between lines of ```.",
        "Timed on: " + ", ".join(task["problems"]) + f". Numerics policy: {task['policy']}.",
    ]
    if task.get("advice"):
        parts.append("A profile of the first source says:\n" + "\n".join(f"- {line}" for line in task["advice"]))
    tries = [row for row in request["history"] if row["id"] != "c0"][-earlier:]
    if tries:
        lines = []
        for row in tries:
            fate = times(row) if row["ok"] else f"rejected ({row.get('stage', '')}): {row.get('reason', '')}"
            lines.append(f"- {row['id']} from {', '.join(row['parents'])} ({row['note']}{taken(row)}): {fate}")
        parts.append("Tried before, speedup over the first source:\n" + "\n".join(lines))
    for one in request["best"]:
        parts.append(f"Source {one['id']} ({times(one)}{taken(rows.get(one['id'], {}))}):\n```\n{one['source']}```")
    return "\n\n".join(parts) + "\n"


def answer_of(text):
    """Source and note of an answer."""
    blocks = BLOCK.findall(text)
    note = NOTE.search(BLOCK.sub("", text))
    return (blocks[-1] if blocks else text), (note[1].strip() if note else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--command", required=True, help="run by the shell; question on its input, answer on its output")
    parser.add_argument("--timeout", type=float, default=540, help="seconds of one answer; below evolve's --patience (540)")
    parser.add_argument("--earlier", type=int, default=12, help="candidates whose fate is told (12)")
    parser.add_argument("--log", type=pathlib.Path, help="folder for questions and answers")
    args = parser.parse_args()
    task = {}
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "task":
            task = message
        if message["type"] != "propose":
            continue
        asked = question(task, message, args.earlier)
        try:
            done = subprocess.run(args.command, shell=True, input=asked, capture_output=True, text=True, timeout=args.timeout)
            said, failure = done.stdout, f"ended with {done.returncode}: {done.stderr.strip()}" if done.returncode else ""
        except subprocess.TimeoutExpired:
            said, failure = "", f"gave no answer within {args.timeout:g} s"
        if args.log:
            args.log.mkdir(parents=True, exist_ok=True)
            (args.log / f"{message['id']}.question").write_text(asked)
            (args.log / f"{message['id']}.answer").write_text(said)
        source, note = answer_of(said)
        if not failure and not source.strip():
            failure = "answered nothing"
        reply = {"type": "candidate", "id": message["id"], "source": source, "note": note, "parents": [message["best"][0]["id"]]}
        if failure:
            reply = {"type": "pass", "id": message["id"], "reason": f"the command {failure}"}
        print(json.dumps(reply), flush=True)


if __name__ == "__main__":
    main()
