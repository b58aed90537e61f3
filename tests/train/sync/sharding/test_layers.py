"""Of a model's layers those are gathered by themselves that nothing outside has a part of."""

from torch import nn

from train.sync.sharding.parts import repeated_layers


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.head = nn.Linear(3, 3)


def test_each_layer_of_a_list_is_one():
    network = Network()
    assert repeated_layers(network) == list(network.layers)


def test_a_layer_with_a_parameter_of_the_head_is_none():
    network = Network()
    network.head.weight = network.layers[1].weight
    assert repeated_layers(network) == [network.layers[0], network.layers[2]]


def test_layers_that_share_a_module_are_none():
    network = Network()
    network.layers[2] = network.layers[0]
    assert repeated_layers(network) == [network.layers[1]]


def test_a_list_within_a_layer_belongs_to_it():
    network = nn.Sequential(Network(), nn.ModuleList([Network(), Network()]))
    assert repeated_layers(network) == [*network[0].layers, *network[1]]


def test_a_list_of_one_or_of_several_kinds_is_no_repetition():
    alone = nn.ModuleList([nn.Linear(3, 3)])
    mixed = nn.ModuleList([nn.Linear(3, 3), nn.Tanh()])
    assert repeated_layers(nn.Sequential(alone, mixed)) == []
