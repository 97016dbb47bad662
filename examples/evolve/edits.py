#!/usr/bin/env python3
"""A proposer for `greenfast evolve` that needs no model: structured edits of C and CUDA sources.

An edit changes one thing that the source's grammar shows, the way a person would try it:

    number    a macro, a constexpr int or a field of a Config, doubled or halved
    pitch     the padding of a row in shared memory (`D + 8`), by 8 more or less
    toggle    true for false in a Config
    unroll    how far a loop is unrolled, also a loop that says nothing of it
    blocks    how many blocks of a kernel a multiprocessor should hold, which bounds its registers
    order     two neighbouring statements, neither of which names what the other writes
    barrier   a __syncthreads() less: the oracle says whether it was needed

and where two right candidates changed different lines of the first source, a child has the changes of both. Kinds take
turns. Those whose children were right and faster come more often, and what a profile advises (`--profile`) moves kinds to
the front. --seed N draws in another order; --kinds a,b keeps those alone; --list shows the edits of a source.
"""
import argparse
import difflib
import json
import random
import re
import sys
from collections import Counter

NUMBERS = [
    re.compile(r"^#define \w+ (\d+)$", re.MULTILINE),
    re.compile(r"\bconstexpr (?:unsigned |std::\w+ )?int [^;{}()]*?;"),
    re.compile(r"\.\w+ = (\d+)(?=[,}])"),
]
ASSIGNED = re.compile(r"\b(k\w+|[a-z]\w*) = (\d+)\b")
PITCH = re.compile(r"(\b\w*(?:Pitch|pitch)\w* = [^;,]*?\+ )(\d+)\b")
TOGGLE = re.compile(r"(?<=[\s.])(\w+ = )(true|false)\b")
LOOP = re.compile(r"^([ \t]*)for \(", re.MULTILINE)
UNROLL = re.compile(r"^#pragma unroll(?: (\d+))?\n", re.MULTILINE)
BOUNDS = re.compile(r"__launch_bounds__\(([^(),]+(?:<[^<>]*>)?)(, \d+)?\)")
BARRIER = re.compile(r"^[ \t]*__syncthreads\(\);.*\n", re.MULTILINE)
STATEMENT = re.compile(r"^[ \t]+(?!return|break|continue|case|else|if|for|while|using|static_assert)[^\n{}#/]*;\n", re.MULTILINE)
WRITTEN = re.compile(r"([A-Za-z_]\w*)(?:[\[.][^=;]*?)?\s*(?:[-+*/]?=(?!=))")
WORD = re.compile(r"[A-Za-z_]\w*")

# A word of a profile's advice -> the kinds that follow it.
ADVICE = {
    "unroll": ["unroll", "order"], "independent": ["unroll", "order"], "tile": ["number"], "register": ["blocks", "unroll"],
    "occupancy": ["blocks", "number"], "bank conflict": ["pitch"], "barrier": ["barrier", "order"], "stage": ["number", "toggle"],
}


def put(source, begin, end, text):
    return source[:begin] + text + source[end:]


def numbers(source):
    spans = {}
    for pattern in NUMBERS:
        for match in pattern.finditer(source):
            if match.groups():
                spans[match.span(1)] = match[0]
            else:  # a declaration of several: `constexpr int kBlockM = 32, kWarps = 4;`
                for one in ASSIGNED.finditer(source, match.start(), match.end()):
                    spans[one.span(2)] = one[0]
    for (begin, end), words in sorted(spans.items()):
        value = int(source[begin:end])
        name = WORD.search(words.replace("#define", "").replace("constexpr", ""))[0]
        for other in sorted({value * 2, value // 2} - {0, value}):
            yield put(source, begin, end, str(other)), f"{name} from {value} to {other}"


def pitches(source):
    for match in PITCH.finditer(source):
        for other in (int(match[2]) + 8, int(match[2]) - 8):
            if other >= 0:
                yield put(source, *match.span(2), str(other)), f"{match[1].strip()} {match[2]} becomes {other}"


def toggles(source):
    for match in TOGGLE.finditer(source):
        other = "false" if match[2] == "true" else "true"
        yield put(source, *match.span(2), other), f"{match[1]}{other}"


def line_of(source, at):
    return source.count("\n", 0, at) + 1


def unrolls(source):
    for match in UNROLL.finditer(source):
        was = match[1] or "all"
        for other in ("1", "2", "4", "8", "all"):
            if other != was:
                text = "#pragma unroll\n" if other == "all" else f"#pragma unroll {other}\n"
                yield put(source, *match.span(), text), f"unroll {other} in place of {was}, line {line_of(source, match.start())}"
    for match in LOOP.finditer(source):
        before = source.rfind("\n", 0, max(match.start() - 1, 0)) + 1
        if not source[before:match.start()].startswith("#pragma"):
            for other in ("1", "2", "4"):
                yield (put(source, match.start(), match.start(), f"#pragma unroll {other}\n"),
                       f"unroll {other}, line {line_of(source, match.start())}")


def blocks(source):
    for match in BOUNDS.finditer(source):
        for other in ("", ", 2", ", 3", ", 4", ", 5"):
            if other != (match[2] or ""):
                yield (put(source, *match.span(), f"__launch_bounds__({match[1]}{other})"),
                       f"launch bounds ask for {other[2:] or 'no'} blocks")


def orders(source):
    statements = list(STATEMENT.finditer(source))
    for first, second in zip(statements, statements[1:]):
        if first.end() != second.start():
            continue
        a, b = first[0], second[0]
        if "(" in a and "(" in b and "=" not in a + b:
            continue  # two calls: what they write is not to be seen
        writes = [set(WRITTEN.findall(text)) for text in (a, b)]
        names = [set(WORD.findall(text)) for text in (a, b)]
        if not writes[0] & names[1] and not writes[1] & names[0]:
            yield (put(source, first.start(), second.end(), b + a),
                   f"lines {line_of(source, first.start())} and the next change places")


def barriers(source):
    for match in BARRIER.finditer(source):
        yield put(source, *match.span(), ""), f"no barrier in line {line_of(source, match.start())}"


KINDS = {"number": numbers, "pitch": pitches, "toggle": toggles, "unroll": unrolls, "blocks": blocks, "order": orders,
         "barrier": barriers}


def merged(base, one, other):
    """The changes of both to `base`, or None where they touch the same lines, or one has none of its own."""
    lines = base.splitlines(keepends=True)
    changes = []
    for source in (one, other):
        codes = difflib.SequenceMatcher(None, lines, source.splitlines(keepends=True), autojunk=False).get_opcodes()
        changes.append([(i, j, source.splitlines(keepends=True)[k:l]) for tag, i, j, k, l in codes if tag != "equal"])
    for i, j, _ in changes[0]:
        for k, l, _ in changes[1]:
            if i <= l and k <= j:
                return None
    if not changes[0] or not changes[1]:
        return None
    for i, j, text in sorted(changes[0] + changes[1], reverse=True):
        lines[i:j] = text
    return "".join(lines)


class Proposer:
    def __init__(self, kinds, seed):
        self.kinds, self.random = kinds, random.Random(seed)
        self.base, self.tried, self.kind_of = "", set(), {}
        self.weight = Counter()

    def begin(self, task):
        self.base = task["source"]
        self.tried = {self.base}
        for line in task.get("advice", []):
            for word, kinds in ADVICE.items():
                if word in line:
                    self.weight.update(kinds)

    def heard(self, result):
        kind = self.kind_of.get(result["id"])
        if kind is not None:
            self.weight[kind] += 2 if result["ok"] and (result["speedup"] or 0) > 1 else -1

    def children(self, kind, best):
        """Fresh children of the best sources, the best one's first."""
        if kind == "cross":
            changed = [one for one in best if one["source"] != self.base]
            for i, one in enumerate(changed):
                for other in changed[i + 1:]:
                    both = merged(self.base, one["source"], other["source"])
                    if both is not None and both not in self.tried:
                        yield both, [one["id"], other["id"]], f"the changes of {one['id']} and {other['id']}"
            return
        for parent in best:
            fresh = [(text, note) for text, note in KINDS[kind](parent["source"]) if text not in self.tried]
            self.random.shuffle(fresh)
            for text, note in fresh:
                yield text, [parent["id"]], f"{kind}: {note}"

    def propose(self, id_, best):
        left = [*self.kinds, "cross"]
        while left:
            # A kind that did well is drawn more often, none is ever given up.
            kind = self.random.choices(left, [2.0 ** max(-3, min(3, self.weight[k])) for k in left])[0]
            for text, parents, note in self.children(kind, best):
                self.tried.add(text)
                self.kind_of[id_] = kind
                return {"type": "candidate", "id": id_, "parents": parents, "source": text, "note": note}
            left.remove(kind)
        return {"type": "done"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {', '.join(KINDS)}")
    parser.add_argument("--list", metavar="FILE", help="print the edits of a source and stop")
    args = parser.parse_args()
    kinds = args.kinds.split(",")
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown:
        parser.error(f"--kinds {','.join(unknown)}: possible are {', '.join(KINDS)}")
    if args.list:
        with open(args.list, encoding="utf-8") as file:
            source = file.read()
        for kind in kinds:
            for _, note in KINDS[kind](source):
                print(f"{kind}: {note}")
        return
    proposer = Proposer(kinds, args.seed)
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "task":
            proposer.begin(message)
        elif message["type"] == "result":
            proposer.heard(message)
        elif message["type"] == "propose":
            print(json.dumps(proposer.propose(message["id"], message["best"])), flush=True)


if __name__ == "__main__":
    main()
