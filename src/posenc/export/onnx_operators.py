"""Translations to ONNX of operators that PyTorch's exporter lacks. They need the extra `onnx`."""

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import evaluator, opset20

# During export the values are no tensors, contrary to the types of the operators.
op: Any = opset20


def sort(values: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Return sorted values and their indices, by TopK of all values, which is stable."""
    size = op.Shape(values, start=dim) if dim == -1 else op.Shape(values, start=dim, end=dim + 1)
    return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)


def round_to_whole(values: Any) -> Any:
    """Return the nearest whole number; ONNX's Round takes fractions only."""
    return op.Round(values) if values.dtype.is_floating_point() else op.Identity(values)


def searchsorted(
    row: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    """Return how many numbers of a sorted row [..., S] lie before each value. Values and counts are [..., T]."""
    if out_int32 or sorter is not None:
        raise NotImplementedError("a sorter and 32-bit places are not said in ONNX")
    compare = op.LessOrEqual if right or side == "right" else op.Less
    is_smaller = compare(op.Unsqueeze(row, [-2]), op.Unsqueeze(values, [-1]))
    return op.ReduceSum(op.Cast(is_smaller, to=ir.DataType.INT64.value), [-1], keepdims=0)


def solve_triangular(matrix: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """Return X with matrix X = right, for upper matrices with ones on the diagonal, as PaTH needs.

    Row by row from the last one: x_i = right_i - sum over j after i of matrix_ij x_j.
    """
    if not (upper and left and unitriangular):
        raise NotImplementedError("only unit upper triangular systems from the left are said in ONNX")
    strict = op.Trilu(matrix, 1, upper=1)
    size = op.Shape(matrix, start=-1)
    last = op.Sub(size, 1)
    rows = op.Unsqueeze(op.Range(0, op.Squeeze(size), 1), [1])

    step, going, x = ir.Value(name="step"), ir.Value(name="going"), ir.Value(name="found")
    step.dtype, going.dtype, x.dtype = ir.DataType.INT64, ir.DataType.BOOL, right.dtype
    step.shape, going.shape = ir.Shape([]), ir.Shape([])
    row = ir.node("Sub", [last, step])
    sums = ir.node("MatMul", [(coeffs := ir.node("Gather", [strict, row.outputs[0]], {"axis": -2})).outputs[0], x])
    right_row = ir.node("Gather", [right, row.outputs[0]], {"axis": -2})
    solution_row = ir.node("Sub", [right_row.outputs[0], sums.outputs[0]])
    here = ir.node("Equal", [rows, row.outputs[0]])
    next_x = ir.node("Where", [here.outputs[0], solution_row.outputs[0], x])
    go_on = ir.node("Identity", [going])
    nodes = [row, coeffs, sums, right_row, solution_row, here, next_x, go_on]
    body = ir.Graph([step, going, x], [go_on.outputs[0], next_x.outputs[0]], nodes=nodes, name="rows_from_the_last")
    loop = ir.node("Loop", [op.Squeeze(size), None, op.Sub(right, right)], {"body": body})
    # `op.Loop` takes its condition for one of the values that go round.
    recorder: Any = evaluator.default()
    recorder.nodes.append(loop)
    return loop.outputs[0]


TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.round.default: round_to_whole,
    torch.ops.aten.sort.stable: sort,
    torch.ops.aten.searchsorted.Tensor: searchsorted,
    torch.ops.aten.linalg_solve_triangular.default: solve_triangular,
}
