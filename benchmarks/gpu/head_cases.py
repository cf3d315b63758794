"""Benchmark cases of operations outside the layers: LM head and sampling, trees, adapters, Medusa heads, losses.

Shape letters: M rows, B trees, V vocabulary, H hidden size; K inputs and N outputs of a product. Head weights are
scaled by 3 / sqrt(K), so that logits have a standard deviation of 3.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu.case import Case, Outputs, RowInvariance, number_different, relative_error
from benchmarks.gpu.inputs import Inputs, Sizes
from benchmarks.gpu.layer_cases import tolerance
from benchmarks.gpu.peak_rates import Work, product_flops
from kernels.cuda.linear import linear_parts
from kernels.cuda.lm_head import best_tokens, sample_rows
from kernels.cuda.lora import stacked_lora
from kernels.cuda.losses import loss_rows
from kernels.cuda.medusa import medusa_heads
from kernels.cuda.tree import accept_trees, grow_trees
from kernels.lm_head import Head, SampledRows
from kernels.lora import LoraStack
from kernels.losses import Loss, Teacher, linear_loss, loss_rows_reference
from kernels.philox import gumbel_rows_reference
from kernels.tree import Commit, Trees, accept_trees_reference, grow_trees_reference

_MAX_GAP = 1e-3  # more than the rounding errors of float32 sums for logits around 10; `_gap` defines the gap
_LOGITS_TOLERANCE = 1e-4


def _sampled_rows(M: int, device: torch.device) -> SampledRows:
    """Greedy rows mixed with rows at a temperature above 0."""
    temperatures = [(0.0, 0.7, 1.0)[row % 3] for row in range(M)]
    return SampledRows.of(temperatures, [2**63 + row for row in range(M)], [977 * row for row in range(M)], device)


def _gap(tokens: Tensor, logits: Tensor, rows: SampledRows) -> float:
    """Returns the largest difference, in nats, between a row's best score and the score of the token that the kernel
    chose. A score is the exact logit, divided by the temperature, plus Gumbel noise. Invalid tokens give infinity.
    """
    M, V = logits.shape
    if tokens.shape != (M,) or not bool(((tokens >= 0) & (tokens < V)).all()):
        return float("inf")
    greedy = rows.temperatures == 0.0
    scores = logits / torch.where(greedy, 1.0, rows.temperatures).unsqueeze(1)
    seeds = [seed % 2**64 for seed in rows.seeds.tolist()]
    for row in range(M):  # one row at a time, because the noise of all rows would take gigabytes
        if not bool(greedy[row]):
            ids = torch.arange(V, device=logits.device).unsqueeze(0)
            scores[row] += gumbel_rows_reference([seeds[row]], [int(rows.positions[row])], ids)[0]
    return float((scores.amax(1) - scores.gather(1, tokens.unsqueeze(1))[:, 0]).max())


def sampling(inputs: Inputs, model: str, sizes: Sizes, M: int) -> Case:
    """Sampling a token for each row from the logits of the LM head."""
    V, K = sizes.vocab_size, sizes.hidden_size
    x, weight, rows = inputs.normal(M, K), inputs.normal(V, K) * (3 / K**0.5), _sampled_rows(M, inputs.device)
    return Case(
        operation="sample",
        shape=f"{model} head {V}x{K}, {M} rows",
        run=lambda: [sample_rows(x, Head(data=weight), rows, None)],
        error=lambda outputs: _gap(outputs[0], x.double() @ weight.double().T, rows),
        tolerance=_MAX_GAP,
        work=Work(num_bytes=weight.nbytes + x.nbytes, flops=product_flops(M, V, K)),
        rivals={"library, greedy": lambda: functional.linear(x, weight).argmax(-1)},
    )


def markov(inputs: Inputs, model: str, sizes: Sizes, M: int, rank: int) -> Case:
    """Sampling from the sum of given logits and a low-rank head's logits, as in a block drafter with a Markov head."""
    V = sizes.vocab_size
    x, weight, rows = inputs.normal(M, rank), inputs.normal(V, rank) * (3 / rank**0.5), _sampled_rows(M, inputs.device)
    base = inputs.normal(M, V).float() * 3
    return Case(
        operation="markov step",
        shape=f"{model} vocabulary, rank {rank}, {M} rows",
        run=lambda: [sample_rows(x, Head(data=weight), rows, base)],
        error=lambda outputs: _gap(outputs[0], x.double() @ weight.double().T + base.double(), rows),
        tolerance=_MAX_GAP,
        work=Work(num_bytes=weight.nbytes + x.nbytes + base.nbytes, flops=product_flops(M, V, rank)),
    )


def top_tokens(inputs: Inputs, model: str, sizes: Sizes, M: int, count: int) -> Case:
    """The `count` tokens of each row with the highest logits."""
    V, K = sizes.vocab_size, sizes.hidden_size
    x, weight = inputs.normal(M, K), inputs.normal(V, K) * (3 / K**0.5)

    def run() -> Outputs:
        best = best_tokens(x, Head(data=weight), count, None)
        return [best.values, best.log_sums, best.tokens]

    def error(outputs: Outputs) -> float:
        values, log_sums, tokens = outputs
        if not bool(((tokens >= 0) & (tokens < V)).all()):
            return float("inf")
        logits = x.double() @ weight.double().T
        exact = logits.topk(count).values
        # The exact logits of the tokens are compared, because tokens with almost equal logits may change places.
        compared = [values, log_sums, logits.gather(1, tokens)]
        return relative_error(lambda: [exact, logits.logsumexp(-1), exact])(compared)

    return Case(
        operation="best tokens",
        shape=f"{model} head {V}x{K}, {count} of {M} rows",
        run=run,
        error=error,
        tolerance=_LOGITS_TOLERANCE,
        work=Work(num_bytes=weight.nbytes + x.nbytes, flops=product_flops(M, V, K)),
        rivals={"library": lambda: functional.linear(x, weight).float().topk(count)},
    )


def growing(inputs: Inputs, B: int, depths: int, k: int, budget: int) -> Case:
    """The growth of trees of at most `budget` nodes from k candidates at each depth."""
    tokens = inputs.integers(1000, B, depths, k)
    probabilities = inputs.uniform(B, depths, k).sort(-1, descending=True).values.contiguous()

    def defined_parts(trees: Trees) -> Outputs:
        is_unused = torch.arange(budget) >= trees.counts.cpu().unsqueeze(1)  # tokens of unused nodes are undefined
        return [
            trees.tokens.cpu().masked_fill(is_unused, -1),
            trees.parents.cpu(),
            trees.survival.cpu(),
            trees.counts.cpu(),
        ]

    return Case(
        operation="grow trees",
        shape=f"{B} of {budget} nodes",
        run=lambda: _tensors(grow_trees(tokens, probabilities, budget)),
        error=lambda outputs: number_different(
            lambda: defined_parts(grow_trees_reference(tokens.cpu(), probabilities.cpu(), budget))
        )(defined_parts(Trees(*outputs))),
        tolerance=0.0,
        # A node's token, parent and survival have 20 bytes.
        work=Work(num_bytes=tokens.nbytes + probabilities.nbytes + B * budget * 20),
    )


def _tensors(trees: Trees) -> Outputs:
    return [trees.tokens, trees.parents, trees.survival, trees.counts]


def accepting(inputs: Inputs, B: int, nodes: int) -> Case:
    """Acceptance of random trees. Tokens are 0, 1 or 2, so that many agree with the target's tokens."""
    # The parent of a node is an earlier node, or -1, the root.
    parents = torch.minimum(inputs.integers(nodes, B, nodes) - 1, torch.arange(nodes, device=inputs.device) - 1)
    trees = Trees(inputs.integers(3, B, nodes), parents, inputs.uniform(B, nodes), inputs.integers(nodes + 1, B))
    target_tokens = inputs.integers(3, B, nodes + 1)

    def outputs(accept: Callable[..., object]) -> Outputs:
        commit = Commit(
            slot_tables=torch.full((B, 2 * nodes + 2), -7, dtype=torch.int32, device=inputs.device),  # -7: not written
            table_rows=torch.arange(B, device=inputs.device).flip(0).contiguous(),
            positions=torch.arange(B, device=inputs.device) % nodes,
            node_slots=torch.arange(B * nodes, dtype=torch.int32, device=inputs.device).view(B, nodes),
        )
        accepted = accept(target_tokens, trees, commit)
        return [accepted.nodes, accepted.tokens, accepted.counts, commit.slot_tables]  # type: ignore[attr-defined]

    return Case(
        operation="accept trees",
        shape=f"{B} of {nodes} nodes",
        run=lambda: outputs(accept_trees),
        error=number_different(lambda: outputs(accept_trees_reference)),
        tolerance=0.0,
        work=Work(num_bytes=B * nodes * 40),  # about 40 bytes of inputs and outputs per node
    )


def adapters(inputs: Inputs, model: str, sizes: Sizes, M: int, rank: int) -> Case:
    """Rows with four different adapters, and rows without an adapter."""
    K, N = sizes.hidden_size, sizes.hidden_size
    stack = LoraStack(inputs.normal(4, rank, K), inputs.normal(4, N, rank))
    x = inputs.normal(M, K)
    # The first fifth of the rows has -1 (no adapter); the other fifths have the adapters 0, 1, 2 and 3.
    ids = (torch.arange(M, device=inputs.device) * 5 // M - 1).contiguous()

    def run() -> Outputs:
        out = torch.zeros(M, N, device=inputs.device)
        stacked_lora(x, out, ids, stack, 5)
        return [out]

    def exact() -> Outputs:
        out = torch.zeros(M, N, dtype=torch.float64, device=inputs.device)
        for row, adapter in enumerate(ids.tolist()):
            if adapter >= 0:
                out[row] = stack.up[adapter].double() @ (stack.down[adapter].double() @ x[row].double())
        return [out]

    return Case(
        operation="lora",
        shape=f"{model}, 4 of rank {rank}, {M} rows",
        run=run,
        error=relative_error(exact),
        tolerance=tolerance(inputs.dtype),
        work=Work(num_bytes=stack.down.nbytes + stack.up.nbytes + x.nbytes + 2 * M * N * 4),
    )


def medusa(inputs: Inputs, model: str, sizes: Sizes, M: int, heads: int) -> Case:
    """The hidden states [M, heads, H] of Medusa heads, x + silu(W x), without the LM head."""
    H = sizes.hidden_size
    x, weight = inputs.normal(M, H), inputs.normal(heads * H, H) / H**0.5

    def exact() -> Outputs:
        inner = (x.double() @ weight.double().T).view(M, heads, H)
        return [x.double().unsqueeze(1) + functional.silu(inner)]

    return Case(
        operation="medusa heads",
        shape=f"{model}, {heads} heads, {M} rows",
        run=lambda: [medusa_heads(x, linear_parts(x, weight), heads)],
        error=relative_error(exact),
        tolerance=tolerance(inputs.dtype),
        work=Work(num_bytes=weight.nbytes + x.nbytes * (1 + heads), flops=product_flops(M, heads * H, H)),
    )


def loss(inputs: Inputs, kind: Loss, M: int, V: int) -> Case:
    """The loss of rows of float32 logits, whose gradient overwrites the logits. The target is labels or logits."""
    logits, scale = inputs.normal(M, V).float() * 3, inputs.uniform(M)
    target = inputs.integers(V, M) if kind is Loss.CROSS_ENTROPY else inputs.normal(M, V).float() * 3
    before = logits.clone()

    def exact() -> Outputs:
        gradient = before.double()
        exact_target = target if kind is Loss.CROSS_ENTROPY else target.double()
        return [loss_rows_reference(kind, gradient, exact_target, scale.double()), gradient]

    return Case(
        operation=f"loss {kind.name.lower().replace('_', ' ')}",
        shape=f"{M} rows of {V}",
        run=lambda: [loss_rows(kind, logits, target, scale), logits],
        error=relative_error(exact),
        tolerance=_LOGITS_TOLERANCE,
        work=Work(num_bytes=2 * logits.nbytes + target.nbytes),
    )


def head_loss(inputs: Inputs, kind: Loss, M: int, sizes: Sizes) -> Case:
    """The LM head with a loss, forward and backward, compared with autograd, which stores all logits."""
    V, H = sizes.vocab_size, sizes.hidden_size
    hidden, weight = inputs.normal(M, H).requires_grad_(), (inputs.normal(V, H) / H**0.5).requires_grad_()
    scale = torch.ones(M, device=inputs.device)
    labels = inputs.integers(V, M)
    teacher = Teacher(inputs.normal(M, H), inputs.normal(V, H) / H**0.5)
    target: Tensor | Teacher = labels if kind is Loss.CROSS_ENTROPY else teacher

    def run() -> Outputs:
        total, rows = linear_loss(kind, hidden, weight, target, scale)
        return [*torch.autograd.grad(total, (hidden, weight)), rows]

    def by_autograd(hidden: Tensor, weight: Tensor, teacher: Teacher) -> Sequence[Tensor]:
        wide = torch.promote_types(hidden.dtype, torch.float32)
        log_p = (hidden @ weight.T).to(wide).log_softmax(-1)
        if kind is Loss.CROSS_ENTROPY:
            rows = functional.nll_loss(log_p, labels, reduction="none")
        else:
            log_q = (teacher.hidden @ teacher.weight.T).to(wide).log_softmax(-1)
            rows = functional.kl_div(log_p, log_q, log_target=True, reduction="none").sum(-1)
        return [*torch.autograd.grad(rows.sum(), (hidden, weight)), rows.detach()]

    def exact() -> Outputs:
        wide_hidden, wide_weight = (tensor.detach().double().requires_grad_() for tensor in (hidden, weight))
        return by_autograd(wide_hidden, wide_weight, Teacher(teacher.hidden.double(), teacher.weight.double()))

    # Products: the logits, the gradients of hidden states and weight, and for KL the teacher's logits.
    products = 3 if kind is Loss.CROSS_ENTROPY else 4
    return Case(
        operation=f"head and {kind.name.lower().replace('_', ' ')}",
        shape=f"{M} rows of {V}x{H}, forward and backward",
        run=run,
        error=relative_error(exact),
        # 2e-2 in bfloat16, because logits and gradients are rounded to it
        tolerance=_LOGITS_TOLERANCE if inputs.dtype == torch.float32 else 2e-2,
        work=Work(num_bytes=2 * weight.nbytes, flops=products * product_flops(M, V, H)),
        rivals={"library, whole logits": lambda: by_autograd(hidden, weight, teacher)},
    )


def row_invariance_claims(inputs: Inputs, sizes: Sizes, num_rows: int) -> list[RowInvariance]:
    """Returns the claims of row invariance for sampling and for the best tokens."""
    V, K = sizes.vocab_size, sizes.hidden_size
    x, head = inputs.normal(num_rows, K), Head(data=inputs.normal(V, K) * (3 / K**0.5))
    rows = _sampled_rows(num_rows, inputs.device)

    def sampled(window: slice) -> Outputs:
        part = SampledRows(*(column[window].contiguous() for column in (rows.temperatures, rows.seeds, rows.positions)))
        return [sample_rows(x[window].contiguous(), head, part, None)]

    def best(window: slice) -> Outputs:
        found = best_tokens(x[window].contiguous(), head, 4, None)
        return [found.values, found.tokens, found.log_sums]

    return [RowInvariance("sample", num_rows, sampled), RowInvariance("best tokens", num_rows, best)]
