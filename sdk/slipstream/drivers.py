"""Each client method is written once, as a generator of effects. A blocking or an asynchronous driver executes them.

An effect is a request, reading a piece of a response's body, a pause, or a call of the user's `on_progress` function.
The driver sends the effect's outcome back into the generator. A method with the decorator `procedure` yields effects
and returns its result. A method with the decorator `iteration` yields effects and its results, each as an `Item`. A
method with the decorator `listing` yields effects and pages, each as an `Item`. The types that callers see depend on
the client:

    client.files.retrieve("file-1")         File in a `Client`, an awaitable File in an `AsyncClient`
    client.files.list()                     Listing[File], an iterator, or AsyncListing[File]
    client.files.list().pages()             Iterator[Page[File]] or AsyncIterator[Page[File]]
    client.with_raw_response.files.retrieve("file-1")       RawResponse[File], which also has the headers
"""

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing, closing
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import httpx2


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request. The outcome is an `ExchangeResult`, or an `httpx2.TransportError` if no response arrived."""

    method: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)  # arguments of `httpx2.Client.build_request`
    stream: bool = False


@dataclass(frozen=True, slots=True)
class ExchangeResult:
    response: httpx2.Response
    pieces: Any  # iterator over the body (`AsyncDriver`: async iterator); None if `stream` was not requested


@dataclass(frozen=True, slots=True)
class Read:
    """Reads the next piece of a response's body. The outcome is bytes, or None at the end."""

    result: ExchangeResult


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Notice:
    """Calls the user's `on_progress` function, which may be a coroutine function in an `AsyncClient`."""

    callback: Callable[[Any], Any]
    value: object


_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
_P = ParamSpec("_P")


@dataclass(frozen=True, slots=True)
class Item(Generic[_T_co]):
    value: _T_co


@dataclass(frozen=True, slots=True, kw_only=True)
class Page(Generic[_T_co]):
    data: Sequence[_T_co]
    has_more: bool
    last_id: str | None  # the next page begins after this object


@dataclass(frozen=True, slots=True)
class RawResponse(Generic[_T_co]):
    """The result of a method, with the last response that it received."""

    value: _T_co
    status: int
    headers: Mapping[str, str]  # names in lower case
    content: bytes  # empty for a response that was read as a stream


Effect = Exchange | Read | Pause | Notice
Steps = Generator[Effect, Any, _T]
Items = Generator[Effect | Item[_T], Any, None]


class Driver:
    def __init__(self, client: httpx2.Client, sleep: Callable[[float], None]) -> None:
        self._client = client
        self._sleep = sleep

    def run(self, steps: Steps[_T]) -> _T:
        with closing(self.iterate(_as_iteration(steps))) as items:
            return next(items)

    def iterate(self, steps: Items[_T]) -> Generator[_T, None, None]:
        opened: list[httpx2.Response] = []
        try:
            effect = _resume(steps, None)
            while effect is not None:
                if isinstance(effect, Item):
                    yield effect.value
                    effect = _resume(steps, None)
                    continue
                try:
                    outcome = self._execute(effect, opened)
                except httpx2.TransportError as error:
                    effect = _resume(steps, error)
                else:
                    effect = _resume(steps, outcome)
        finally:
            steps.close()
            for response in opened:
                response.close()

    def _execute(self, effect: Effect, opened: list[httpx2.Response]) -> object:
        match effect:
            case Exchange():
                request = self._client.build_request(effect.method, effect.path, **effect.options)
                response = self._client.send(request, stream=effect.stream, follow_redirects=True)
                if effect.stream:
                    opened.append(response)
                if response.status_code >= 400:
                    response.read()
                return ExchangeResult(response, response.iter_bytes() if effect.stream else None)
            case Read():
                return next(effect.result.pieces, None)
            case Pause():
                self._sleep(effect.seconds)
                return None
            case Notice():
                return effect.callback(effect.value)


class AsyncDriver:
    def __init__(self, client: httpx2.AsyncClient, sleep: Callable[[float], Awaitable[None]]) -> None:
        self._client = client
        self._sleep = sleep

    async def run(self, steps: Steps[_T]) -> _T:
        async with aclosing(self.iterate(_as_iteration(steps))) as items:
            return await anext(items)

    async def iterate(self, steps: Items[_T]) -> AsyncGenerator[_T, None]:
        opened: list[httpx2.Response] = []
        try:
            effect = _resume(steps, None)
            while effect is not None:
                if isinstance(effect, Item):
                    yield effect.value
                    effect = _resume(steps, None)
                    continue
                try:
                    outcome = await self._execute(effect, opened)
                except httpx2.TransportError as error:
                    effect = _resume(steps, error)
                else:
                    effect = _resume(steps, outcome)
        finally:
            steps.close()
            for response in opened:
                await response.aclose()

    async def _execute(self, effect: Effect, opened: list[httpx2.Response]) -> object:
        match effect:
            case Exchange():
                request = self._client.build_request(effect.method, effect.path, **effect.options)
                response = await self._client.send(request, stream=effect.stream, follow_redirects=True)
                if effect.stream:
                    opened.append(response)
                if response.status_code >= 400:
                    await response.aread()
                return ExchangeResult(response, response.aiter_bytes() if effect.stream else None)
            case Read():
                return await anext(effect.result.pieces, None)
            case Pause():
                await self._sleep(effect.seconds)
                return None
            case Notice():
                outcome = effect.callback(effect.value)
                return await outcome if isinstance(outcome, Awaitable) else outcome


class Listing(Iterator[_T]):
    """Iterates over the objects of all pages of a list. `pages` iterates over the pages instead."""

    def __init__(self, steps: Callable[[], Items[Page[_T]]], driver: Driver) -> None:
        self._steps = steps
        self._driver = driver
        self._objects = (value for page in self.pages() for value in page.data)

    def __next__(self) -> _T:
        return next(self._objects)

    def pages(self) -> Iterator[Page[_T]]:
        return self._driver.iterate(self._steps())


class AsyncListing(AsyncIterator[_T]):
    """See `Listing`."""

    def __init__(self, steps: Callable[[], Items[Page[_T]]], driver: AsyncDriver) -> None:
        self._steps = steps
        self._driver = driver
        self._objects = (value async for page in self.pages() for value in page.data)

    async def __anext__(self) -> _T:
        return await anext(self._objects)

    def pages(self) -> AsyncIterator[Page[_T]]:
        return self._driver.iterate(self._steps())


class RawDriver:
    """Runs procedures like `Driver`, and returns their results as `RawResponse`s."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.iterate = driver.iterate

    def run(self, steps: Steps[_T]) -> RawResponse[_T]:
        return self._driver.run(_with_response(steps))


class AsyncRawDriver:
    """Runs procedures like `AsyncDriver`, and returns their results as `RawResponse`s."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self.iterate = driver.iterate

    async def run(self, steps: Steps[_T]) -> RawResponse[_T]:
        return await self._driver.run(_with_response(steps))


def _with_response(steps: Steps[_T]) -> Steps[RawResponse[_T]]:
    items, last = _as_iteration(steps), None
    effect = _resume(items, None)
    while effect is not None and not isinstance(effect, Item):
        outcome = yield from _outcome_of(effect)
        if isinstance(outcome, ExchangeResult):
            last = outcome
        effect = _resume(items, outcome)
    assert effect is not None, "a procedure has one result"
    assert last is not None, "every procedure sends a request"
    content = last.response.content if last.pieces is None else b""
    return RawResponse(effect.value, last.response.status_code, dict(last.response.headers), content)


def collected(items: Items[_T]) -> Steps[list[_T]]:
    """Turns an iteration into steps that return its items as a list, so that a procedure can use `yield from`."""
    values: list[_T] = []
    effect = _resume(items, None)
    while effect is not None:
        if isinstance(effect, Item):
            values.append(effect.value)
            effect = _resume(items, None)
        else:
            effect = _resume(items, (yield from _outcome_of(effect)))
    return values


def _outcome_of(effect: Effect) -> Steps[object]:
    """Passes an effect on to the driver, and returns its outcome or error for `_resume`."""
    try:
        return (yield effect)
    except httpx2.TransportError as error:
        return error


def _as_iteration(steps: Steps[_T]) -> Items[_T]:
    """Turns a procedure into an iteration whose only item is the procedure's result."""
    yield Item((yield from steps))


def _resume(steps: Items[_T], outcome: object) -> Effect | Item[_T] | None:
    """Sends the outcome into the generator, or raises it there if it is an error.

    Returns: the next effect or item; None at the end.
    """
    try:
        return steps.throw(outcome) if isinstance(outcome, httpx2.TransportError) else steps.send(outcome)
    except StopIteration:
        return None


_D_co = TypeVar("_D_co", covariant=True)


class Driven(Protocol[_D_co]):
    @property
    def driver(self) -> _D_co: ...


class procedure(Generic[_P, _T]):  # noqa: N801  # a decorator
    """Turns a method that returns `Steps[T]` into one that returns T, or Awaitable[T]."""

    def __init__(self, steps: Callable[Concatenate[Any, _P], Steps[_T]]) -> None:
        self._steps = steps
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, instance: Driven[Driver], owner: type) -> Callable[_P, _T]: ...

    @overload
    def __get__(self, instance: Driven[AsyncDriver], owner: type) -> Callable[_P, Coroutine[Any, Any, _T]]: ...

    @overload
    def __get__(self, instance: Driven[RawDriver], owner: type) -> Callable[_P, RawResponse[_T]]: ...

    @overload
    def __get__(
        self, instance: Driven[AsyncRawDriver], owner: type
    ) -> Callable[_P, Coroutine[Any, Any, RawResponse[_T]]]: ...

    def __get__(self, instance: Driven[Any], owner: type) -> Callable[_P, Any]:
        return _bound(self._steps, instance, instance.driver.run)


class iteration(Generic[_P, _T]):  # noqa: N801  # a decorator
    """Turns a method that returns `Items[T]` into one that returns Iterator[T], or AsyncIterator[T]."""

    def __init__(self, steps: Callable[Concatenate[Any, _P], Items[_T]]) -> None:
        self._steps = steps
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, instance: Driven[Driver | RawDriver], owner: type) -> Callable[_P, Iterator[_T]]: ...

    @overload
    def __get__(
        self, instance: Driven[AsyncDriver | AsyncRawDriver], owner: type
    ) -> Callable[_P, AsyncIterator[_T]]: ...

    def __get__(self, instance: Driven[Any], owner: type) -> Callable[_P, Any]:
        return _bound(self._steps, instance, instance.driver.iterate)


class listing(Generic[_P, _T]):  # noqa: N801  # a decorator
    """Turns a method that returns `Items[Page[T]]` into one that returns Listing[T], or AsyncListing[T]."""

    def __init__(self, steps: Callable[Concatenate[Any, _P], Items[Page[_T]]]) -> None:
        self._steps = steps
        self.__doc__ = steps.__doc__

    @overload
    def __get__(self, instance: Driven[Driver | RawDriver], owner: type) -> Callable[_P, Listing[_T]]: ...

    @overload
    def __get__(
        self, instance: Driven[AsyncDriver | AsyncRawDriver], owner: type
    ) -> Callable[_P, AsyncListing[_T]]: ...

    def __get__(self, instance: Driven[Any], owner: type) -> Callable[_P, Any]:
        driver = instance.driver
        kind: type[Any] = AsyncListing if isinstance(driver, (AsyncDriver, AsyncRawDriver)) else Listing
        steps = self._steps

        @wraps(steps)
        def call(*args: Any, **kwargs: Any) -> Any:
            return kind(lambda: steps(instance, *args, **kwargs), driver)

        return call


def _bound(steps: Callable[..., Any], instance: object, drive: Callable[[Any], Any]) -> Callable[..., Any]:
    @wraps(steps)
    def call(*args: Any, **kwargs: Any) -> Any:
        return drive(steps(instance, *args, **kwargs))

    return call
