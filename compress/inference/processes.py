"""Several processes of one command, as ``torchrun`` starts them: process 0 runs it, the others join its trainings.

Reading, labelling, choosing, measuring and writing are done by process 0 alone. Where it trains, it calls a function by
:func:`together`: the others, which wait in :func:`run_command`, get its arguments and call it too. They write nothing
and print nothing. Process 0 leads them by messages in the store that ``torchrun`` keeps: waiting for one takes no core,
and may take as long as a teacher needs for its labels.

This is for several GPUs or machines and saves no time on one CPU: 'compress distill' with minilm-3, 600 rows and 96
steps takes 55 CPU seconds in one process of one thread and 90 in two (two cores, medians of three turns).
"""

import json
import os
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from typing import Any, TypeVar

from compress.arrays import torch
from compress.errors import CompressError, refuse
from compress.progress import logger, quiet_libraries

Result = TypeVar("Result")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # that torchrun sets
LONGEST_WAIT = timedelta(days=30)
LONGEST_END = timedelta(seconds=10)  # from the failure of one process to that of the others
FAILED = 2
# Messages: a function follows; go on; the function failed in process 0; the command ended, with an exit code.
CALL, GO_ON, FAULT, END = "call", "go on", "fault", "end"
_state = {"leads": False, "together": False}


def world_size() -> int:
    """Return how many processes of this command were started."""
    return int(os.environ["WORLD_SIZE"]) if all(os.environ.get(name) for name in VARIABLES) else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def active() -> int:
    """Return how many processes compute together now: 1 outside :func:`together`."""
    return world_size() if _state["together"] else 1


def run_command(command: Callable[[], int]) -> int:
    """Run a command in process 0 and take part in its trainings in the others; all return its exit code."""
    if world_size() == 1:
        return command()
    from compress.host import end_with_parent

    end_with_parent()
    if rank():
        return _follow()
    code = FAILED
    _state["leads"] = True
    try:
        code = command()
    finally:
        _state["leads"] = False
        _messages().tell(END, str(code))
    return code


def together(function: Callable[..., Result], device: str, *arguments: Any) -> Result:
    """Call a function in all processes at once, on ``cpu`` or ``cuda``, and return what process 0 gets.

    Args:
        function: of a module. All processes pass through the same :func:`main_first`, :func:`total`, :func:`largest`
            and :func:`from_main`.
        arguments: the others get copies. Tensors among them are on the CPU.

    Raises:
        CompressError: several processes were started and the command line does not lead them.
        RuntimeError: another process failed.
    """
    if world_size() == 1:
        return function(*arguments)
    refuse(
        (
            not _state["leads"],
            "several processes train together from the command line only (torchrun ... -m compress), and no more after "
            "one of them has failed; type the command again to go on",
        )
    )
    messages = _messages()
    messages.tell(CALL, device)
    try:
        with _joined(device):
            _shared((function, arguments))
            return function(*arguments)
    except Exception as error:
        number, is_ours, says, said = messages.first_fault(error)
        messages.tell(FAULT)
        _state["leads"] = messages.all_left()
        if not number or isinstance(error, CompressError):  # all processes raise what the request makes wrong
            raise
        first = CompressError(says.partition(": ")[2]) if is_ours else RuntimeError(f"in process {number}, {says}")
        first.add_note(said)
        raise first from None


@contextmanager
def main_first() -> Iterator[None]:
    """Let process 0 do the block before the others, which find in files what it made."""
    if active() > 1 and rank() and _messages().hear()[0] != GO_ON:
        _messages().number -= 1  # hears_fault reads it again
        raise RuntimeError("process 0 failed")
    yield
    if active() > 1 and not rank():
        _messages().tell(GO_ON)


def total(values: "torch.Tensor") -> "torch.Tensor":
    """Return the sum of the processes' tensors, in place."""
    return _reduced(values, "SUM")


def largest(values: "torch.Tensor") -> "torch.Tensor":
    """Return the largest of the processes' values, element by element and in place."""
    return _reduced(values, "MAX")


def _reduced(values: "torch.Tensor", operation: str) -> "torch.Tensor":
    if active() > 1:
        torch.distributed.all_reduce(values, op=getattr(torch.distributed.ReduceOp, operation))
    return values


def from_main(values: "torch.Tensor") -> "torch.Tensor":
    """Return the tensor of process 0, in place."""
    if active() > 1:
        torch.distributed.broadcast(values, src=0)
    return values


class _Messages:
    """What process 0 tells the others, numbered, and the first fault of each call."""

    def __init__(self) -> None:
        self.store: Any = next(torch.distributed.rendezvous("env://", timeout=LONGEST_WAIT))[0]  # type: ignore[attr-defined]
        self.own: Any = torch.distributed.PrefixStore("compress", self.store)  # type: ignore[attr-defined]
        self.number = self.call = 0

    def tell(self, *words: str) -> None:
        self.number += 1
        self.call = self.number if words[0] == CALL else self.call
        self.own.set(str(self.number), json.dumps(words))

    def hear(self, timeout: timedelta = LONGEST_WAIT) -> list[str]:
        self.number += 1
        self.own.wait([str(self.number)], timeout)
        words: list[str] = json.loads(self.own.get(str(self.number)))
        self.call = self.number if words[0] == CALL else self.call
        return words

    def hears_fault(self) -> bool:
        """Tell whether process 0 fails too, soon."""
        with suppress(RuntimeError):
            while self.hear(LONGEST_END)[0] != FAULT:
                pass
            return True
        return False

    def all_left(self) -> bool:
        """Tell whether the others leave the running call, soon."""
        with suppress(RuntimeError):
            self.own.wait([f"left {self.call} {number}" for number in range(1, world_size())], LONGEST_END)
            return True
        return False

    def first_fault(self, error: BaseException) -> list[Any]:
        """Note an error, and return the first of the running call: those of other processes follow from it."""
        said = "".join(traceback.format_exception(error))
        fault = [rank(), isinstance(error, CompressError), f"{type(error).__name__}: {error}", said]
        first: list[Any] = json.loads(self.own.compare_set(f"fault {self.call}", "", json.dumps(fault)))
        return first


@cache
def _messages() -> _Messages:
    return _Messages()


def _follow() -> int:
    """Take part in what process 0 calls until it ends, and return its exit code."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # at once, and without a word: nothing is written here
    warnings.simplefilter("ignore")
    logger.disabled = True
    messages = _messages()
    while True:
        try:
            message, *word = messages.hear()
        except Exception:  # the store is gone, and process 0 with it
            return FAILED
        if message == END:
            if code := int(word[0]):
                time.sleep(LONGEST_END.total_seconds())  # torchrun names the first that fails, and ends the others
            return code
        if message == CALL:
            quiet_libraries()
            try:
                with _joined(word[0]):
                    function, arguments = _shared()
                    function(*arguments)
                    del function, arguments  # models, for whose memory nothing is to wait
            except Exception as error:
                if not messages.hears_fault():  # process 0 waits for this one: it goes on when the connection is closed
                    print(f"Error in process {rank()}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
                    os._exit(FAILED)
            messages.own.set(f"left {messages.call} {rank()}", "")


@contextmanager
def _joined(device: str) -> Iterator[None]:
    """Connect the processes for one call; whatever ends it early ends it in all of them."""
    from compress.inference.compute import set_up_gpu

    messages = _messages()
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        set_up_gpu()
    torch.distributed.init_process_group(
        "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
        store=torch.distributed.PrefixStore(f"call {messages.call}", messages.store),  # type: ignore[attr-defined]
        rank=rank(),
        world_size=world_size(),
        timeout=LONGEST_WAIT,
    )
    _state["together"] = True
    try:
        yield
    except BaseException as error:
        messages.first_fault(error)
        torch.distributed.group.WORLD.abort()  # type: ignore[union-attr]  # the others may wait for this one
        raise
    finally:
        _state["together"] = False
        torch.distributed.destroy_process_group()


def _shared(thing: Any = None) -> Any:
    things = [thing]
    torch.distributed.broadcast_object_list(things, src=0, device="cpu")  # type: ignore[arg-type]
    return things[0]
