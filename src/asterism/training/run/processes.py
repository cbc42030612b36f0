"""The processes of a run: their ranks and mesh, their common decisions, and the failure of one of them.

A launcher (torchrun, accelerate launch, SLURM) starts them and says in the environment how many there are. Every one
of them computes the same batch from (seed, step) and reads its own rows or tokens of it; process 0 leads: it alone
writes into the run folder, shows progress, and decides what a machine or a clock decides (dtype, prices, elapsed time).

Gradients are summed over the processes once a step, before they are clipped, by all-reduces of flat buckets in the
order of the parameters, and not by DistributedDataParallel: a parameter that some process has no gradient of is no
special case, and several slices of a step cost one sum. What this gives up is that sums overlap with the backward pass.
Weights that are shared out (fsdp) are FSDP2's, `fully_shard`, whose sums do overlap; only what each process keeps is
summed over dp and cp.

Invariant: whether a process makes a collective call never depends on what it alone has seen. Where one of them can fail
alone (files, memory), the body stands in `agreed`, so that all fail together.
"""

import atexit
import gc
import json
import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from asterism import __version__
from asterism.errors import AsterismError, ConfigurationError
from asterism.labels import IGNORED
from asterism.models import AsterismConfig
from asterism.parallel import SequenceParallel, shard
from asterism.parallel.context import resumed
from asterism.system import launched
from asterism.training.run.device import uses_cuda
from asterism.training.settings.configuration import TrainingConfig
from asterism.training.settings.parallel import AXES, MeshShape, mesh_shape

_BUCKET = 2**22
"""Elements that are summed at once: large enough to fill a link, small enough for their copy not to matter."""

_LOST = ("gloo", "Connection closed", "Connection reset", "NCCL", "Timed out", "Broken pipe", "heartbeat")
"""What torch says when a process of a group has gone or is silent."""


class OtherProcessError(AsterismError):
    """Another process of the run failed. This one also ends, with the same exit code."""

    def __init__(self, code: str, message: str, exit_code: int) -> None:
        super().__init__(code, message)
        self.exit_code = exit_code


class LostProcessError(AsterismError):
    """Another process of the run has ended, or was silent for longer than the timeout."""


@dataclass(frozen=True, eq=False)
class Processes:
    """All processes of a run, and the rank of this one. With a single process, nothing below communicates.

    mesh            its axes are those of AXES, in their order; None where a process is alone
    dense_exchange  whether those who share the tokens of rows may move as much as for dense attention
    """

    shape: MeshShape = MeshShape()
    rank: int = 0
    mesh: DeviceMesh | None = None
    dense_exchange: bool = False

    @property
    def leads(self) -> bool:
        """Whether this process leads: it writes, shows progress and decides."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        """Whether there is only one process."""
        return self.mesh is None

    @property
    def row_part(self) -> int:
        """The index of this process's part of the rows of a batch."""
        return self.rank // self.shape.cp

    @property
    def shard(self) -> int:
        """The index of this process's shard of the tokens of a row."""
        return self.rank % self.shape.cp

    @property
    def context(self) -> SequenceParallel | None:
        """The context of the processes that share the tokens of this process's rows, or None."""
        if self.mesh is None or self.shape.cp == 1:
            return None
        return SequenceParallel(self.mesh.get_group("cp"), self.shard, self.shape.cp, self.dense_exchange)

    def sharing(self) -> AbstractContextManager[None]:
        """Within the body, a model computes the tokens of this process, with those who hold the others of its rows."""
        return nullcontext() if self.context is None else resumed(self.context)

    def tokens(self, model: PreTrainedModel, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The part of whole rows that `model` gets within `sharing`; for an encoder-decoder also the decoder's
        input.
        """
        whole = dict(batch)
        if (context := self.context) is None:
            return whole
        if model.config.is_encoder_decoder and "decoder_input_ids" not in whole:
            whole["decoder_input_ids"] = cast(Any, model).prepare_decoder_input_ids_from_labels(whole["labels"])
        width = whole["input_ids"].shape[1]
        if width < context.ranks and not isinstance(model.config, AsterismConfig):
            # A model of transformers computes one token at least, and padding is one.
            for name, filler in {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0, "labels": IGNORED}.items():
                if name in whole:
                    whole[name] = nn.functional.pad(whole[name], (0, context.ranks - width), value=filler)
        return shard(whole, context)

    def gather(self, own: Any) -> list[Any]:
        """Gather a JSON value from every process, in the order of ranks."""
        if self.alone:
            return [own]
        text = torch.frombuffer(bytearray(json.dumps(own).encode()), dtype=torch.uint8)
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.shape.processes)]
        dist.all_gather(sizes, torch.tensor([len(text)]))
        largest = int(max(sizes))
        texts = [torch.empty(largest, dtype=torch.uint8) for _ in sizes]
        dist.all_gather(texts, nn.functional.pad(text, (0, largest - len(text))))
        return [json.loads(bytes(one[: int(size)].tolist()).decode()) for one, size in zip(texts, sizes, strict=True)]

    def decided(self, decide: Callable[[], Any]) -> Any:
        """The leader's decision, a JSON value, for which the others wait. If it raises an error, all processes raise
        it.
        """
        decision = None
        with self.agreed():
            if self.leads:
                decision = decide()
        return decision if self.alone else self.gather(decision)[0]

    @contextmanager
    def agreed(self) -> Iterator[None]:
        """After the body either all processes continue, or none does.

        Raises what the body raises, and OtherProcessError if the body failed only in another process.
        """
        failure: Exception | None = None
        try:
            yield
        except Exception as error:
            if self.alone or _is_loss(error):
                raise
            failure = error
        if self.alone:
            return
        codes = getattr(failure, "exit_code", 1)
        own = None if failure is None else {"code": codes, "text": f"{failure or type(failure).__name__}"}
        failures = self.gather(own)
        if failure is not None:
            raise failure
        for rank, other in enumerate(failures):
            if other is not None:
                raise OtherProcessError("other-process-refused", f"process {rank}: {other['text']}", other["code"])

    def total(self, numbers: Sequence[float]) -> list[float]:
        """Sums over all processes, in float64, the same bits everywhere."""
        if self.alone:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        dist.all_reduce(sums)
        return cast(list[float], sums.tolist())

    def share(self, count: int) -> Iterator[tuple[int, bool]]:
        """This process's part of the numbers 0 .. count - 1, and whether each counts.

        All get the same number, because all processes compute a model with sharded weights together. A process without
        another index gets the last one, which does not count. Processes that share the tokens of rows get the same
        indices.
        """
        for first in range(0, count, self.shape.row_parts):
            number = first + self.row_part
            yield min(number, count - 1), number < count

    def rows(self, tensor: Tensor) -> Tensor:
        """The rows of this process's part of a tensor [rows, ...], of any dtype."""
        return tensor.tensor_split(self.shape.row_parts)[self.row_part]

    def broadcast(self, tensors: Iterable[Tensor]) -> None:
        """Overwrite the tensors [...] that every process holds with those of the leader."""
        if not self.alone:
            for tensor in tensors:
                dist.broadcast(tensor.data, src=0)

    def sum_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Add up the gradients of all processes. Parameters without a gradient in any process stay without."""
        if self.alone:
            return
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        known = self.total([parameter.grad is not None for parameter in trained])
        gradients = []
        for parameter, count in zip(trained, known, strict=True):
            if count:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                gradients.append(_local(parameter.grad))
        for bucket in _buckets(gradients):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            for group in self._replicas():
                dist.all_reduce(flat, group=group)
            parts = flat.split([gradient.numel() for gradient in bucket])
            for gradient, part in zip(bucket, parts, strict=True):
                gradient.copy_(part.view_as(gradient))

    def _replicas(self) -> list[dist.ProcessGroup | None]:
        """The groups of processes that hold the same parameters as this one, one after the other."""
        if self.shape.fsdp == 1:
            return [None]
        mesh = cast(DeviceMesh, self.mesh)
        return [mesh.get_group(axis) for axis in ("dp", "cp") if getattr(self.shape, axis) > 1]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """The tensors in order, as many of one type together as are summed at once."""
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        if bucket and (size + tensor.numel() > _BUCKET or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += tensor.numel()
    if bucket:
        yield bucket


# --- joining ---------------------------------------------------------------------------------------------------------


@contextmanager
def joined(config: TrainingConfig) -> Iterator[Processes]:
    """Within the body, this process is one of the processes of the run.

    An existing process group is used and kept. Otherwise one is made from the launcher's environment, and ends with the
    body. Raises ConfigurationError for a mesh that does not fit the processes, and for processes with different
    requests or versions. Raises LostProcessError if one of them ends.
    """
    is_ours = not dist.is_initialized()
    count = launched() if is_ours else dist.get_world_size()
    shape = mesh_shape(config.parallel, count)
    if count == 1:
        yield Processes()
        return
    try:
        with _loopback():
            if is_ours:
                _make_group(config)
            device = "cuda" if uses_cuda() else "cpu"
            mesh = init_device_mesh(device, tuple(getattr(shape, axis) for axis in AXES), mesh_dim_names=AXES)
        processes = Processes(shape, dist.get_rank(), mesh, config.dense_exchange)
        _refuse_differences(processes, config)
        yield processes
    except RuntimeError as error:
        if not _is_loss(error):
            raise
        raise LostProcessError(
            "process-lost",
            f"a process of this run has ended, or was silent for {config.process_timeout} seconds, so all of them"
            " end; the newest checkpoint, if any, is intact: continue with --resume",
        ) from error
    finally:
        if is_ours and dist.is_initialized():
            dist.destroy_process_group()


def _make_group(config: TrainingConfig) -> None:
    """Records go over gloo, tensors of a GPU over nccl."""
    if uses_cuda():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    backend = "cpu:gloo,cuda:nccl" if uses_cuda() else "gloo"
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        if not os.environ.get(name):
            raise ConfigurationError(
                "launcher-variable-missing",
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but {name} is not set: start them with torchrun, or unset"
                " WORLD_SIZE",
            )
    # A thread of gloo that still lets go of tensors when the interpreter ends aborts the process, about once in thirty
    # runs on a busy machine. Threads end with their groups, and these with the last of what refers to them.
    atexit.unregister(gc.collect)
    atexit.register(gc.collect)
    patience = timedelta(seconds=config.process_timeout)
    store, rank, count = next(rendezvous("env://", timeout=patience))
    # The launcher's store outlives a group, and a second group must not find what the first has left there.
    time = store.add(f"asterism/joined/{rank}", 1)
    store = PrefixStore(f"asterism/{time}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count, timeout=patience)


@contextmanager
def _loopback() -> Iterator[None]:
    """If all processes are on this machine, make their sockets unreachable from other machines."""
    here, count = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("WORLD_SIZE")
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    added = []
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if here is not None and here == count and names and variable not in os.environ:
            os.environ[variable] = names[0]
            added.append(variable)
    try:
        yield
    finally:
        for variable in added:
            del os.environ[variable]


def _refuse_differences(processes: Processes, config: TrainingConfig) -> None:
    """Raise ConfigurationError unless all processes have the same request and the same versions of libraries."""
    packages = ("torch", "transformers", "numpy")
    own = {"asterism": __version__, **{name: version(name) for name in packages}}
    settings = {name: repr(value) for name, value in vars(config).items()}
    compare(processes, "the version of", own)
    compare(processes, "the setting", settings)


def compare(processes: Processes, what: str, own: Mapping[str, str]) -> None:
    """Raise ConfigurationError, which names the first difference, unless all processes have the same values."""
    everyone = processes.gather(dict(own))
    for rank, other in enumerate(everyone):
        for name, value in everyone[0].items():
            if other.get(name) != value:
                raise ConfigurationError(
                    "processes-differ",
                    f"the processes of a run must agree: {what} {name} is {value} in process 0, {other.get(name)} in"
                    f" process {rank}",
                )


def _is_loss(error: Exception) -> bool:
    """Whether a collective call failed, and not the computation."""
    return isinstance(error, dist.DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error) for word in _LOST)
    )
