"""The bytes that a host must send and receive follow from the collectives, for any placement."""

import csv

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.launch.submit import wait_until
from train.records import traffic
from train.records.traffic import Meter, Sampler, crossing, difference_note, on_the_wire
from train.sync.ranks import CollectiveLedger

OPERATIONS = [
    "all_reduce", "all_gather", "all_to_all", "reduce", "gather", "scatter", "broadcast",
]  # fmt: skip
FOUR = ["a", "b", "c", "d"]


@given(
    st.sampled_from(OPERATIONS),
    st.integers(0, 10**9),
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
)
def test_sent_bytes_equal_received_bytes(operation, nbytes, workers):
    hosts = [f"node{node}" for node, count in enumerate(workers) for _ in range(count)]
    flows = [crossing(operation, nbytes, hosts, host) for host in sorted(set(hosts))]
    assert sum(flow for flow, _ in flows) == pytest.approx(sum(other for _, other in flows))
    if len(workers) == 1:
        assert flows == [(0, 0)]


@pytest.mark.parametrize(
    ("operation", "hosts", "first", "last"),
    [
        ("all_reduce", "abcd", (150, 150), (150, 150)),
        ("all_to_all", "abcd", (75, 75), (75, 75)),
        ("gather", "abcd", (0, 300), (100, 0)),
        ("scatter", "abcd", (300, 0), (0, 100)),
        ("broadcast", "abcd", (200, 0), (0, 100)),
        ("reduce", "abcd", (75, 150), (100, 75)),
        # workers of one host share its link
        ("all_reduce", "aabb", (150, 150), (150, 150)),
        ("gather", "aabb", (0, 200), (200, 0)),
        ("all_to_all", "aabb", (100, 100), (100, 100)),
    ],
)
def test_bytes_between_hosts_of_four_workers(operation, hosts, first, last):
    assert crossing(operation, 100, hosts, hosts[0]) == pytest.approx(first)
    assert crossing(operation, 100, hosts, hosts[-1]) == pytest.approx(last)


def test_unknown_operation_is_noted():
    with pytest.raises(ValueError, match="gossip"):
        crossing("gossip", 1, FOUR, "a")


def test_header_bytes_follow_mtu_of_ethernet_or_virtual_link():
    assert on_the_wire(1e6, 0, 1514) == pytest.approx(1.0456e6, rel=1e-3)
    assert on_the_wire(1e6, 0, 65536) == pytest.approx(1.001e6, rel=1e-4)
    assert on_the_wire(0, 1e6, 1514) == pytest.approx(0.0228e6, rel=1e-2)


def test_other_traffic_is_noted_only_beside_large_transfers():
    assert difference_note((100e6, 100e6), (103_000_000, 101_000_000)) == ""
    assert difference_note((100e6, 100e6), (103_000_000, 150_000_000)).startswith(
        "1.50 times the expected bytes r"
    )
    assert difference_note((100e6, 0), (98_000_000, 0)) == ""  # the rest is still in a queue
    assert difference_note((100e6, 0), (60_000_000, 0)).endswith("another interface")
    assert difference_note((1e6, 1e6), (9_000_000, 9_000_000)) == ""


def test_meter_counts_bytes_since_its_start(tmp_path, monkeypatch):
    counted = [(0, 0)]
    monkeypatch.setattr(traffic, "_counters", lambda interface: counted[-1])
    ledger = CollectiveLedger()
    counters = ledger.gradients, ledger.control
    ledger.gradient("gather", torch.zeros(10))
    meter = Meter(0, FOUR, "eth0", *counters, tmp_path / "traffic" / "a.csv")
    ledger.gradient("gather", torch.zeros(100))
    ledger.control["all_gather"] += 8
    counted.append((50, 1300))
    record = meter.end(step=3, epoch=1, steps=3)
    meter.close()
    assert (record.payload_sent_bytes, record.payload_received_bytes) == (0, 1200)
    assert (record.control_sent_bytes, record.control_received_bytes) == (24, 24)
    assert (record.observed_sent_bytes, record.observed_received_bytes) == (50, 1300)
    assert record.host == "a" and record.steps == 3 and record.note == ""
    ledger.gradient("gossip", torch.zeros(1))
    again = Meter(0, FOUR, "eth0", *counters, tmp_path / "again.csv")
    ledger.gradient("gossip", torch.zeros(1))
    assert "'gossip' is unknown" in again.end(step=4, epoch=1, steps=1).note
    again.close()


def test_sampler_writes_rates_of_a_real_interface(tmp_path):
    interface = "lo" if "lo" in psutil.net_if_stats() else next(iter(psutil.net_if_stats()))
    sampler = Sampler(interface, tmp_path / "host.csv", every_s=0.02)
    wait_until(lambda: (tmp_path / "host.csv").read_text().count("\n") > 2)
    sampler.close()
    rows = list(csv.DictReader((tmp_path / "host.csv").open()))
    assert all(float(row["send_bytes_per_s"]) >= 0 for row in rows)
    assert traffic.packet_size(interface) > 1000
