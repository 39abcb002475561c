"""The exchange over real sockets: the formula's bits by every route, and the bytes that routing requires.

Skipped (exit status 77), with the reason, where this machine cannot make network namespaces.
"""

import json
import math
import os

import pytest
from hosts import cluster, two_hosts

CHECKS = os.path.join(os.environ["MOESAIC_BUILD"], "exchange_mpi_test")
BENCH = os.path.join(os.environ["MOESAIC_BUILD"], "bench_exchange")


@pytest.fixture(scope="module", autouse=True)
def hosts():
    with two_hosts("1gbit"):
        yield


def run(ranks_per_host, *words):
    """The JSON lines of an MPI job."""
    ran = cluster("run", "--ranks-per-host", ranks_per_host, "--timeout", 100, "--", *words)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


def bytes_sent_by(*words):
    """Of each host, while a job runs."""
    def sent():
        return [host["tx_bytes"] for host in json.loads(cluster("counters").stdout)["hosts"]]

    before = sent()
    run(3, *words)  # of two the order of a sum would not show
    return [now - then for now, then in zip(sent(), before, strict=True)]


def test_every_route_gives_the_bits_of_the_formula_between_hosts():
    chatter = max(bytes_sent_by("true"))  # of mpirun with its hosts
    assert min(bytes_sent_by(CHECKS, 2)) > chatter + 100_000  # the rows and sums, though few, crossed the network


def required_bytes(tokens, choices, experts, row, sum):
    """Of one card, each way, by rail_dedup: a row out and a sum back for each token with an expert on the other host, and
    what says where it goes: 4 bytes for an owner, 8 for a choice, a byte for the owners of a row. As many as random choices
    without repetition make on average."""
    def reached(share):  # of tokens, those with a choice among that share of the experts
        return 1 - math.comb(round(experts * (1 - share)), choices) / math.comb(experts, choices)

    return 2 * tokens * (reached(1 / 2) * (row + sum + 1) + 2 * reached(1 / 4) * 4 + choices / 2 * 8)


@pytest.mark.parametrize("who, sum", [("ours", 1024), ("ours_fp32_sums", 2048)])
def test_cards_carry_what_routing_requires_and_at_most_3_percent_more(who, sum):
    tokens, choices = 2048, 4
    lines = run(2, BENCH, who, 1, f"{tokens},{choices},0")
    nic = {line["way"]: line["nic_bytes"] for line in lines}
    assert set(nic) == {"flat", "leader", "rail", "rail_dedup", "auto"}
    for line in lines:
        assert line["claimed_bytes"] <= line["nic_bytes"] < 1.03 * line["claimed_bytes"], line
    required = required_bytes(tokens, choices, experts=64, row=1024, sum=sum)
    assert required == pytest.approx(nic["rail_dedup"], rel=0.03)
    assert nic["rail_dedup"] < nic["flat"]
