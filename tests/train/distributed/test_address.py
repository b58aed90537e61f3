"""This machine's addresses, as reported by the kernel, are the same as psutil's."""

import socket

import psutil

from train.distributed.address import interfaces


def test_interfaces_are_those_that_psutil_lists():
    known = {
        (name, one.address.partition("%")[0])
        for name, some in psutil.net_if_addrs().items()
        for one in some
        if one.family in (socket.AF_INET, socket.AF_INET6)
    }
    assert set(interfaces()) == known
    assert ("lo", "127.0.0.1") in known
