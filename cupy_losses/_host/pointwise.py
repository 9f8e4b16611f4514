"""Pointwise losses on the host: NumPy arrays, in float64, a bounded chunk at a time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from .._core.cache import keep
from .._core.chunks import chunks
from .._core.loss import Call, Request
from .._core.notices import warn
from .._core.pointwise import PointwiseFormula
from .._core.program import Program
from .._core.reduction import Denominator
from .._core.shapes import Shape
from .arrays import HostArray, Layout, broadcast, is_narrow, layout, spec_of, wide
from .dual import Dual, Number, plain, slope_of
from .elementwise import Elementwise
from .recording import Recorded, Recording, reciprocal
from .reduction import Divisors, Finish, divisors_of
from .results import Gradient, NewGradient, NewValue, Value, new_results
from .schedule import Evaluation, Schedule
from .sums import total


class _Ready(NamedTuple):
    """What a plan has for some hyper-parameters, which a device may round, and a scale."""

    divisors: Divisors
    schedule: Schedule
    parameters: Sequence[float]


class _Plan(NamedTuple):
    """What follows from the layouts of the operands of a request alone."""

    shape: Shape
    notice: str
    value: NewValue | None
    gradients: dict[int, NewGradient]
    denominator: Denominator
    narrow: bool
    schedules: dict[Any, Schedule]  # by `_constants`, and how gradients are finished
    # By the hyper-parameters and the scale; empty where the denominator is of data or given.
    ready: dict[Any, _Ready]


_MOST = 64  # entries of each table of a plan


@functools.lru_cache(maxsize=1024)
def _plan(call: Call, request: Request, layouts: tuple[Layout, ...], autocast: bool) -> _Plan:
    """The plan of a call without its parameters; raises unless the operands fit together."""
    loss = call.loss
    assert isinstance(loss, PointwiseFormula)
    specs = [spec_of(each) for each in layouts]
    own = specs[request.extra :]
    shape = loss.shape_of(call, own)
    outputs = loss.outputs(call, request, specs, autocast)
    value, gradients = new_results(request, outputs, shape, _summed(loss, call, shape))
    denominator = loss.denominator(call, shape, own)
    notice = loss.notice(call, request, own)
    narrow = is_narrow(request, specs)
    return _Plan(shape, notice, value, gradients, denominator, narrow, {}, {})


def evaluate(
    loss: PointwiseFormula,
    call: Call,
    request: Request,
    operands: Sequence[HostArray],
    autocast: bool = False,
) -> list[HostArray | None]:
    """Evaluate a request: the value, if asked for, then the wanted gradients."""
    if loss.formula is None:
        raise TypeError(
            f"{loss.name} has no NumPy formula: write the formula in Python, pass numpy= to "
            "pointwise_loss, or call it on CUDA arrays"
        )
    plan = _plan(call.of_layout, request, tuple([layout(x) for x in operands]), autocast)
    if plan.notice:
        warn(plan.notice)
    shape = plan.shape
    read = operands[1:] if request.denominator else operands
    leading = request.extra - request.denominator
    views = [x if x.shape == shape else broadcast(x, shape) for x in read]
    divisors, schedule, parameters = _ready(loss, call, request, plan, operands, views)
    value = None if plan.value is None else Value(plan.value)
    gradients = {k: Gradient(new, operands[request.extra + k]) for k, new in plan.gradients.items()}
    mask = views.pop(leading) if call.masked else None
    own = list(zip(gradients.values(), schedule.outputs, schedule.placed, strict=False))
    placed = [(gradient, slot) for gradient, slot, is_placed in own if is_placed]
    others = [(gradient, slot) for gradient, slot, is_placed in own if not is_placed]
    evaluation = Evaluation(schedule, (*divisors.numbers, *parameters))
    with np.errstate(all="ignore"):
        for index in chunks(shape):
            x = [view[index] for view in views] if index else views
            bits = None if mask is None else -mask[index].astype(np.int64)
            size = x[0].shape
            found = evaluation(size, x, [(slot, of.place(index)) for of, slot in placed])
            for gradient, slot in others:
                # An infinite or NaN scale does not reach what the mask leaves out.
                gradient.add(index, _kept(broadcast(found[slot], size), bits))
            if value is not None:
                value.add(index, _kept(broadcast(found[schedule.outputs[-1]], size), bits))
        results: list[HostArray | None] = [] if value is None else value.finish(divisors)
        results += [gradients[k].finish() if k in gradients else None for k in request.wanted]
    return results


def _ready(
    loss: PointwiseFormula,
    call: Call,
    request: Request,
    plan: _Plan,
    operands: Sequence[HostArray],
    views: Sequence[HostArray],
) -> _Ready:
    """What the gradients are divided by, and the operations of a request."""
    ready = plan.ready.get((call.parameters, call.scale))
    if ready is not None:
        return ready
    own, weighs = views[request.extra - request.denominator :], loss.divides_by_weights(call)
    of_data = functools.partial(_sum_of_data, call, own, plan.shape, weighs)
    divisors = divisors_of(call, request, plan.denominator, operands, of_data)
    parameters = loss.in_float32(call.parameters) if plan.narrow else call.parameters
    constants = _constants(loss, parameters)
    key = constants, divisors.finish
    schedule = plan.schedules.get(key)
    if schedule is None:
        dtypes = [view.dtype for view in views]
        with np.errstate(all="ignore"):  # functions of hyper-parameters are computed here
            schedule = _schedule(loss, call, request, plan, dtypes, divisors.finish, constants)
        keep(plan.schedules, key, schedule, _MOST)
    ready = _Ready(divisors, schedule, parameters)
    if not (request.denominator or plan.denominator.of_data):
        keep(plan.ready, (call.parameters, call.scale), ready, _MOST)
    return ready


def _constants(loss: PointwiseFormula, parameters: Sequence[float]) -> tuple[float | None, ...]:
    """The hyper-parameters that operations are made for; None for those that are given to them.

    1 and other powers of 2 are worth it. A formula that is not recorded has them all from the call.
    """
    if isinstance(loss.formula, Elementwise):
        return tuple(parameters)
    return tuple([x if reciprocal(x) is not None else None for x in parameters])


def _schedule(
    loss: PointwiseFormula,
    call: Call,
    request: Request,
    plan: _Plan,
    dtypes: Sequence[np.dtype[Any]],
    finish: Finish,
    constants: Sequence[float | None],
) -> Schedule:
    """The operations of a request: the finished gradients, then the value if it is asked for.

    What is given to them are the arrays, without the mask, the numbers of `Divisors`, and the
    hyper-parameters.
    """
    dtypes = list(dtypes)
    if call.masked:
        dtypes.pop(request.extra - request.denominator)
    recording = Recording()
    x = [recording.operand(k, dtype) for k, dtype in enumerate(dtypes)]
    numbers = [recording.number(len(x) + k) for k in range(3 + len(constants))]
    pairs = zip(constants, numbers[3:], strict=True)
    parameters = [number if constant is None else constant for constant, number in pairs]
    function: Callable[..., Any] = _Function(loss, call, request, parameters, plan.narrow)
    if isinstance(loss.formula, Elementwise):
        function = _Unrecorded(function)
    outputs = []
    result = None
    for k, gradient in plan.gradients.items():
        result = function(x, k)
        slope = recording.recorded(slope_of(result))
        for step, number in finish.steps(gradient.array.dtype):
            by = numbers[number]
            slope = recording.scaled(slope, by) if step is np.multiply else slope / by
        outputs.append(slope)
    if request.value:
        # The derivative by an operand comes with the value, in one evaluation.
        value = plain(function(x) if result is None else result)
        outputs.append(recording.recorded(value))
    placed = [gradient.has_places and not call.masked for gradient in plan.gradients.values()]
    return Schedule(recording, len(x), len(numbers), outputs, placed)


class _Unrecorded:
    """A function that is called with arrays, as one operation of a recording."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, x: Sequence[Recorded], wanted: int | None = None) -> Any:
        def on_arrays(*arrays: HostArray) -> Any:
            # Views, which a formula may mark as read-only.
            return self._function([array.view() for array in arrays], wanted)

        recording = x[0].recording
        result = recording.apply(on_arrays, *x)
        return Dual(recording.apply(plain, result), recording.apply(slope_of, result))


def _kept(x: HostArray, bits: HostArray | None) -> HostArray:
    """Numbers where all bits are set, 0 where none is.

    A choice by a mask, where that is random, takes the CPU several times as long.
    """
    if bits is None:
        return x
    kept: HostArray = (x.view(np.int64) & bits).view(np.float64)
    return kept


def _summed(loss: PointwiseFormula, call: Call, shape: Shape) -> Shape | None:
    """The shape of the value as a sum: 1 along the axes that are summed; None for no sum."""
    if call.reduction != "none":
        return (1,) * len(shape)
    return (*shape[:-1], 1) if loss.row_means else None


def _sum_of_data(
    call: Call, views: Sequence[HostArray], shape: Shape, weighs: bool
) -> np.longdouble:
    """The sum of the weights that the mask leaves, or their number."""
    denominator = np.longdouble(0)
    with np.errstate(all="ignore"):
        for index in chunks(shape):
            if not weighs:
                denominator += np.count_nonzero(views[0][index])
                continue
            weight = wide(views[call.masked][index])
            if call.masked:
                weight = np.where(views[0][index], weight, 0.0)
            denominator += total(weight)
    return denominator


class _Function:
    """The function of a request (see `Request`), without the mask."""

    def __init__(
        self,
        loss: PointwiseFormula,
        call: Call,
        request: Request,
        parameters: Sequence[Number],
        narrow: bool,
    ) -> None:
        assert loss.formula is not None
        self._formula = loss.formula
        if narrow and isinstance(loss.formula, Program):
            self._formula = loss.formula.compared_in_float32
        self._parameters = dict(zip(loss.parameters, parameters, strict=True))
        self._masked, self._weighted = call.masked, call.weighted
        self._vjp, self._tangents = request.vjp, request.tangents
        self._leading = request.extra - request.denominator

    def __call__(self, x: Sequence[HostArray], wanted: int | None = None) -> Any:
        """Its values of a chunk, with the slopes by operand `wanted`."""
        own: list[Any] = list(x[self._leading :])
        if wanted is not None:
            wanted -= self._masked
            own[wanted] = Dual(own[wanted], 1.0)
        if self._tangents:
            of = dict(zip(self._tangents, x[int(self._vjp) :], strict=False))
            own = [Dual(number, of.get(k, 0.0)) for k, number in enumerate(own, self._masked)]
        weight = own.pop(0) if self._weighted else None
        result = self._formula(*own, **self._parameters)
        if weight is not None:
            result = weight * result
        if self._tangents:
            result = slope_of(result)
        return x[0] * result if self._vjp else result
