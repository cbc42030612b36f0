"""Write the figures of a run for TensorBoard: one file of events for each session.

PyTorch's SummaryWriter writes from a thread of its own, which on a full disk prints a traceback instead of raising.
"""

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from asterism.files import make_folder, writing


class EventFile:
    """A new file of events in a folder. It overrides the events of earlier files from `first_step` on.

    All methods raise CheckpointError if the file cannot be written.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        now = time.time()
        self.path = folder / f"events.out.tfevents.{now:.6f}.{socket.gethostname()}.{os.getpid()}"
        with writing(self.path):
            make_folder(folder)
            self.records = RecordWriter(self.path.open("wb"))
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        self._write(Event(wall_time=now, step=first_step, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, figures: dict[str, float]) -> None:
        """Add figures of a step, by name."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """Close the file after the last event."""
        with suppress(OSError):  # errors of writing were raised before
            self.records.close()

    def _write(self, event: Event) -> None:
        with writing(self.path):
            self.records.write(event.SerializeToString())
            self.records.flush()
