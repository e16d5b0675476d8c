"""Ranks meet in shared memory, and through the session where that takes too long."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time

import pytest

from pytest_shardcheck.benchmark.meeting import Meeting

MEETINGS = 300


class Session:
    """Gives everyone's number to everyone once all have sent theirs, and counts that."""

    def __init__(self, size):
        self.pairs = [socket.socketpair() for _ in range(size)]
        self.exchanges = 0

    def serve(self):
        files = [ours.makefile("rw") for ours, _ in self.pairs]
        while all(lines := [file.readline() for file in files]):
            self.exchanges += 1
            for file in files:
                file.write(json.dumps([json.loads(line)["number"] for line in lines]) + "\n")
                file.flush()
        for ours, _ in self.pairs:
            ours.shutdown(socket.SHUT_RDWR)

    def exchange(self, rank):
        file = self.pairs[rank][1].makefile("rw")

        def exchange(number, deed):
            file.write(json.dumps({"number": number, "deed": deed}) + "\n")
            file.flush()
            return json.loads(file.readline())

        return exchange


def run_ranks(path, size, rank_main, cores):
    """Fork ``size`` ranks; return how they ended, and how often they needed the session."""
    session = Session(size)
    pids = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                for each, (ours, theirs) in enumerate(session.pairs):
                    ours.close()
                    if each != rank:
                        theirs.close()
                meeting = Meeting(path, rank, size, session.exchange(rank), cores)
                rank_main(rank, size, meeting)
                status = 0
            os._exit(status)
        pids.append(pid)
    for _, theirs in session.pairs:
        theirs.close()
    server = threading.Thread(target=session.serve)
    server.start()
    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    server.join()
    for ours, _ in session.pairs:
        ours.close()
    return statuses, session.exchanges


def meet_often(rank, size, meeting):
    for turn in range(MEETINGS):
        numbers = meeting.meet(turn + rank / 8, "met")
        assert numbers == [turn + other / 8 for other in range(size)]


def one_is_late(rank, size, meeting):
    """Be late by more than the others' patience at times, by less at others."""
    for turn in range(MEETINGS // 10):
        if rank == turn % size:
            until = time.monotonic() + (0.004 if turn % 3 else 0.0019)
            while time.monotonic() < until:
                pass
        assert meeting.meet(turn + rank / 8, "met") == [turn + other / 8 for other in range(size)]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_everyone_gets_everyones_number(tmp_path, size):
    statuses, _ = run_ranks(tmp_path / "meeting", size, meet_often, cores=size)
    assert statuses == [0] * size


def test_more_ranks_than_cores_sleep(tmp_path):
    statuses, exchanges = run_ranks(tmp_path / "meeting", 3, meet_often, cores=2)
    assert statuses == [0] * 3
    # All but those where the other two came in the moment between a rank's arrival and its sleep.
    assert exchanges > MEETINGS // 2


def test_who_is_late_is_waited_for_asleep(tmp_path):
    statuses, exchanges = run_ranks(tmp_path / "meeting", 2, one_is_late, cores=2)
    assert statuses == [0, 0]
    assert exchanges > 0


def test_a_rank_that_dies_holds_nobody_in_the_lock(tmp_path):
    def dies(rank, size, meeting):
        meeting.meet(1.0, "met")
        if rank == 0:
            with meeting._locked():
                os._exit(7)
        meeting.meet(2.0, "met")

    statuses, _ = run_ranks(tmp_path / "meeting", 2, dies, cores=2)
    # The other has gone to the session, which closed the conversation: its own error.
    assert statuses == [7, 1]
