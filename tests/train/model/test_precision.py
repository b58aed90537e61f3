"""Weights are float32 unless requested otherwise; weights that no cast can keep are refused."""

import pytest
import torch
from torch import nn

from muster.errors import UsageError
from train.loop.step import to_device
from train.model.precision import advice, move_model, set_float32_matmul

CPU = torch.device("cpu")


class Mixed(nn.Module):
    """A parameter and a buffer of each kind that a model may bring."""

    def __init__(self, **params: torch.Tensor) -> None:
        super().__init__()
        for dtype in (torch.float16, torch.float32, torch.float64, torch.bfloat16):
            name = "in_" + str(dtype).removeprefix("torch.")
            self.register_parameter(name, nn.Parameter(torch.ones(2, dtype=dtype)))
            self.register_buffer(f"{name}_buffer", torch.ones(2, dtype=dtype))
        self.register_buffer("turns", torch.tensor([1 + 2j]))
        self.order = nn.Parameter(torch.arange(3), requires_grad=False)
        for name, tensor in params.items():
            self.register_parameter(name, nn.Parameter(tensor, requires_grad=False))


@pytest.mark.parametrize(
    ("precision", "real", "low"),
    [("fp32", torch.float32, torch.bfloat16), ("bf16", torch.float32, torch.bfloat16),
     ("fp64", torch.float64, torch.float64)],
)  # fmt: skip
def test_bfloat16_parameters_stay_and_others_are_cast(precision, real, low):
    model = move_model(Mixed(), precision, CPU)
    for name in ("in_float16", "in_float32", "in_float64"):
        assert getattr(model, name).dtype == getattr(model, f"{name}_buffer").dtype == real
    assert model.in_bfloat16.dtype == model.in_bfloat16_buffer.dtype == low
    assert model.turns.tolist() == [1 + 2j] and model.order.dtype == torch.int64


def test_tied_parameters_stay_tied_after_a_cast():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    assert move_model(model, "fp64", CPU)[1].weight is model[0].weight


def test_float_inputs_are_cast_to_the_models_dtype_and_integers_stay():
    model = nn.Module()
    model.order = nn.Parameter(torch.arange(3), requires_grad=False)
    model.weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
    batch = to_device({"x": torch.tensor([0.5]), "labels": torch.tensor([1])}, model, CPU)
    assert batch["x"].dtype == torch.float64 and batch["labels"].dtype == torch.int64


@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp64"])
def test_float_labels_keep_at_least_float32(precision):
    """A loss can be computed from them and the outputs of a bfloat16 model."""
    model = move_model(nn.Linear(1, 1).bfloat16(), precision, CPU)
    scores = torch.tensor([[2.6], [4.75]])
    batch = to_device({"x": torch.ones(2, 1), "labels": scores}, model, CPU)
    assert torch.equal(batch["labels"].float(), scores)
    loss = nn.functional.mse_loss(model(batch["x"]), batch["labels"])
    loss.backward()
    assert model.weight.grad.dtype == batch["x"].dtype == model.weight.dtype


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.ones(2, dtype=torch.complex64), "parameter codes is complex (complex64)"),
        (torch.ones(2, dtype=torch.int8), "parameter codes is quantised (int8)"),
        (torch.ones(2, dtype=torch.uint8), "parameter codes is quantised (uint8)"),
        (torch.ones(2).to(torch.float8_e4m3fn), "parameter codes is quantised (float8_e4m3fn)"),
    ],
)
def test_complex_or_quantised_parameter_is_refused_by_name(tensor, message):
    with pytest.raises(UsageError) as refusal:
        move_model(Mixed(codes=tensor), "fp32", CPU)
    assert message in str(refusal.value)


@pytest.mark.filterwarnings("ignore:torch.quantize")
def test_quantised_layer_is_refused_by_name():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    kind = torch.ao.nn.quantized.dynamic.Linear
    model[1] = kind(4, 4)
    with pytest.raises(UsageError, match=r"the model's part 1 is quantised \(Linear\)"):
        move_model(model, "fp32", CPU)
    base = nn.Linear(4, 4)
    base.hf_quantizer = object()  # as transformers marks quantised models
    with pytest.raises(UsageError, match="the model's part 0 is quantised"):
        move_model(nn.Sequential(base), "fp32", CPU)


@pytest.mark.parametrize("feature", ["amx_bf16", "avx512_bf16", "bf16"])
def test_bf16_on_a_cpu_with_its_instructions_has_no_advice(monkeypatch, feature):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, feature: True})
    assert advice("bf16", CPU) == ""


def test_bf16_on_a_cpu_without_its_instructions_is_advised_against(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "amx_bf16": False})
    assert "fp32" in advice("bf16", CPU)
    assert advice("fp32", CPU) == "" and advice("bf16", torch.device("cuda")) == ""


def test_float32_matmul_on_gpu_is_shown_and_torchs_default_stays():
    gpu = torch.device("cuda")
    assert "highest, torch's default; --float32-matmul high (TF32)" in advice("fp32", gpu)
    try:
        torch.set_float32_matmul_precision("high")
        set_float32_matmul("highest")  # the default keeps a task's own setting
        assert advice("fp32", gpu).endswith(" high")
        set_float32_matmul("medium")
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")
