"""Of a model's layers those are gathered by themselves that nothing outside has a part of."""

from torch import nn

from train.sync.sharding.layers import repeated_layers


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.head = nn.Linear(3, 3)


def test_each_layer_of_a_list_is_one_but_what_others_hold_is_none():
    network = Network()
    first, second, third = network.layers
    assert repeated_layers(network) == [first, second, third]
    network.head.weight = second.weight
    assert repeated_layers(network) == [first, third]
    network.layers[2] = first
    assert repeated_layers(network) == []


def test_a_list_within_a_layer_belongs_to_it():
    network = nn.Sequential(Network(), nn.ModuleList([Network(), Network()]))
    assert repeated_layers(network) == [*network[0].layers, *network[1]]


def test_a_list_of_one_or_of_several_kinds_is_no_repetition():
    alone = nn.ModuleList([nn.Linear(3, 3)])
    mixed = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
    assert repeated_layers(nn.Sequential(alone, mixed)) == []
    assert repeated_layers(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))) == []
