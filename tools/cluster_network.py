"""cluster_network.py: the namespaces, links and limits that tools/cluster is made of. docs/cluster.md says why each is so."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

PREFIX = "moesaic-"
NETWORK = "10.77.0.0/24"  # the same in every cluster: their bridges are apart
MAX_HOSTS = 64
MISUSE, CANNOT = 2, 3  # exit statuses


class Failure(Exception):
    def __init__(self, message, status=1):
        super().__init__(message)
        self.status = status


def command(words, lines=None, doing=""):
    """Its standard output. `lines`: what it reads. A failure says what was being done."""
    ran = subprocess.run(words, input=lines, capture_output=True, text=True)
    if ran.returncode != 0:
        raise Failure(f"cannot {doing or shlex.join(words)}: {ran.stderr.strip() or ran.stdout.strip()}", CANNOT)
    return ran.stdout


# ---- names and addresses


def hub(name):
    return f"{PREFIX}{name}-hub"


def namespace(name, host):
    return f"{PREFIX}{name}-h{host}"


def address(host):
    return f"10.77.0.{host + 1}"


def mac(host):
    return f"02:77:00:00:00:{host + 1:02x}"


def namespaces(name):
    """Those that exist, also of a cluster that is half up."""
    folder = Path("/run/netns")
    pattern = re.compile(rf"{PREFIX}{name}-(hub|h\d+)")
    return sorted(f.name for f in folder.iterdir() if pattern.fullmatch(f.name)) if folder.is_dir() else []


def clusters_with_namespaces():
    folder = Path("/run/netns")
    found = (re.fullmatch(rf"{PREFIX}(\w+)-(?:hub|h\d+)", f.name) for f in folder.iterdir()) if folder.is_dir() else ()
    return {match[1] for match in found if match}


def processes(name):
    return [int(pid) for ns in namespaces(name)
            for pid in subprocess.run(["ip", "netns", "pids", ns], capture_output=True, text=True).stdout.split()]


# ---- rate


def bits_per_second(rate):
    """None for 'unlimited'."""
    if rate == "unlimited":
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(mbit|gbit)", rate)
    bits = round(float(match[1]) * {"mbit": 1e6, "gbit": 1e9}[match[2]]) if match else 0
    if not 10**6 <= bits <= 10**11:
        raise Failure(f"bad rate '{rate}': expected 1mbit to 100gbit, such as 100mbit, 2.5gbit, or 'unlimited'", MISUSE)
    return bits


def shape(ns, device, bits):
    """Limits what `device` sends. htb rather than tbf, which needs 1 ms of burst and costs CPU."""
    subprocess.run(["tc", "-n", ns, "qdisc", "del", "dev", device, "root"], capture_output=True)  # none is no error
    if bits is None:
        return
    # 125 us of line rate. A queue under some MiB drops in every all-to-all, and TCP then waits for its timers.
    burst = max(16 << 10, bits // 64_000)
    queue = min(max(4 << 20, bits // 400), 16 << 20)
    command(["tc", "-n", ns, "-batch", "-"], f"""
        qdisc add dev {device} root handle 1: htb default 1
        class add dev {device} parent 1: classid 1:1 htb rate {bits}bit ceil {bits}bit burst {burst} cburst {burst} quantum 60000
        qdisc add dev {device} parent 1:1 bfifo limit {queue}
        """, f"limit {device} of {ns} to {bits} bit/s (does this kernel have the schedulers htb and bfifo?)")


def shape_all(name, num_hosts, bits):
    for host in range(num_hosts):
        shape(namespace(name, host), "eth0", bits)
        shape(hub(name), f"p{host}", bits)  # or many senders would reach one host faster than its link


# ---- making and removing


def add_namespace(ns):
    command(["ip", "netns", "add", ns],
            doing=f"make the network namespace {ns} (does this kernel or container allow namespaces?)")
    # IPv6 would send neighbour discovery through the counted links.
    command(["ip", "netns", "exec", ns, "sh", "-c",
             "f=/proc/sys/net/ipv6/conf; [ ! -e $f ] || { echo 1 >$f/all/disable_ipv6; echo 1 >$f/default/disable_ipv6; }"],
            doing=f"switch off IPv6 in {ns}")


def build(name, num_hosts, bits):
    add_namespace(hub(name))
    command(["ip", "-n", hub(name), "-batch", "-"], "link add name br0 type bridge mcast_snooping 0\nlink set br0 up\n",
            "make a bridge")
    for host in range(num_hosts):
        ns = namespace(name, host)
        add_namespace(ns)
        command(["ip", "-n", hub(name), "-batch", "-"], f"""
            link add name p{host} type veth peer name eth0 netns {ns}
            link set dev p{host} master br0 up
            """, f"join {ns} to the bridge")
        # All addresses are told in advance: no ARP, no flooding, so the counters hold the programs' bytes and no others.
        command(["bridge", "-n", hub(name), "-batch", "-"], f"""
            link set dev p{host} learning off flood off mcast_flood off bcast_flood off
            fdb replace {mac(host)} dev p{host} master static
            """, f"tell the bridge where {ns} is")
        neighbours = "".join(f"neigh replace {address(other)} lladdr {mac(other)} dev eth0 nud permanent\n"
                             for other in range(num_hosts) if other != host)
        # The congestion control is set by route: a namespace may not choose a restricted one, and would inherit the machine's.
        command(["ip", "-n", ns, "-batch", "-"], f"""
            link set dev lo up
            link set dev eth0 address {mac(host)} up
            address add {address(host)}/24 dev eth0
            route replace {NETWORK} dev eth0 src {address(host)} congctl cubic
            route replace local {address(host)} dev eth0 table local scope host src {address(host)} congctl cubic
            {neighbours}""", f"configure {ns}")
    shape_all(name, num_hosts, bits)


def remove(name):
    """Ends the cluster's processes and removes its namespaces, and with them its links. It may be half there or absent."""
    for attempt in range(100):
        pids = [pid for pid in processes(name) if pid != os.getpid()]
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02 if attempt < 50 else 0.1)
    else:
        raise Failure(f"processes {pids} of cluster '{name}' do not end")
    for ns in namespaces(name):
        command(["ip", "netns", "del", ns])
