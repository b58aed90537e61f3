"""reducer.py's assumptions about private parts of torch's DDP hold in this version of torch."""

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.distributed import Join

from train.sync.ddp import reducer
from train.sync.ddp.hooks import completed_future
from train.sync.ddp.torch_ddp import restore_bucket_order

BUCKET_BYTES = 16  # of two parameters of the model


def chain() -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(1, 1) for _ in range(4)))


def make_ddp(model: nn.Module, **options) -> DistributedDataParallel:
    return DistributedDataParallel(model, bucket_cap_mb=BUCKET_BYTES / 2**20, **options)


def test_buckets_are_cut_in_the_given_order_and_stay_so(alone):
    model = make_ddp(chain())
    params = list(model.parameters())
    order = [3, 1, 4, 0, 5, 2, 7, 6]
    assert reducer.can_cut_buckets(model)
    reducer.cut_buckets(model, [params[place] for place in order])
    assert all(param.grad is None for param in params)
    for _ in range(3):
        model(torch.ones(1, 1)).sum().backward()
    assert reducer.bucket_order(model) == order
    assert not reducer.can_cut_buckets(model)


def test_bucket_order_of_first_pass_is_readable_and_reusable(alone):
    first = make_ddp(chain())
    first(torch.ones(1, 1)).sum().backward()
    order = reducer.bucket_order(first)
    assert sorted(order) == [*range(8)]
    second = make_ddp(chain())
    params = list(second.parameters())
    reducer.cut_buckets(second, [params[place] for place in order])
    second(torch.ones(1, 1)).sum().backward()
    assert reducer.bucket_order(second) == order
    assert reducer.collectives(second) == reducer.collectives(first)


def test_static_graph_keeps_its_own_buckets(alone):
    assert not reducer.can_cut_buckets(make_ddp(chain(), static_graph=True))


def test_resumed_model_with_a_sparse_embedding_trains(alone):
    models = [make_ddp(nn.Sequential(nn.Embedding(4, 1, sparse=True), *chain())) for _ in range(2)]
    for model in models:
        if model is models[1]:
            restore_bucket_order(model, reducer.bucket_order(models[0]))
        model(torch.tensor([1])).sum().backward()
        assert model.module[0].weight.grad.is_sparse


def test_backward_pass_with_unused_parameters_ends(alone):
    model = make_ddp(nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1)]))
    used, unused = model.module
    unused.bias.requires_grad = False  # changed after DDP was made
    reached = []
    params = list(model.parameters())
    for param in params:
        param.requires_grad_()
        param.register_post_accumulate_grad_hook(reached.append)
    unused.bias.requires_grad = False
    for _ in range(2):  # DDP refuses a second pass if the first one has not ended
        reducer.reach(used(torch.ones(1, 1)).sum(), params).backward()
        model.reducer.prepare_for_backward([])
    assert {id(param) for param in reached} == {id(param) for param in params}
    assert used.weight.grad.item() == 2
    assert not unused.bias.requires_grad


def test_bytes_and_seconds_of_each_step_are_in_the_log(alone):
    model = make_ddp(chain())
    reducer.log_each_step(model)
    reducer.cut_buckets(model, list(model.parameters())[::-1])
    for _ in range(12):
        model(torch.ones(1, 1)).sum().backward()
        comm_s, overlapped_s = reducer.logged_seconds(reducer.logged(model))
        assert comm_s >= overlapped_s >= 0
        assert comm_s > 0
    sent = reducer.collectives(model, reducer.logged(model))
    assert sum(one.nbytes for one in sent) == sum(param.nbytes for param in model.parameters())
    assert {one.operation for one in sent} == {"all_reduce"}
    assert len(sent) > 1


def test_communication_hook_is_detected_and_not_copied(alone):
    model = make_ddp(chain())
    assert reducer.hooks_of(model) == []

    def hook(_, bucket):
        assert reducer.in_backward_pass()
        return completed_future(bucket.buffer())

    model.register_comm_hook(None, hook)
    assert reducer.hooks_of(model) == [hook]
    assert reducer.without_hooks(vars(model))["_comm_hooks"] == []
    assert not reducer.in_backward_pass()
    model(torch.ones(1, 1)).sum().backward()


def test_divisor_of_join_is_known(alone):
    model = make_ddp(chain())
    assert not reducer.divides_by_joined(model)
    with model.join():
        assert not reducer.divides_by_joined(model)
    with model.join(divide_by_initial_world_size=False):
        assert reducer.divides_by_joined(model)
    with Join([model], divide_by_initial_world_size=False):
        assert reducer.divides_by_joined(model)
