"""An MPI job that loses a rank ends soon, non-zero, names the rank, and leaves no process behind."""

import os
import subprocess
import time

import pytest

DRILL = os.path.join(os.environ["MOESAIC_BUILD"], "comm_mpi_drill")


def drill(how):
    command = ["mpirun", "-n", "4", "--oversubscribe", "--bind-to", "none", DRILL, how]
    start = time.monotonic()
    job = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return job.returncode, job.stdout + job.stderr, time.monotonic() - start


def processes_of(how):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as f:
                words = f.read().decode(errors="replace").split("\0")
        except OSError:
            continue
        if words[0] == DRILL and how in words[1:]:
            found.append(pid)
    return found


@pytest.mark.parametrize(
    "how, named",
    [
        ("killed_before_group", "process rank 1"),
        ("killed_mid_step", "process rank 1"),
        ("throws", "error on rank 1: rank 1 met a NaN"),
        ("silent", "from rank 1"),
        ("sizes_differ", "expects 2000 bytes, but rank 1 sends more"),
        ("sizes_differ_in_pieces", "rank 1 sends 2005"),
        ("abort_in_background", "error on rank 1: rank 1 gives up"),
    ],
)
def test_job_ends_soon_and_names_the_lost_rank(how, named):
    code, output, seconds = drill(how)
    assert code != 0, output
    assert named in output
    assert seconds < 10, output
    assert processes_of(how) == []
