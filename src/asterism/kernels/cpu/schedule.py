"""The tasks of a call, as the library hands them to its threads, without computing them."""

import ctypes

import numpy as np
import torch

from asterism.kernels.cpu.build import library
from asterism.kernels.cpu.interface import Problem, Task, call
from asterism.kernels.cpu.kernel import problem_of
from asterism.kernels.operands import Operands
from asterism.kernels.operator import Rounded

FIELDS = tuple(field[0] for field in Task._fields_)


def schedule(operands: Operands, threads: int, backward: bool = False) -> np.ndarray:
    """The tasks of a forward or backward pass, int64 [tasks, FIELDS], in the order in which threads take them.

    A phase begins when the one before has ended. `tiles` are computed, of which the batch forbids a part of `cut`;
    `rows` counts rows of tiles and parts of rows, `floats` the numbers that are cleared, added or rounded besides.
    """
    q, k, v = operands.q, operands.k, operands.v
    shape = (*q.shape[:3], v.shape[3])
    residual = q.new_empty(0 if q.dtype == torch.float32 else shape)
    attended = Rounded(q.new_empty(shape), q.new_empty(shape[:3], dtype=torch.float32), residual)
    problem = problem_of(operands, attended)
    problem.threads = threads
    problem.grad_q, problem.grad_k, problem.grad_v = (x.data_ptr() for x in (q, k, v))  # all asked for, none written
    if (terms := problem.given_terms) is not None:
        terms.grad_bias, terms.grad_relative = terms.bias, terms.relative
    room = _list(problem, backward, (Task * 0)())
    tasks = (Task * room)()
    _list(problem, backward, tasks)
    return np.array([[getattr(task, name) for name in FIELDS] for task in tasks], np.int64).reshape(room, len(FIELDS))


def _list(problem: Problem, backward: bool, tasks: ctypes.Array[Task]) -> int:
    """Fills `tasks` and returns how many there are."""
    count, room = ctypes.c_int64(), len(tasks)
    call(lambda given: int(library().asterism_schedule(given, backward, tasks, room, ctypes.byref(count))), problem)
    return count.value
