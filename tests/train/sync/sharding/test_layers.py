"""Repeated layers of a model are found, except those that share a parameter with others."""

from torch import nn

from train.sync.sharding.layers import repeated_layers


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.head = nn.Linear(3, 3)


def test_repeated_layers_leave_out_a_layer_with_a_shared_parameter():
    network = Network()
    first, second, third = network.layers
    assert repeated_layers(network) == [first, second, third]
    network.head.weight = second.weight
    assert repeated_layers(network) == [first, third]
    network.layers[2] = first
    assert repeated_layers(network) == []


def test_nested_list_belongs_to_its_layer():
    network = nn.Sequential(Network(), nn.ModuleList([Network(), Network()]))
    assert repeated_layers(network) == [*network[0].layers, *network[1]]


def test_list_of_one_layer_or_of_mixed_classes_is_not_repeated():
    alone = nn.ModuleList([nn.Linear(3, 3)])
    mixed = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
    assert repeated_layers(nn.Sequential(alone, mixed)) == []
    assert repeated_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
