"""PyTorch's operators that its own ONNX exporter lacks, said in ONNX's. Imported with the extra `onnx` alone."""

from typing import Any

import onnx_ir as ir
import torch
from onnxscript import evaluator, opset20

# While a graph is written down its values are no tensors, as the operators' own types say.
op: Any = opset20


def sort(values: Any, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    """Values in order and where they stood: ONNX's TopK of all of them, in which equal ones keep their order."""
    size = op.Shape(values, start=dim) if dim == -1 else op.Shape(values, start=dim, end=dim + 1)
    return op.TopK(values, size, axis=dim, largest=int(descending), sorted=1)


def rounded(values: Any) -> Any:
    """The nearest whole number: ONNX rounds fractions only, and whole numbers are there already."""
    return op.Round(values) if values.dtype.is_floating_point() else op.Identity(values)


def searchsorted(
    row: Any, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    """How many of a sorted row lie before each value, counted: [..., S] and [..., T] to [..., T]."""
    if out_int32 or sorter is not None:
        raise NotImplementedError("a sorter and 32-bit places are not said in ONNX")
    compare = op.LessOrEqual if right or side == "right" else op.Less
    before = compare(op.Unsqueeze(row, [-2]), op.Unsqueeze(values, [-1]))
    return op.ReduceSum(op.Cast(before, to=ir.DataType.INT64.value), [-1], keepdims=0)


def solve_triangular(matrix: Any, right: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    """X with matrix X = right, for upper matrices with ones on the diagonal: what PaTH asks for.

    Row by row from the last one: x_i = right_i - sum over j after i of matrix_ij x_j.
    """
    if not (upper and left and unitriangular):
        raise NotImplementedError("only unit upper triangular systems from the left are said in ONNX")
    above = op.Trilu(matrix, 1, upper=1)
    size = op.Shape(matrix, start=-1)
    last = op.Sub(size, 1)
    rows = op.Unsqueeze(op.Range(0, op.Squeeze(size), 1), [1])

    step, going, found = ir.Value(name="step"), ir.Value(name="going"), ir.Value(name="found")
    step.dtype, going.dtype, found.dtype = ir.DataType.INT64, ir.DataType.BOOL, right.dtype
    step.shape, going.shape = ir.Shape([]), ir.Shape([])
    row = ir.node("Sub", [last, step])
    known = ir.node("MatMul", [(taken := ir.node("Gather", [above, row.outputs[0]], {"axis": -2})).outputs[0], found])
    asked = ir.node("Gather", [right, row.outputs[0]], {"axis": -2})
    solved = ir.node("Sub", [asked.outputs[0], known.outputs[0]])
    here = ir.node("Equal", [rows, row.outputs[0]])
    more = ir.node("Where", [here.outputs[0], solved.outputs[0], found])
    on = ir.node("Identity", [going])
    nodes = [row, taken, known, asked, solved, here, more, on]
    body = ir.Graph([step, going, found], [on.outputs[0], more.outputs[0]], nodes=nodes, name="rows_from_the_last")
    loop = ir.node("Loop", [op.Squeeze(size), None, op.Sub(right, right)], {"body": body})
    # `op.Loop` takes its condition for one of the values that go round.
    recorder: Any = evaluator.default()
    recorder.nodes.append(loop)
    return loop.outputs[0]


TRANSLATIONS: dict[Any, Any] = {
    torch.ops.aten.round.default: rounded,
    torch.ops.aten.sort.stable: sort,
    torch.ops.aten.searchsorted.Tensor: searchsorted,
    torch.ops.aten.linalg_solve_triangular.default: solve_triangular,
}
