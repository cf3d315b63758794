"""The losses of an LM head, computed for a few rows at a time, agree with autograd on all logits [M, V]."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from kernels import losses
from kernels.cuda.losses import blend_rows, loss_rows
from kernels.losses import Blend, Loss, Teacher, blend_rows_reference, linear_loss, loss_rows_reference
from tests.kernels.cuda.device import BFLOAT16, DEVICE, make

KINDS = list(Loss)


@pytest.fixture(params=["kernel", "reference"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(losses, "loss_rows", loss_rows if request.param == "kernel" else loss_rows_reference)
    return str(request.param)


def make_inputs(kind: Loss, M: int, V: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor | Teacher, Tensor]:
    """Returns hidden [M, 6], weight [V, 6], the target (labels or a teacher), and scales [M]."""
    hidden, weight = make(M, 6, seed=1, dtype=dtype), make(V, 6, seed=2, dtype=dtype)
    scale = make(M, seed=3).abs()
    if kind is Loss.CROSS_ENTROPY:
        return hidden, weight, torch.arange(M, device=DEVICE) * 7 % V, scale
    return hidden, weight, Teacher(make(M, 4, seed=4, dtype=dtype), make(V, 4, seed=5, dtype=dtype)), scale


def losses_of_all_logits(kind: Loss, hidden: Tensor, weight: Tensor, against: Tensor | Teacher) -> Tensor:
    """Returns the losses [M], computed by torch from the logits [M, V]."""
    log_p = (hidden @ weight.T).log_softmax(-1)
    if not isinstance(against, Teacher):
        return functional.nll_loss(log_p, against, reduction="none")
    log_q = (against.hidden @ against.weight.T).log_softmax(-1)
    if kind is Loss.KL:
        return functional.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1)
    return (log_p.exp() - log_q.exp()).abs().sum(-1) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(implementation: str, kind: Loss) -> None:
    hidden, weight, against, scale = make_inputs(kind, 3, 5, torch.float64)

    def loss(hidden: Tensor, weight: Tensor) -> Tensor:
        return linear_loss(kind, hidden, weight, against, scale, num_rows=2)[0]

    assert torch.autograd.gradcheck(loss, (hidden.requires_grad_(), weight.requires_grad_()))


@pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("V", [1, 63, 4096, 4097, 9000])  # both sides of the kernel's block of 4096 tokens
def test_loss_and_gradients_agree_with_autograd_on_all_logits(
    implementation: str, kind: Loss, V: int, dtype: torch.dtype
) -> None:
    hidden, weight, against, scale = make_inputs(kind, 5, V, dtype)
    hidden.requires_grad_(), weight.requires_grad_()
    loss, rows = linear_loss(kind, hidden, weight, against, scale, num_rows=3)
    actual = torch.autograd.grad(2 * loss, (hidden, weight))  # 2: the backward pass must scale the stored gradient

    exact_hidden, exact_weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
    if isinstance(against, Teacher):
        against = Teacher(against.hidden.double(), against.weight.double())
    exact = losses_of_all_logits(kind, exact_hidden, exact_weight, against)
    gradients = torch.autograd.grad(2 * (exact * scale.double()).sum(), (exact_hidden, exact_weight))

    # Logits reach about 10. In bfloat16 logits and gradients are rounded to 8 significant bits.
    tolerance = 2e-5 if dtype == torch.float32 else 0.1
    torch.testing.assert_close(rows.double(), exact, rtol=tolerance, atol=tolerance)
    for gradient, expected in zip(actual, gradients, strict=True):
        torch.testing.assert_close(gradient.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_with_scale_zero_has_a_zero_gradient(implementation: str, kind: Loss) -> None:
    hidden, weight, against, scale = make_inputs(kind, 4, 9, torch.float32)
    scale[2] = 0.0
    loss, _ = linear_loss(kind, hidden.requires_grad_(), weight, against, scale)
    (gradient,) = torch.autograd.grad(loss, hidden)
    assert not gradient[2].any()
    assert gradient[1].any()


def test_tokens_with_teacher_probability_zero_add_nothing_to_the_kl_loss(implementation: str) -> None:
    logits, teacher = make(2, 5, seed=1), make(2, 5, seed=2)
    teacher[:, 3] = -torch.inf
    expected = functional.kl_div(logits.log_softmax(-1), teacher.softmax(-1), reduction="none").sum(-1)
    rows = losses.loss_rows(Loss.KL, logits, teacher, torch.ones(2, device=DEVICE))
    torch.testing.assert_close(rows, expected)


def test_the_kl_loss_refuses_labels_in_place_of_a_teacher() -> None:
    hidden, weight, labels, scale = make_inputs(Loss.CROSS_ENTROPY, 3, 5, torch.float32)
    with pytest.raises(ValueError, match="KL does not accept Tensor"):
        linear_loss(Loss.KL, hidden, weight, labels, scale)


@pytest.mark.parametrize("soft_weight", [0.0, 0.3])
@pytest.mark.parametrize("V", [1, 63, 4096, 4097])
def test_a_blend_of_labels_and_probabilities_agrees_with_the_reference(V: int, soft_weight: float) -> None:
    generator = torch.Generator().manual_seed(V)
    probabilities = torch.rand(4, V, generator=generator).softmax(-1).to(DEVICE) if soft_weight else None
    blend = Blend(
        labels=torch.randint(0, V, (6,), generator=generator).to(DEVICE),
        probabilities=probabilities,
        probability_rows=torch.randint(0, 4, (6,), generator=generator).to(DEVICE),
        soft_weight=soft_weight,
    )
    logits = make(6, V, seed=V)
    logits[0, blend.labels[0]] = 9.0  # at least one correct prediction
    for gradient in (True, False):
        # With `gradient`, the logits are overwritten by their gradient.
        in_place, expected_in_place = logits.clone(), logits.clone()
        sums = blend_rows(in_place, blend, gradient=gradient)
        expected = blend_rows_reference(expected_in_place, blend, gradient=gradient)
        torch.testing.assert_close(in_place, expected_in_place, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(sums.loss, expected.loss, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sums.nats, expected.nats, rtol=1e-5, atol=1e-5)
        assert int(sums.correct) == int(expected.correct) >= 1
    assert torch.equal(in_place, logits)  # in the last iteration, `gradient` is false
