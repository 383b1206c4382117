"""The streams of a panel by their names: slots are given, given back and used again as streams come and go."""

import hashlib
import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import equinox as eqx
import jax
import numpy as np

from backstream.learning.calibration import LEAST_ROWS
from backstream.learning.column_check import same_columns
from backstream.learning.judging import LEAST_COVERAGE, Checks, judge, pooled
from backstream.learning.monitor import Monitor, Report, Watch
from backstream.learning.particle_reference import Reference
from backstream.learning.records import Info, blank_infos
from backstream.learning.tally import Tally, poor_coverage
from backstream.learning.verdict import Reason, Verdict
from backstream.learning.watched_learner import circumstances
from backstream.settings import FleetSettings

from .members import Member, MemberColumns, decode, encode, sizes
from .panel import Panel, PanelState

LEAST_CAPACITY = 8
SHOWN = 3
"""How many of the streams that stand out are named."""


class Tree(NamedTuple):
    """The arrays of a fleet, as they are saved."""

    panel: PanelState
    watches: list[Any]
    """For each stream that is watched: the monitor's memory, and its window of observations, inputs and infos."""
    members: MemberColumns


class Fleet:
    """Live streams and their panel.

        fleet = Fleet(panel, monitor, settings)
        infos, reports = fleet.read(["a", "b", "a"], ticks=[0, 0, 1], ys=ys)
        fleet.names()

    Slots are a matter of storage: what is learned of a stream depends on its name and on the ticks, not on its slot.
    When slots run out their number doubles; when fewer than a quarter are in use, `tidy` halves it.
    """

    def __init__(self, panel: Panel, monitor: Monitor, settings: FleetSettings):
        self.panel, self.monitor, self.settings = panel, monitor, settings
        self.members: OrderedDict[str, Member] = OrderedDict()
        self.row = 0
        """How many rows of the source have been seen."""
        self.capacity = LEAST_CAPACITY * panel.shards
        self.state = panel.open(self.capacity)
        self._free = list(range(self.capacity))
        self._watches: dict[str, Watched] = {}

    def names(self) -> list[str]:
        """Of the live streams."""
        return list(self.members)

    def read(
        self, names: Sequence[str], ticks: Any, ys: np.ndarray, inputs: Any = None, rows: Any = None, times: Any = None
    ) -> tuple[Info, list[Report]]:
        """Rows of many streams, new ones among them. `rows` are their numbers in the source, if some were left out."""
        rows = np.arange(self.row, self.row + len(names)) if rows is None else np.asarray(rows)
        ticks, slots = np.asarray(ticks), np.empty(len(names), np.int64)
        told, reports, done, begun = [], [], 0, 0
        new: list[tuple[str, int]] = []
        look, waiting = False, set[str]()

        def flush(end: int) -> None:
            nonlocal done, look
            if end > done:
                part = slice(done, end)
                data = jax.tree.map(lambda leaf: leaf[part], (ys, inputs))
                told.append(self._advance(new, slots[part], ticks[part], *data))
                reports.extend(self._watch(names[part], int(rows[end - 1]) + 1, told[-1], *data))
                new.clear()
            done, look = end, False

        for i, name in enumerate(names):
            if i == 0 or ticks[i] != ticks[i - 1]:
                begun = i
                if look:
                    flush(i)
                    waiting = set()
            self._forget(int(rows[i]))
            member = self.members.get(name)
            if member is None:
                # Its slot, or its name, belonged to a stream that has ended, with rows that are not read yet.
                if name in waiting or (self._free and self._free[0] in slots[done:begun]):
                    flush(begun)
                    waiting = set(names[begun:i])
                slots[i] = self._give()
                new.append((name, int(slots[i])))
                if len(self._watches) < self.settings.watched:
                    self._watches[name] = Watched(0, None, None)
            else:
                slots[i] = member.slot
            self.members[name] = Member(int(slots[i]), int(rows[i]), None if times is None else times[i])
            self.members.move_to_end(name)
            waiting.add(name)
            if name in self._watches:
                look |= self._watches[name].is_due(int((slots[done : i + 1] == slots[i]).sum()), self.monitor.window)
        flush(len(names))
        if len(names):
            self.row = int(rows[-1]) + 1
        else:
            told.append(self.panel.read(self.state, [], [], np.zeros((0, self.panel.q.obs_dim)))[1])
        return jax.tree.map(lambda *parts: np.concatenate(parts), *told), reports

    def tidy(self) -> None:
        """Gives memory back when few streams are left: those in high slots move to low ones."""
        capacity = self.capacity
        while capacity > LEAST_CAPACITY * self.panel.shards and 4 * len(self.members) < capacity:
            capacity //= 2
        if capacity == self.capacity:
            return
        free = [slot for slot in sorted(self._free) if slot < capacity]
        moves = {}
        for name, member in self.members.items():
            if member.slot >= capacity:
                moves[member.slot] = free[len(moves)]
                self.members[name] = member._replace(slot=moves[member.slot])
        self.state = self.panel.arrange(self.state, capacity, moves)
        self.capacity = self.state.capacity
        self._free = self._unused()

    def verdict(self, latest: dict[str, Report], columns: tuple[str, ...] = (), *, ended: bool = False) -> Verdict:
        """Whether what is reported of the live streams can be used: of all of them together, and which stand out.

        Args:
            latest: The monitor's latest report of each stream that it looked at.
            columns: Their names.
            ended: Whether no more rows are to come for now: particle filters are then shown the latest rows of the
                streams that are watched.
        """
        if not self.members:
            return Verdict("learning", (Reason("No stream is live: there is nothing to judge."),))
        names, slots = zip(*((name, member.slot) for name, member in self.members.items()), strict=True)
        tallies: Tally = self.panel.streams(self.state, np.asarray(slots), lambda one: one.tally)
        about = circumstances(self.panel.learner, self.panel.stream(self.state, slots[0]), columns)
        references = {name: report.reference for name, report in latest.items()}
        references |= self._references() if ended else {}
        references = [one for one in references.values() if one is not None]
        reference = max(references, key=lambda one: one.gap, default=None)
        warnings = [f"Stream {name!r}: {warning}" for name, one in latest.items() for warning in one.warnings]
        gains = [report.theta_gain for report in latest.values() if report.theta_gain is not None]
        worst = min(gains, key=lambda one: one.mean, default=None)
        found = judge(pooled(tallies), about, Checks(reference, worst, self._same_columns(), tuple(warnings)))
        poor = [names[i] for i in poor_coverage(tallies, LEAST_COVERAGE)]
        if not poor or found.kind == "failed":
            return found
        shown = ", ".join(map(repr, poor[:SHOWN])) + (" and others" if len(poor) > SHOWN else "")
        reason = Reason(
            f"In {len(poor):,} of {len(names):,} streams less than {LEAST_COVERAGE:.0%} of the rows lie inside their "
            f"90 % bands: {shown}.",
            "these streams are not like the others",
            "look at their rows; a posterior of their own (--own)",
        )
        return replace(found, kind="doubtful", reasons=(reason, *found.reasons))

    def _references(self) -> dict[str, Reference | None]:
        """What particle filters say of the latest rows of the streams that are watched, where there are enough."""
        found = {}
        for name, one in self._watches.items():
            ys, inputs = self._latest_rows(one)
            if len(ys) >= LEAST_ROWS:
                state = self.panel.stream(self.state, self.members[name].slot)
                found[name] = self.monitor.compare(self.panel.learner, one.watch.anchor, state, ys, inputs)
        return found

    def _same_columns(self) -> tuple[tuple[int, int], ...]:
        """Those that are the same in all streams that are watched."""
        rows = [self._latest_rows(one)[0] for one in self._watches.values()]
        return tuple(same_columns(np.concatenate(rows))) if rows else ()

    def _latest_rows(self, one: "Watched") -> tuple[np.ndarray, Any]:
        """Those of a watched stream since the monitor looked at it last."""
        if one.window is None:
            return np.zeros((0, self.panel.q.obs_dim)), None
        ys, inputs, _ = jax.tree.map(lambda leaf: leaf[: (one.seen - 1) % self.monitor.window], one.window)
        return ys, inputs

    # ---- to disk and back --------------------------------------------------------------------------------------------
    def tree(self) -> Tree:
        watches = [(one.watch, one.window) for one in self._watches.values()]
        return Tree(self.state, watches, encode(self.members))

    def record(self) -> dict[str, Any]:
        """What is not an array."""
        return {
            "row": self.row,
            "capacity": self.capacity,
            "shards": self.panel.shards,
            "streams": len(self.members),
            "sizes": sizes(self.members),
            "watched": [[name, one.seen] for name, one in self._watches.items()],
        }

    def blank(self, record: dict[str, Any]) -> Tree:
        """The shapes of the tree that belongs to a record."""
        return Tree(
            self.panel.blank(record["capacity"], record["shards"]),
            [self._unfilled() for _ in record["watched"]],
            MemberColumns.blank(*record["sizes"]),
        )

    def restore(self, tree: Tree, record: dict[str, Any]) -> None:
        self.row = record["row"]
        self.members = decode(tree.members)
        self.state = self.panel.put(tree.panel)
        self.capacity = self.state.capacity
        self._watches = {}
        for (name, seen), (watch, window) in zip(record["watched"], tree.watches, strict=True):
            self._watches[name] = Watched(seen, watch, jax.tree.map(np.array, window))
        self._free = self._unused()

    # ---- inside ------------------------------------------------------------------------------------------------------
    def _give(self) -> int:
        if not self._free:
            self._free = list(range(self.capacity, 2 * self.capacity))
            self.capacity *= 2
        return heapq.heappop(self._free)

    def _unused(self) -> list[int]:
        taken = {member.slot for member in self.members.values()}
        return [slot for slot in range(self.capacity) if slot not in taken]

    def _forget(self, row: int) -> None:
        """Ends the streams that have been silent for too long."""
        limit = self.settings.forget_after
        while limit and self.members:
            name, member = next(iter(self.members.items()))
            if row - member.last_row <= limit:
                return
            self.end(name)

    def end(self, name: str) -> None:
        """Takes a stream out; its slot is free."""
        heapq.heappush(self._free, self.members.pop(name).slot)
        self._watches.pop(name, None)

    def _advance(self, new: list[tuple[str, int]], slots, ticks, ys, inputs) -> Info:
        if self.capacity > self.state.capacity:
            self.state = self.panel.arrange(self.state, self.capacity, {})
        if new:
            names, where = zip(*new, strict=True)
            self.state = self.panel.begin(self.state, where, [words(name) for name in names])
        self.state, infos = self.panel.read(self.state, slots, ticks, ys, inputs)
        return infos

    def _watch(self, names: Sequence[str], row: int, infos: Info, ys, inputs) -> list[Report]:
        """The monitor's work after some rows, of which a stream's last is the first that it reads, or fills its window,
        or neither."""
        length, reports = self.monitor.window, []
        for name in [name for name in self._watches if name in set(names)]:
            mine = [i for i, other in enumerate(names) if other == name]
            one = self._watches[name]
            if one.seen == 0:
                state = self.panel.stream(self.state, self.members[name].slot)
                one = Watched(1, self.monitor.begin(state), self._unfilled()[1])
                mine = mine[1:]
            for i in mine:
                filled = (one.seen - 1) % length
                for buffer, leaf in zip(jax.tree.leaves(one.window), jax.tree.leaves((ys, inputs, infos)), strict=True):
                    buffer[filled] = leaf[i]
                one = one._replace(seen=one.seen + 1)
                if filled + 1 == length:
                    state = self.panel.stream(self.state, self.members[name].slot)
                    seen, seen_inputs, told = one.window
                    watch, report = self.monitor.look(self.panel.learner, one.watch, state, told, seen, seen_inputs)
                    one = Watched(one.seen, watch, jax.tree.map(np.zeros_like, one.window))
                    reports.append(report._replace(stream=name, row=row))
            self._watches[name] = one
        return reports

    def _unfilled(self) -> tuple[Watch, Any]:
        """An empty window."""
        slots, length = self.panel.blank(1).slots, self.monitor.window
        anchor = jax.tree.map(lambda leaf: np.zeros(leaf.shape[2:], leaf.dtype), slots.filtered)
        dtype = jax.tree.leaves(eqx.filter(self.panel.q, eqx.is_inexact_array))[0].dtype
        inputs = jax.tree.map(lambda leaf: np.zeros((length, *np.shape(leaf)), dtype), self.panel.u)
        ys = np.zeros((length, self.panel.q.obs_dim), dtype)
        infos = jax.tree.map(np.array, blank_infos(length, self.panel.q, dtype))
        return Watch.begin(anchor), (ys, inputs, infos)


class Watched(NamedTuple):
    """A stream that the monitor looks at."""

    seen: int
    watch: Any
    """The monitor's memory, and what came since it last looked; None before the first row."""
    window: Any

    def is_due(self, pending: int, length: int) -> bool:
        """Whether the monitor has something to do after so many more rows: at the first, or when the window is full."""
        return self.seen + pending == 1 or (self.seen + pending - 1) % length == 0


def words(name: str) -> tuple[int, int]:
    """A stream's name as two numbers, from which its draws follow."""
    found = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(found[:4], "big"), int.from_bytes(found[4:8], "big")
