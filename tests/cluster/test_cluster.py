"""tools/cluster: hosts that share nothing but links of the stated rate, and nothing left behind, whatever dies.

Skipped (exit status 77), with the reason, where this machine cannot make network namespaces. The only times looked at are
lower bounds: no byte comes faster than the link.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CLUSTER = HERE.parents[1] / "tools" / "cluster"
SOCKETS = [sys.executable, HERE / "socket_probe.py"]
MPI = os.path.join(os.environ["MOESAIC_BUILD"], "cluster_mpi_probe")
NAME = f"test_{os.getpid()}"
OTHER = f"test_{os.getpid()}_other"
MEGABYTE = 1_000_000


def words_of(verb, *words, name=NAME):
    named = [] if verb == "status" or name is None else ["--name", name]
    return [str(word) for word in (sys.executable, CLUSTER, verb, *named, *words)]


def cluster(verb, *words, name=NAME, **popen):
    return subprocess.run(words_of(verb, *words, name=name), capture_output=True, text=True, timeout=60,
                          **{"stdin": subprocess.DEVNULL, **popen})


def done(ran):
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def run(*words, **popen):
    """The JSON lines that the ranks print."""
    out = done(cluster("run", "--timeout", 30, *words, **popen))
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def sockets(*words, ranks_per_host=1, **popen):
    return run("--launcher", "torch", "--ranks-per-host", ranks_per_host, "--", *SOCKETS, *words, **popen)


def counters(name=NAME):
    return json.loads(done(cluster("counters", name=name)))["hosts"]


class NicBytes:
    """[(sent, received) of host 0, of host 1, ...] while the `with` lasted."""

    def __enter__(self):
        self.before = counters()
        return self

    def __exit__(self, *_):
        self.hosts = [(b["tx_bytes"] - a["tx_bytes"], b["rx_bytes"] - a["rx_bytes"])
                      for a, b in zip(self.before, counters(), strict=True)]


def namespaces(name=NAME):
    folder = Path("/run/netns")
    return {f.name for f in folder.iterdir() if f.name.startswith(f"moesaic-{name}-")} if folder.is_dir() else set()


def processes(word):
    """Living processes with `word` in their command line, but for this one."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if word.encode() in (folder / "cmdline").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # it has just ended
                pass
    return found


def wait_until(condition, timeout=30):
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end, f"still waiting after {timeout} s"
        time.sleep(0.01)


def leftovers(name):
    return [*namespaces(name), *processes(f"/run/moesaic-cluster/{name}/"),
            *Path("/run/moesaic-cluster").glob(f"{name}*")]


@pytest.fixture(scope="module", autouse=True)
def hosts():
    """Three hosts serve most tests. What a machine says that cannot make them becomes the reason to skip."""
    try:
        started = cluster("up", "--hosts", 3, "--rate", "100mbit")
        if started.returncode == 3:
            pytest.exit(f"skipped: {started.stderr.strip()}", returncode=77)
        done(started)
        yield
    finally:
        for name in (NAME, OTHER):
            cluster("down", name=name)
    assert leftovers(NAME) == [] and leftovers(OTHER) == []


# ---- what a rank sees


def test_mpi_ranks_share_memory_inside_a_host_only():
    seen = sorted(run("--ranks-per-host", 2, "--", MPI, "where"), key=lambda rank: rank["rank"])
    assert [rank["host"] for rank in seen] == ["h0", "h0", "h1", "h1", "h2", "h2"]
    assert all(rank["share_memory"] == rank["share_files"] == 2 for rank in seen)


def test_torch_ranks_are_told_who_they_are():
    seen = sorted(run("--launcher", "torch", "--ranks-per-host", 2, "--env", "EXTRA=a=b", "--", *SOCKETS, "where"),
                  key=lambda rank: int(rank["RANK"]))
    common = {"WORLD_SIZE": "6", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500",
              "GLOO_SOCKET_IFNAME": "eth0", "EXTRA": "a=b", "tmpdir_is_empty": True}
    assert seen == [{"host": f"h{rank // 2}", "RANK": str(rank), "LOCAL_RANK": str(rank % 2), **common} for rank in range(6)]


def test_mpi_ranks_get_variables_on_every_host():
    out = done(cluster("run", "--timeout", 30, "--env", "EXTRA=a b", "--", "sh", "-c", 'echo "$(hostname) $EXTRA"'))
    assert sorted(out.splitlines()) == ["h0 a b", "h1 a b", "h2 a b"]


# ---- bytes and rate


def test_bytes_between_hosts_are_counted_and_no_others():
    with NicBytes() as nic:
        sockets("to_first", 2 * MEGABYTE, 2)
    (_, received), idle, (sent, _) = nic.hosts
    assert 2 * MEGABYTE < sent == received < 1.03 * 2 * MEGABYTE + 10_000
    assert idle == (0, 0)


def test_bytes_inside_a_host_do_not_touch_the_network():
    with NicBytes() as nic:
        (moved,) = sockets("to_first", 2 * MEGABYTE, 1, ranks_per_host=2)  # rank 1 lives beside rank 0
    assert moved["congestion_control"] == "cubic"
    assert nic.hosts == [(0, 0)] * 3


def test_bytes_of_mpi_messages_are_counted_between_hosts_only():
    chatter = 200_000  # of mpirun with its hosts
    with NicBytes() as inside:
        run("--ranks-per-host", 2, "--", MPI, "send", 0, 1, 20 * MEGABYTE)
    assert max(sum(host) for host in inside.hosts) < chatter
    with NicBytes() as between:
        run("--ranks-per-host", 2, "--", MPI, "send", 1, 5, 2 * MEGABYTE)
    (sent, _), (_, other), (_, received) = between.hosts
    assert 2 * MEGABYTE < min(sent, received) <= max(sent, received) < 1.03 * 2 * MEGABYTE + chatter
    assert other < chatter


def not_faster_than(rate, way, others):
    (moved,) = sockets(way, 2 * MEGABYTE, *others)
    burst = 20_000  # may pass at once
    assert 8 * (2 * MEGABYTE * len(others) - burst) / moved["seconds"] <= rate
    assert moved["congestion_control"] == "cubic"  # not the machine's, whatever that is


@pytest.mark.parametrize("others", [[1], [1, 2]], ids=["one", "two"])
@pytest.mark.parametrize("way", ["to_first", "from_first"])
def test_no_host_sends_or_receives_faster_than_its_link(way, others):
    not_faster_than(100e6, way, others)


def test_the_rate_can_be_changed():
    done(cluster("rate", "50mbit"))
    not_faster_than(50e6, "to_first", [1])
    assert f"{NAME}: 3 hosts, 50mbit, 0 processes" in done(cluster("status"))
    done(cluster("rate", "100mbit"))


# ---- ends


def test_the_status_of_the_program_is_passed_on():
    for launcher in ("mpirun", "torch"):
        ran = cluster("run", "--launcher", launcher, "--", "sh", "-c", "[ $(hostname) != h1 ] || exit 7")
        assert ran.returncode == 7, ran.stderr


def test_ranks_that_end_at_once_are_not_lost():
    done(cluster("run", "--launcher", "torch", "--ranks-per-host", 8, "--", "true"))


def test_a_killed_rank_ends_the_job():
    begin = time.monotonic()
    ran = cluster("run", "--timeout", 50, "--ranks-per-host", 2, "--", MPI, "die", 3)
    assert ran.returncode == 128 + signal.SIGKILL
    assert "rank 3" in ran.stderr and "signal 9" in ran.stderr
    ran = cluster("run", "--timeout", 50, "--launcher", "torch", "--", "sh", "-c", "[ $RANK != 1 ] && sleep 987 || kill -9 $$")
    assert ran.returncode == 128 + signal.SIGKILL
    assert time.monotonic() - begin < 50  # by the death, not by the time limit
    assert processes("cluster_mpi_probe") == [] and f"{NAME}: 3 hosts, 100mbit, 0 processes" in done(cluster("status"))


def test_the_time_limit_ends_the_job_and_all_it_started():
    # The daemon leaves its session, and its parent ends: no process group and no parent leads to it.
    job = subprocess.Popen(words_of("run", "--timeout", 3, "--", "sh", "-c", "setsid sleep 98765 & sleep 98765"),
                           stderr=subprocess.PIPE, text=True)
    wait_until(lambda: sum("sleep" in name_of(pid) for pid in processes("98765")) == 6)
    assert "ran longer than 3 s" in job.communicate(timeout=30)[1]
    assert job.returncode == 124 and processes("98765") == []


def test_a_daemon_of_a_finished_job_is_ended():
    done(cluster("run", "--launcher", "torch", "--", "sh", "-c", "setsid sleep 98764 >/dev/null 2>&1 & exit 0"))
    wait_until(lambda: processes("98764") == [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
def test_no_process_outlives_cluster_run(number):
    job = subprocess.Popen(words_of("run", "--launcher", "torch", "--", "sleep", 98763), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ranks = f"{NAME}/tmp"  # as in the first command on each host
    wait_until(lambda: sum("sleep" in name_of(pid) for pid in processes("98763")) == 3)
    job.send_signal(number)
    assert job.wait(30) in (128 + number, -number)
    wait_until(lambda: processes("98763") == [] and processes(ranks) == [])


def name_of(pid):
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""


# ---- several clusters, half clusters


def test_two_clusters_know_nothing_of_each_other():
    done(cluster("up", "--hosts", 2, "--rate", "1gbit", name=OTHER))
    with NicBytes() as nic:
        sockets("to_first", MEGABYTE, 1, name=OTHER)
    assert nic.hosts == [(0, 0)] * 3 and counters(OTHER)[1]["tx_bytes"] > MEGABYTE
    job = subprocess.Popen(words_of("run", "--launcher", "torch", "--", "sleep", 98762))
    try:
        wait_until(lambda: sum("sleep" in name_of(pid) for pid in processes("98762")) == 3)
        done(cluster("down", name=OTHER))
        assert leftovers(OTHER) == []
        assert job.poll() is None and len(namespaces()) == 4  # three hosts and the bridge
    finally:
        job.terminate()
        job.wait()


def test_down_ends_what_runs_and_can_be_repeated():
    done(cluster("up", "--hosts", 2, "--rate", "1gbit", name=OTHER))
    job = subprocess.Popen(words_of("run", "--launcher", "torch", "--", "sleep", 98761, name=OTHER), stderr=subprocess.DEVNULL)
    wait_until(lambda: sum("sleep" in name_of(pid) for pid in processes("98761")) == 2)
    done(cluster("down", name=OTHER))
    assert job.wait(30) != 0
    assert processes("98761") == [] and leftovers(OTHER) == []
    done(cluster("down", name=OTHER))


def test_a_killed_up_is_cleaned_up():
    for count in (1, 4):  # namespaces that it has made when it dies
        starting = subprocess.Popen(words_of("up", "--hosts", 8, "--rate", "1gbit", name=OTHER), stderr=subprocess.DEVNULL)
        wait_until(lambda: len(namespaces(OTHER)) >= count)  # noqa: B023
        starting.kill()
        starting.wait()
        refused("cluster 'test", "is not up", ran=cluster("counters", name=OTHER))
        assert f"{OTHER}: half up" in done(cluster("status"))
        if count == 1:
            done(cluster("down", name=OTHER))
            assert leftovers(OTHER) == []
    done(cluster("up", "--hosts", 2, "--rate", "1gbit", name=OTHER))
    assert len(namespaces(OTHER)) == 3
    done(cluster("down", name=OTHER))


def test_an_interrupted_up_leaves_nothing():
    starting = subprocess.Popen(words_of("up", "--hosts", 8, "--rate", "1gbit", name=OTHER), stderr=subprocess.DEVNULL)
    wait_until(lambda: len(namespaces(OTHER)) >= 2)
    starting.terminate()
    assert starting.wait(30) != 0
    assert leftovers(OTHER) == []


@pytest.mark.parametrize("how", ["end_of_input", "SIGTERM", "SIGINT"])
def test_a_held_cluster_lives_as_long_as_its_holder(how):
    holder = subprocess.Popen(words_of("up", "--hosts", 2, "--rate", "1gbit", "--hold", name=OTHER),
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert json.loads(holder.stdout.readline()) == {"name": OTHER, "hosts": 2, "rate": "1gbit"}
    assert len(namespaces(OTHER)) == 3
    if how == "end_of_input":
        holder.stdin.close()
    else:
        holder.send_signal(getattr(signal, how))
    holder.wait(30)
    assert leftovers(OTHER) == []


# ---- what cannot be done is said


def refused(*words, ran, status=None):
    assert ran.returncode == status if status else ran.returncode != 0, ran.stdout + ran.stderr
    for word in words:
        assert word in ran.stderr, ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("rate", ["fast", "1tbit", "0mbit", "0.5mbit", "-1gbit", "1e3mbit", "200gbit", "1gbit; reboot"])
def test_a_bad_rate_is_refused(rate):
    refused(f"bad rate '{rate}'", "such as 100mbit", ran=cluster("up", "--hosts", 2, f"--rate={rate}", name=OTHER), status=2)
    assert leftovers(OTHER) == []


@pytest.mark.parametrize("count", ["0", "-1", "65"])
def test_a_wrong_number_of_hosts_is_refused(count):
    refused(f"--hosts {count}: expected 1 to 64", ran=cluster("up", f"--hosts={count}", "--rate=1gbit", name=OTHER), status=2)


@pytest.mark.parametrize("name", ["", "a b", "a-h0", "../x", "x" * 33])
def test_a_bad_name_is_refused(name):
    refused("expected 1 to 32 letters", ran=cluster("down", name=name), status=2)


def test_wrong_uses_of_run_are_refused():
    refused("no program given", ran=cluster("run"), status=2)
    refused("no such program", "absent_program", ran=cluster("run", "--", "absent_program"), status=2)
    refused("expected NAME=VALUE", ran=cluster("run", "--env", "A", "--", "true"), status=2)
    refused("at least 1", ran=cluster("run", "--ranks-per-host", 0, "--", "true"), status=2)
    refused("above 0", ran=cluster("run", "--timeout", 0, "--", "true"), status=2)
    refused(f"'{OTHER}' is not up", NAME, ran=cluster("run", "--", "true", name=OTHER), status=1)
    refused("already up", f"cluster down --name {NAME}", ran=cluster("up", "--hosts", 2, "--rate", "1gbit"), status=1)


def fake(folder, program, script):
    (folder / program).write_text(f"#!/bin/sh\n{script}\n")
    (folder / program).chmod(0o755)
    return {"env": {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}}


def up_other(**popen):
    return cluster("up", "--hosts", 2, "--rate", "1gbit", name=OTHER, **popen)


def test_without_iproute2_its_package_is_named(tmp_path):
    refused("ip is not installed", "apt-get install iproute2", ran=up_other(env={"PATH": str(tmp_path)}), status=3)


def test_a_kernel_without_namespaces_is_named(tmp_path):
    environment = fake(tmp_path, "ip", 'echo "mount --make-shared /run/netns failed: Operation not permitted" >&2; exit 1')
    refused("does this kernel or container allow namespaces?", "Operation not permitted", ran=up_other(**environment), status=3)
    assert leftovers(OTHER) == []


def test_a_kernel_without_the_schedulers_is_named_and_nothing_stays(tmp_path):
    environment = fake(tmp_path, "tc", 'echo "Error: Specified qdisc kind is unknown." >&2; exit 2')
    refused("schedulers htb and bfifo", "kind is unknown", ran=up_other(**environment), status=3)
    assert leftovers(OTHER) == []


def test_who_is_not_root_is_told_so(tmp_path):
    for file in ("cluster", "cluster_network.py"):
        shutil.copy(CLUSTER.parent / file, tmp_path)
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    words = ["/usr/bin/python3", tmp_path / "cluster", "up", "--hosts", "2", "--rate", "1gbit"]
    ran = subprocess.run(words, capture_output=True, text=True, user=65534, group=65534, extra_groups=[], timeout=60)
    refused("need root; this is user 65534", ran=ran, status=3)
