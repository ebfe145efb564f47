"""Requests to servers that may ask the caller's client in mid-call: servers of the handshake era ask, and wait.

The newest revision lets a client answer by repeating its request. So a request to such a server outlives that of the
caller: it waits in this process, with its connection, until the repeated request brings the answers. Another
process has no such connection, so the repeated request fails there, and the client begins again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeVar, cast

import anyio
from mcp_types import (
    INVALID_REQUEST,
    ClientCapabilities,
    CreateMessageRequest,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ElicitRequest,
    ElicitResult,
    ErrorData,
    InputRequest,
    InputResponse,
    InputResponses,
    ListRootsRequest,
    ListRootsResult,
)

from query.calling.sessions import Progress
from query.kept import new_name
from query.questions import ANSWER_S, NO_QUESTIONS, STATE_INVALID, can_answer, described, of_server
from shared.errors import InputRequired, StateInvalid

if TYPE_CHECKING:
    from query.calling.sessions import ReportProgress

MOST_WAITING = 256
"""Requests that may wait for answers in a process. A caller's count among its calls in flight."""
MOST_QUESTIONS = 8
"""Open questions of one request, and those that its error names; a server may send any number."""

_ANSWERS: dict[type[InputRequest], tuple[type[InputResponse], ...]] = {
    ElicitRequest: (ElicitResult,),
    CreateMessageRequest: (CreateMessageResult, CreateMessageResultWithTools),
    ListRootsRequest: (ListRootsResult,),
}


T = TypeVar("T")


class Dialogue:
    """One request to a server, for a caller whose client has these capabilities; None: it cannot be asked.

    `asked_by` is the server that asked last. `unanswered` describes what it asked for in vain. `resources` are those of
    the request, for its whole life.
    """

    def __init__(self, waiting: WaitingCalls, capabilities: ClientCapabilities | None, progress: Progress) -> None:
        self.capabilities = capabilities
        self.progress = progress
        self.asked_by = ""
        self.unanswered: list[str] = []
        self.resources = ExitStack()
        self._waiting_calls = waiting
        self._questions: dict[str, _Question] = {}
        self._shown: frozenset[str] = frozenset()
        self._asked_so_far = 0
        self._changed = asyncio.Event()
        self._scope = anyio.CancelScope()
        self._task: asyncio.Task[Any] | None = None
        self._is_waiting = False

    async def result_of(self, work: Callable[[], Awaitable[T]], binding: Sequence[str]) -> T:
        """Return the result of this work, which sends the request; `binding` as for `continued`.

        Raises:
            InputRequired: as `continued`.
        """
        if self.capabilities is None:
            return await work()
        self._task = asyncio.create_task(self._run(work))
        self._task.add_done_callback(self._ended)
        return cast("T", await self.continued(binding))

    async def continued(self, binding: Sequence[str]) -> Any:
        """Return the result of a request that was sent, or raise what it raised.

        Raises:
            InputRequired: the server asks the client; the request waits under a state with this binding.
        """
        assert self._task is not None
        try:
            while not self._task.done() and not self._questions:
                self._changed.clear()
                await self._changed.wait()
        except anyio.get_cancelled_exc_class():
            self._scope.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([self._task])  # the server is sent the cancellation
            raise
        if self._task.done():
            return self._task.result()
        self._is_waiting, self._shown = True, frozenset(self._questions)
        state = self._waiting_calls.add(self, binding)
        raise InputRequired({key: question.request for key, question in self._questions.items()}, state)

    def resume(self, answers: InputResponses, report: ReportProgress) -> None:
        """Give the server these answers; progress is reported here from now on."""
        self._is_waiting = False
        self.progress.report_to(report)
        for key in self._shown:
            if question := self._questions.pop(key, None):
                question.settle(_checked(question.request, answers.get(key)))

    @property
    def complaint(self) -> str:
        """Return what the server asked for in vain, for the end of an error."""
        return f"asked in mid-call for {'; and for '.join(self.unanswered)}"

    def release(self) -> None:
        """Close the resources, unless the request waits for answers."""
        if not self._is_waiting:
            self.resources.close()

    def end(self) -> None:
        """Cancel a request that waits for answers."""
        assert self._task is not None
        self._scope.cancel()
        self._task.add_done_callback(lambda _: self.resources.close())

    async def ask(self, request: InputRequest, server_id: str) -> InputResponse | ErrorData:
        """Return the client's answer to a request that the server sent in mid-call, or why it has none."""
        if self._task is None or self._task.done() or not can_answer(self.capabilities, request):
            return self.refuse(request, NO_QUESTIONS)
        if self._waiting_calls.are_full:
            return self.refuse(request, f"{MOST_WAITING} calls wait for answers of clients, as many as may")
        if len(self._questions) >= MOST_QUESTIONS:
            return self.refuse(request, f"{MOST_QUESTIONS} questions of this call are open, as many as may")
        self.asked_by = server_id
        self._asked_so_far += 1
        key = f"input-{self._asked_so_far}"
        question = self._questions[key] = _Question(of_server(request, server_id))
        self._changed.set()
        try:
            return await question.answer
        finally:
            self._questions.pop(key, None)  # the server may take its question back

    def refuse(self, request: InputRequest, reason: str) -> ErrorData:
        """Return an error for the server, and remember what it asked for."""
        refused = f"{described(request)}, but {reason}"
        if refused not in self.unanswered and len(self.unanswered) < MOST_QUESTIONS:
            self.unanswered.append(refused)
        return ErrorData(code=INVALID_REQUEST, message=f"{request.method}: {reason}")

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        with self._scope:
            return await work()
        raise StateInvalid(STATE_INVALID)  # for a request that waits while the process ends

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled():
            task.exception()  # else asyncio logs the error of a request that no client continued
        for question in list(self._questions.values()):
            question.settle(ErrorData(code=INVALID_REQUEST, message="the call has ended"))
        self._changed.set()


class WaitingCalls:
    """The requests of this process that wait for the answers of their callers' clients, each for ANSWER_S at most."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._waiting_calls: dict[str, tuple[Sequence[str], Dialogue, asyncio.TimerHandle]] = {}

    @property
    def are_full(self) -> bool:
        """Return whether no further request may wait."""
        return len(self._waiting_calls) >= MOST_WAITING

    def dialogue(self, capabilities: ClientCapabilities | None, report: ReportProgress) -> Dialogue:
        """Return the dialogue of a new request, whose progress is reported here."""
        return Dialogue(self, capabilities, Progress(report))

    def add(self, dialogue: Dialogue, binding: Sequence[str]) -> str:
        """Return the state under which `take` returns this dialogue, once, for the same binding."""
        state = new_name()
        expiry = asyncio.get_running_loop().call_later(self._answer_s, self._end, state)
        self._waiting_calls[state] = binding, dialogue, expiry
        return state

    def take(self, state: str | None, binding: Sequence[str], servers: Collection[str]) -> Dialogue | None:
        """Return the dialogue of this state with one of these servers, if it waits in this process."""
        if state is None or state not in self._waiting_calls:
            return None
        bound_to, dialogue, expiry = self._waiting_calls[state]
        if bound_to != binding or dialogue.asked_by not in servers:
            return None
        expiry.cancel()
        del self._waiting_calls[state]
        return dialogue

    def end_all(self) -> None:
        """Cancel all of them."""
        for state in list(self._waiting_calls):
            self._end(state)

    def _end(self, state: str) -> None:
        _, dialogue, expiry = self._waiting_calls.pop(state)
        expiry.cancel()
        dialogue.end()


class _Question:
    """A request of a server that waits for the client's answer."""

    def __init__(self, request: InputRequest) -> None:
        self.request = request
        self.answer: asyncio.Future[InputResponse | ErrorData] = asyncio.get_running_loop().create_future()

    def settle(self, answer: InputResponse | ErrorData) -> None:
        """Return this answer to the server, unless the question has ended."""
        if not self.answer.done():
            self.answer.set_result(answer)


def _checked(request: InputRequest, answer: InputResponse | None) -> InputResponse | ErrorData:
    """Return the answer if it is one to this request, else an error for the server."""
    if isinstance(answer, _ANSWERS[type(request)]):
        return answer
    return ErrorData(code=INVALID_REQUEST, message=f"{request.method}: the client gave no answer to this request")
