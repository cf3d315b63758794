"""Benchmark cases of graph decoding (row layout, filtered sampling, candidate ranking), and of the blended loss.

Shape letters: B trees, M rows, V vocabulary.
"""

import torch

from benchmarks.gpu.case import Case, Outputs, number_different, relative_error
from benchmarks.gpu.inputs import Inputs
from benchmarks.gpu.peak_rates import Work
from kernels.candidates import Candidates, RowSampling, candidates_reference
from kernels.cuda.candidates import candidates
from kernels.cuda.filtered import sample_filtered_rows
from kernels.cuda.losses import blend_rows
from kernels.cuda.tree_rows import tree_rows
from kernels.filtered import sample_filtered_rows_reference
from kernels.lm_head import BestTokens
from kernels.losses import Blend, BlendSums, blend_rows_reference
from kernels.tree import Trees
from kernels.tree_rows import Roots, TreeRows, tree_rows_reference

_TOLERANCE = 1e-4  # kernel and reference compute sums and exponentials in float32 in different ways


def laying_out(inputs: Inputs, B: int, nodes: int) -> Case:
    """The layout of the rows of B binary trees, the last of which is empty."""
    device = inputs.device
    # The parent of node i is node (i - 1) // 2; the parent of node 0 is -1, the root.
    parents = ((torch.arange(nodes, device=device) - 1) // 2).clamp(min=-1).expand(B, nodes).contiguous()
    counts = torch.tensor([nodes] * (B - 1) + [0], device=device)
    trees = Trees(inputs.integers(1000, B, nodes), parents, inputs.uniform(B, nodes), counts)
    depth, length = nodes.bit_length(), 3 * nodes

    def layout(lay_out: object) -> Outputs:
        roots = Roots(
            slot_tables=torch.full((B, length), -7, dtype=torch.int32, device=device),  # -7 marks unwritten entries
            table_rows=torch.arange(B, device=device).flip(0).contiguous(),
            lengths=torch.arange(1, B + 1, device=device),
            tokens=torch.arange(B, device=device),
            slots=torch.arange(B * (1 + nodes), dtype=torch.int32, device=device).view(B, 1 + nodes),
        )
        result: TreeRows = lay_out(trees, roots, depth=depth, last_position=length)  # type: ignore[operator]
        attention = result.rows.attention
        is_in_path = torch.arange(depth, device=device) < attention.path_lens.unsqueeze(1)
        paths = attention.paths.masked_fill(~is_in_path, -1)  # entries behind a path's end may have any value
        rows = [result.rows.positions, result.rows.slots, attention.seqs, attention.prefix_lens, attention.path_lens]
        return [result.tokens, *rows, paths, roots.slot_tables]

    return Case(
        operation="tree rows",
        shape=f"{B} of {nodes} nodes",
        run=lambda: layout(tree_rows),
        error=number_different(lambda: layout(tree_rows_reference)),
        tolerance=0.0,
        # For each node: token, parent and survival are read; six int64 values and a path of int32 slots are written.
        work=Work(num_bytes=B * nodes * (2 * 8 + 4 + 6 * 8 + 4 * depth)),
    )


def _sampling(M: int, device: torch.device) -> RowSampling:
    """Greedy and sampled rows, with each filter and with all filters."""
    filters = ((0, 1.0, 0.0), (5, 1.0, 0.0), (0, 0.8, 0.0), (0, 1.0, 0.1), (40, 0.9, 0.02))
    top_ks, top_ps, min_ps = zip(*(filters[row % len(filters)] for row in range(M)), strict=True)
    return RowSampling(
        temperatures=torch.tensor([(0.0, 0.7, 1.0)[row % 3] for row in range(M)], dtype=torch.float64, device=device),
        seeds=torch.arange(M, device=device) - 3,
        positions=torch.arange(M, device=device) * 977,
        top_ks=torch.tensor(top_ks, device=device),
        top_ps=torch.tensor(top_ps, dtype=torch.float64, device=device),
        min_ps=torch.tensor(min_ps, dtype=torch.float64, device=device),
    )


def filtering(inputs: Inputs, M: int, V: int) -> Case:
    """Sampling with filters. Kernel and reference compute in float64, so their tokens are equal.

    Greedy rows are not compared, because this operation gives them arbitrary tokens.
    """
    logits, rows = (inputs.normal(M, V).float() * 3), _sampling(M, inputs.device)
    sampled = rows.temperatures > 0.0
    return Case(
        operation="sample filtered",
        shape=f"{M} rows of {V}",
        run=lambda: [sample_filtered_rows(logits, rows)],
        error=lambda outputs: number_different(lambda: [sample_filtered_rows_reference(logits, rows)[sampled]])(
            [outputs[0][sampled]]
        ),
        tolerance=0.0,
        work=Work(num_bytes=logits.nbytes),
    )


def ranking(inputs: Inputs, M: int, k: int) -> Case:
    """The ranking of the k best tokens of each row as candidates of a draft."""
    values = (inputs.normal(M, k).float() * 2).sort(-1, descending=True).values.contiguous()
    # log_sums covers the whole vocabulary, so it is larger than the log-sum-exp of the k best values.
    best = BestTokens(values, inputs.integers(100_000, M, k), values.logsumexp(-1) + inputs.uniform(M))
    rows = _sampling(M, inputs.device)

    def parts(ranked: Candidates) -> Outputs:
        return [ranked.survival, ranked.tokens]

    return Case(
        operation="rank candidates",
        shape=f"{k} of {M} rows",
        run=lambda: parts(candidates(best, rows)),
        error=relative_error(lambda: [part.double() for part in parts(candidates_reference(best, rows))]),
        tolerance=_TOLERANCE,
        work=Work(num_bytes=2 * (values.nbytes + best.tokens.nbytes)),
    )


def blend(inputs: Inputs, M: int, V: int) -> Case:
    """The blended loss of rows of float32 logits, whose gradient overwrites the logits."""
    logits = inputs.normal(M, V).float() * 3
    before, target_rows = logits.clone(), inputs.integers(M, M)
    target = Blend(inputs.integers(V, M), (inputs.normal(M, V).float() * 3).softmax(-1), target_rows, 0.7)

    def parts(sums: BlendSums) -> Outputs:
        return [sums.loss, sums.nats, sums.correct]

    def exact() -> Outputs:
        gradient = before.double()
        assert target.probabilities is not None  # given to Blend above
        in_double = Blend(target.labels, target.probabilities.double(), target_rows, target.soft_weight)
        sums = parts(blend_rows_reference(gradient, in_double, gradient=True))
        return [*(part.double() for part in sums), gradient]

    return Case(
        operation="loss blend",
        shape=f"{M} rows of {V}",
        run=lambda: [*parts(blend_rows(logits, target, gradient=True)), logits],
        error=relative_error(exact),
        tolerance=_TOLERANCE,
        work=Work(num_bytes=3 * logits.nbytes),
    )
