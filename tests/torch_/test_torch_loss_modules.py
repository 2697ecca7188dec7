"""The losses as modules."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import online_softmax.torch as ost  # noqa: E402  (torch may be missing)

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")


def operands() -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(6, 8), torch.tensor([1, -100, 0, 4, 2, 2])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weighted", [False, True])
def test_in_the_place_of_pytorchs(reduction: str, weighted: bool) -> None:
    x, targets = operands()
    weight = torch.rand(8) + 0.1 if weighted else None
    ours = ost.CrossEntropyLoss(weight, None, -100, None, reduction, 0.1)
    theirs = torch.nn.CrossEntropyLoss(weight, None, -100, None, reduction, 0.1)
    torch.testing.assert_close(ours(x, targets), theirs(x, targets))
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


def test_options_reach_the_function() -> None:
    x, targets = operands()
    o = {"z_loss": 0.1, "softcap": 2.0, "temperature": 0.5, "return_lse": True, "label_smoothing": 0.1}
    rows = torch.rand(6)
    found = ost.CrossEntropyLoss(**o)(x, targets, rows)
    expected = ost.cross_entropy(x, targets, row_weight=rows, **o)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    module = ost.CrossEntropyLoss(axis=-1)
    assert torch.equal(module(x, targets), ost.cross_entropy(x, targets, axis=-1))
    assert repr(ost.CrossEntropyLoss(z_loss=0.1, axis=1)) == "CrossEntropyLoss(z_loss=0.1, axis=1)"
    assert repr(ost.CrossEntropyLoss()) == "CrossEntropyLoss()"


def heads() -> dict[str, Any]:
    embedding = torch.nn.Embedding(5, 8)
    return {
        "own": ost.LinearCrossEntropyLoss(8, 5, bias=True, z_loss=0.1),
        "shared": ost.LinearCrossEntropyLoss(weight=embedding.weight, softcap=3.0, temperature=2.0),
    }


@pytest.mark.parametrize("name", ["own", "shared"])
def test_a_head_is_the_loss_of_its_logits(name: str) -> None:
    torch.manual_seed(1)
    head = heads()[name]
    hidden, targets = operands()
    options = head.options()
    logits = head.logits(hidden)
    expected = ost.cross_entropy(logits, targets, z_loss=options["z_loss"])
    torch.testing.assert_close(head(hidden, targets), expected)
    linear = torch.nn.Linear(8, 5, bias=name == "own")
    head.load_state_dict(linear.state_dict())
    assert torch.equal(head.weight, linear.weight)


def test_a_tied_weight_has_one_gradient() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(5, 8)
            self.loss = ost.LinearCrossEntropyLoss(weight=self.embedding.weight)

        def forward(self, tokens: Any, targets: Any) -> Any:
            return self.loss(self.embedding(tokens), targets)

    torch.manual_seed(2)
    model, tokens = Model(), torch.tensor([0, 1, 2])
    assert len(list(model.parameters())) == 1
    model(tokens, tokens).backward()
    weight = model.embedding.weight.detach().clone().requires_grad_()
    torch.nn.functional.cross_entropy(weight[tokens] @ weight.T, tokens).backward()
    torch.testing.assert_close(model.embedding.weight.grad, weight.grad)
    again = copy.deepcopy(model)
    assert again.loss.weight is again.embedding.weight


def test_without_a_weight_it_is_a_function() -> None:
    hidden, targets = operands()
    weight = torch.randn(5, 8)
    module = ost.LinearCrossEntropyLoss()
    assert not list(module.parameters())
    found = module(hidden, targets, weight=weight)
    assert torch.equal(found, ost.linear_cross_entropy(hidden, weight, targets))
    with pytest.raises(ValueError, match="weight is missing"):
        module(hidden, targets)
    with pytest.raises(ValueError, match="has its own"):
        ost.LinearCrossEntropyLoss(8, 5)(hidden, targets, weight=weight)


def test_copies_and_pickles() -> None:
    hidden, targets = operands()
    for module, operand in (
        (ost.CrossEntropyLoss(torch.rand(8) + 0.1, label_smoothing=0.1), hidden),
        (ost.LinearCrossEntropyLoss(8, 5, bias=True, class_weight=torch.rand(5)), hidden),
    ):
        expected = module(operand, targets)
        stored = io.BytesIO()
        torch.save(module, stored)
        stored.seek(0)
        copies = (
            copy.deepcopy(module),
            pickle.loads(pickle.dumps(module)),
            torch.load(stored, weights_only=False),
        )
        for again in copies:
            assert torch.equal(again(operand, targets), expected)
            assert repr(again) == repr(module)


def test_compiles_in_one_graph_and_moves() -> None:
    hidden, targets = operands()
    for module in (ost.CrossEntropyLoss(torch.rand(8) + 0.1, z_loss=0.1), ost.LinearCrossEntropyLoss(8, 5)):
        torch._dynamo.reset()
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(hidden, targets), module(hidden, targets))
        moved = module.double().to("meta")
        assert all(t.device.type == "meta" and t.dtype == torch.float64 for t in moved.state_dict().values())


@pytest.mark.parametrize(
    ("error", "match", "make"),
    [
        (TypeError, "size_average=True", lambda: ost.CrossEntropyLoss(size_average=True)),
        (TypeError, "reduce=False", lambda: ost.CrossEntropyLoss(reduce=False)),
        (ValueError, "reduction is 'avg'", lambda: ost.CrossEntropyLoss(reduction="avg")),
        (ValueError, "label_smoothing is 2", lambda: ost.CrossEntropyLoss(label_smoothing=2.0)),
        (TypeError, "weight is a builtins.list", lambda: ost.CrossEntropyLoss([1.0])),
        (TypeError, "return_lse=0", lambda: ost.CrossEntropyLoss(return_lse=0)),
        (ValueError, "features and classes", lambda: ost.LinearCrossEntropyLoss(8)),
        (ValueError, "features is 0", lambda: ost.LinearCrossEntropyLoss(0, 5)),
        (TypeError, "weight is a Tensor", lambda: ost.LinearCrossEntropyLoss(weight=torch.ones(5, 8))),
        (TypeError, "bias is True", lambda: ost.LinearCrossEntropyLoss(bias=True)),
        (ValueError, "memory is -1", lambda: ost.LinearCrossEntropyLoss(8, 5, memory=-1)),
    ],
)
def test_bad_arguments_are_named(error: type[Exception], match: str, make: Any) -> None:
    with pytest.raises(error, match=match):
        make()
