"""Two hosts for the tests of one file. What a machine says that cannot make them becomes the reason to skip them."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

CLUSTER = Path(__file__).resolve().parents[2] / "tools" / "cluster"
NAME = f"test_{os.getpid()}"


def cluster(verb, *words):
    return subprocess.run([str(word) for word in (sys.executable, CLUSTER, verb, "--name", NAME, *words)],
                          capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL)


@contextlib.contextmanager
def two_hosts(rate):
    try:
        started = cluster("up", "--hosts", 2, "--rate", rate)
        if started.returncode == 3:
            pytest.exit(f"skipped: {started.stderr.strip()}", returncode=77)
        assert started.returncode == 0, started.stderr
        yield
    finally:
        cluster("down")
