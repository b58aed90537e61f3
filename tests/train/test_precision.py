"""A precision that the processor cannot compute in is advised against, not refused."""

import pytest
import torch

from train.precision import advice

CPU = torch.device("cpu")


@pytest.mark.parametrize("found", ["amx_bf16", "avx512_bf16", "bf16"])
def test_a_cpu_with_bf16_is_not_advised_against(monkeypatch, found):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, found: True})
    assert advice("bf16", CPU) == ""


def test_a_cpu_without_bf16_is_advised_against(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False})
    assert "fp32 is likely faster" in advice("bf16", CPU)
    assert advice("fp32", CPU) == "" and advice("bf16", torch.device("cuda")) == ""
