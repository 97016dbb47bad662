"""The ways in which a call is timed: back to back, and between kernels as a model has them before attention.

Between: a graph of [neighbour, call] repeated, less a graph of the neighbours alone that is timed right behind it. Back to back the
next call's prologue may run beside the last one's end; behind a kernel that releases nothing early it cannot, and its launch counts.
Every way of a row is timed in the same rounds, so that drift of clock and power meets all alike.
"""

from __future__ import annotations

import dataclasses
import math
import random

from greenfast_bench.measure import DeviceLost, Usage, first_line

BACK_TO_BACK = "back-to-back"
NEIGHBOURS = ("elementwise", "gemm")
CACHES = ("hot", "cold")
ELEMENTS = 1 << 20  # of the elementwise neighbour, fp32: enough blocks for every multiprocessor
MOST_SETS = 512
REPLAY_SECONDS = 4e-3  # aim for one graph replay


@dataclasses.dataclass(frozen=True)
class Way:
    neighbour: str = BACK_TO_BACK
    cache: str = "hot"  # every call on the same inputs; cold: on those that were used longest ago, of twice the L2 cache

    @property
    def between(self) -> bool:
        return self.neighbour != BACK_TO_BACK

    @property
    def text(self) -> str:
        return f"{self.neighbour}:{self.cache}"


def chosen(between: str | None, caches: str) -> list[Way]:
    """What --between and --cache ask for, back to back on hot caches first where that is among it."""
    neighbours = [word for word in (between or "").split(",") if word]
    for word in neighbours:
        if word not in NEIGHBOURS:
            raise Usage(f"--between {between}: '{word}' is no neighbour; possible: {', '.join(NEIGHBOURS)}")
    asked = [word for word in caches.split(",") if word]
    if not asked or any(word not in CACHES for word in asked):
        raise Usage(f"--cache {caches}: expected hot, cold or hot,cold")
    return [Way(neighbour, cache) for cache in CACHES if cache in asked for neighbour in (BACK_TO_BACK, *NEIGHBOURS)
            if neighbour in (BACK_TO_BACK, *neighbours)]


@dataclasses.dataclass
class Neighbour:
    """Kernels that stand before the calls, taken in turn."""

    name: str
    what: str  # in words, for records and tables
    kernels: list


def neighbour(name: str, tokens: int, width: int, dtype, device: str, copies_of: float = 0.0) -> Neighbour:
    """elementwise adds in place; gemm projects the queries, `tokens` rows of `width` by width x width, in the type of the row. Where
    the caches are cold its operands are `copies_of` bytes in all, so that it finds them in memory with attention behind it and without."""
    import torch

    if name == "elementwise":
        count = copies(4 * ELEMENTS, copies_of)
        rooms = [torch.zeros(ELEMENTS, device=device) for _ in range(count)]
        return Neighbour(name, "elementwise: x += 1 of 4 MiB in fp32", [lambda x=x: x.add_(1.0) for x in rooms])
    kind = dtype if dtype.itemsize == 2 else torch.float16
    count = copies(2.0 * (2 * tokens * width + width * width), copies_of)
    generator = torch.Generator(device=device).manual_seed(tokens)

    def normal(rows, scale=1.0):
        return torch.randn(rows, width, device=device, generator=generator).mul_(scale).to(kind)

    sets = [(normal(tokens), normal(width, width ** -0.5), torch.empty(tokens, width, device=device, dtype=kind)) for _ in range(count)]
    what = f"gemm: the queries' projection, {tokens}x{width} by {width}x{width} in {str(kind).removeprefix('torch.')}, torch.mm"
    return Neighbour(name, what, [lambda x=x, w=w, y=y: torch.mm(x, w, out=y) for x, w, y in sets])


def copies(of_one: float, of_all: float) -> int:
    return max(1, min(MOST_SETS, math.ceil(of_all / of_one)))


def sets_of(ways: list[Way], moved: float, held: float, clock, asked: int | None) -> dict[str, int]:
    """Input sets that each cache state rotates through, where it can be had: hot takes one, cold so many that the inputs of a
    round trip, `moved` bytes a call, are twice the L2 cache, as far as a third of the memory holds them, `held` bytes a set."""
    fits = max(1, min(MOST_SETS, int(clock.memory_bytes / 3 / held)))
    found = {}
    for cache in dict.fromkeys(way.cache for way in ways):
        count = asked or 1 if cache == "hot" else asked or max(2, math.ceil(2 * clock.cache_bytes / moved))
        if count <= fits and (cache == "hot" or count * moved >= 2 * clock.cache_bytes):
            found[cache] = count
    return found


def calls_per_graph(seconds: float, sets: int) -> int:
    """So many that one replay is long against the clock's tick; a multiple of the sets, so that all count alike."""
    return max(sets, min(max(96, sets), int(REPLAY_SECONDS / seconds)) // sets * sets)


class Track:
    """One way of one row: what is replayed, and what was measured. `row` is the row as records and tables have it."""

    def __init__(self, way: Way, row: dict, count: int, clock, before: Neighbour | None = None):
        self.way, self.row, self.count, self.clock, self.before = way, row, count, clock, before
        self.replays: dict = {}
        self.alone = clock.prepare([], count, before.kernels)[0] if before else None

    def prepare(self, calls: list):
        """A replay of these calls in this way, and what it writes."""
        return self.clock.prepare(calls, self.count, self.before.kernels if self.before else [])

    def entry(self, name: str) -> dict:
        return self.row["engines"][name]

    def take(self, name: str) -> None:
        """One sample. Each replay follows another that settles clock and power, and keeps the device from idling before the event."""
        replay, entry = self.replays[name], self.entry(name)
        replay()
        us = self.clock.elapsed_us(replay) / self.count
        if self.alone is None:
            entry["us"].append(us)
            return
        self.alone()
        alone = self.clock.elapsed_us(self.alone) / self.count
        entry.setdefault("with_us", []).append(us)
        entry.setdefault("alone_us", []).append(alone)
        entry["us"].append(us - alone)

    def close(self) -> None:
        """A difference that is not above zero in every round is no time: the neighbours' own spread hides the call."""
        for name in self.replays:
            entry = self.entry(name)
            lost = sum(not us > 0 for us in entry["us"])
            if not lost:
                continue
            spread = max(entry["alone_us"]) - min(entry["alone_us"])
            entry["skipped"] = (f"noise: less the neighbours alone it took no time in {lost} of {len(entry['us'])} rounds; their own "
                                f"times spread by {spread:.2f} µs")
            entry["us"] = []


def is_noise(entry: dict) -> bool:
    return (entry.get("skipped") or "").startswith("noise: ")


def take_rounds(tracks: list[Track], rounds: int, rng: random.Random, telemetry) -> None:
    """All ways in each round, in random order; within a way the engines, beside each other."""
    for _ in range(rounds):
        for track in rng.sample(tracks, len(tracks)):
            order = rng.sample(list(track.replays), len(track.replays))
            for name in order:
                try:
                    track.take(name)
                except RuntimeError as error:
                    raise DeviceLost(f"the device was lost in {name} at {track.row['shape']}: {first_line(error)}") from error
            track.row["rounds"].append({"order": order, "telemetry": telemetry.read()})
    for track in tracks:
        track.close()


def described(row: dict, timer: str, tick_seconds: float) -> dict:
    """What greenfast.samples/1 has of a row's way: how it was timed, and the way by name where the run had several."""
    facts = {"timer": timer, "tick_seconds": tick_seconds, "cache": row["cache"]}
    if row.get("way"):
        facts["way"] = row["way"]
    if row.get("neighbour"):
        # A difference of two readings.
        facts.update(timer=timer + ", less the neighbours alone", tick_seconds=2 * tick_seconds, neighbour=row["neighbour"])
    return facts


def title(row: dict, name: str) -> str:
    """A name that no other way of the row has."""
    return name if row.get("way") in (None, f"{BACK_TO_BACK}:hot") else f"{name}, {row['way']}"
