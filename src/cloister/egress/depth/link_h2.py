"""HTTP/2 over one stream, by the library h2: streams of a connection, each with its own windows."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from cloister.egress.bounds import Bounds
from cloister.egress.depth.messages import Headers
from cloister.egress.depth.streams import Stream
from cloister.egress.refusal import Unreachable

# How much of one stream, and of all, may be on its way to us before it is passed on. A program
# inside is near, and may have many connections.
_STREAM_WINDOW, _NEAR_WINDOW, _FAR_WINDOW = 256 * 1024, 1024 * 1024, 4 * 1024 * 1024
# Pieces smaller than this are kept together: each by itself costs more than what is in it.
_PIECE_BYTES = 16 * 1024
_MOST_STREAMS = 100
# Streams that were taken back, and pieces of bodies with nothing in them: more is an attack.
_MOST_RESETS, _MOST_EMPTY = 500, 500


class H2Broken(Unreachable):
    """The connection, or one of its streams, is over before its time."""


class Half:
    """One stream of a connection: what the other side has sent of it, and whether it listens."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.headers: Headers | None = None
        self.trailers: Headers = []
        # Said when its head came: it may have come to its end in the same breath.
        self.has_body = False
        self.is_over = False
        self.broken: str | None = None
        self.on_broken: Callable[[], object] | None = None
        # Each with what it takes of the window, which is given back when it has been passed on.
        self.pieces: deque[tuple[bytearray, int]] = deque()
        self.changed = asyncio.Event()

    def add(self, data: bytes, count: int) -> None:
        """Keep what came of its body, and `count` of the window with it."""
        if self.pieces and len(self.pieces[-1][0]) < _PIECE_BYTES:
            last, counted = self.pieces[-1]
            last += data
            self.pieces[-1] = last, counted + count
        else:
            self.pieces.append((bytearray(data), count))
        self.change()

    def change(self) -> None:
        """Wake whoever waits for it."""
        self.changed.set()

    async def wait(self) -> None:
        """Wait until something has changed."""
        self.changed.clear()
        await self.changed.wait()

    def require_whole(self) -> None:
        """Raise what has broken it."""
        if self.broken is not None:
            raise H2Broken(self.broken)


class H2Link:
    """One connection, from either side of it."""

    def __init__(self, stream: Stream, bounds: Bounds, *, client_side: bool) -> None:
        config = h2.config.H2Configuration(client_side=client_side, header_encoding=None)
        self.http = h2.connection.H2Connection(config)
        self.stream = stream
        self.halves: dict[int, Half] = {}
        self.is_over = False
        self.on_request: Callable[[Half], Awaitable[None]] | None = None
        self._bounds = bounds
        self._resets = self._empty = 0
        # Woken when either window grows; who waits for one looks again.
        self._grown = asyncio.Event()

    async def begin(self) -> None:
        """Say hello."""
        codes = h2.settings.SettingCodes
        wanted: dict[h2.settings.SettingCodes, int] = {
            codes.INITIAL_WINDOW_SIZE: _STREAM_WINDOW,
            codes.MAX_CONCURRENT_STREAMS: _MOST_STREAMS,
            codes.MAX_HEADER_LIST_SIZE: self._bounds.head_bytes,
        }
        is_client = self.http.config.client_side
        if is_client:
            wanted[codes.ENABLE_PUSH] = 0
        self.http.local_settings = h2.settings.Settings(client=is_client, initial_values=wanted)
        self.http.initiate_connection()
        window = _FAR_WINDOW if is_client else _NEAR_WINDOW
        self.http.increment_flow_control_window(window - 65_535)
        await self.flush()

    async def flush(self) -> None:
        """Send what there is to be sent."""
        data = self.http.data_to_send()
        if data:
            await self.stream.write(data)

    async def listen(self) -> None:
        """Read until it is over, and tell every stream what came for it."""
        why = "the connection was closed"
        try:
            while data := await self.stream.read():
                for event in self.http.receive_data(data):
                    await self._take(event)
                await self.flush()
                if self.is_over:
                    break
        except h2.exceptions.ProtocolError as error:
            why = f"not proper HTTP/2: {type(error).__name__}"
            # h2 has prepared the words for it.
            await self.flush()
        finally:
            self.is_over = True
            for half in self.halves.values():
                if not half.is_over:
                    half.broken = half.broken or why
                half.change()
            self._grown.set()

    async def _take(self, event: h2.events.Event) -> None:
        match event:
            case h2.events.RequestReceived():
                half = self.halves[event.stream_id] = Half(event.stream_id)
                half.headers = list(event.headers)
                half.has_body = event.stream_ended is None
                half.is_over = not half.has_body
                if self.on_request is not None:
                    await self.on_request(half)
            case h2.events.ResponseReceived() if event.stream_id in self.halves:
                self.halves[event.stream_id].headers = list(event.headers)
                self.halves[event.stream_id].change()
            case h2.events.DataReceived():
                self._take_data(event)
            case h2.events.TrailersReceived() if event.stream_id in self.halves:
                self.halves[event.stream_id].trailers = list(event.headers)
            case h2.events.StreamEnded() if event.stream_id in self.halves:
                self.halves[event.stream_id].is_over = True
                self.halves[event.stream_id].change()
            case h2.events.StreamReset():
                self._take_reset(event.stream_id)
            case h2.events.WindowUpdated() | h2.events.RemoteSettingsChanged():
                self._grown.set()
                self._grown = asyncio.Event()
            case h2.events.ConnectionTerminated():
                self.is_over = True

    def _take_data(self, event: h2.events.DataReceived) -> None:
        half = self.halves.get(event.stream_id)
        if not event.data and event.stream_ended is None:
            self._empty += 1
            if self._empty > _MOST_EMPTY:
                self._break_off()
        if half is None or half.broken is not None:
            self._give_back(event.stream_id, event.flow_controlled_length)
            return
        half.add(event.data, event.flow_controlled_length)

    def _take_reset(self, number: int) -> None:
        self._resets += 1
        if self._resets > _MOST_RESETS:
            self._break_off()
        half = self.halves.get(number)
        if half is not None:
            half.broken = "the request was taken back"
            half.change()
            if half.on_broken is not None:
                half.on_broken()
            self._grown.set()
            self._grown = asyncio.Event()

    def _break_off(self) -> None:
        self.http.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
        self.is_over = True

    def _give_back(self, number: int, count: int) -> None:
        if count and not self.is_over:
            try:
                self.http.acknowledge_received_data(count, number)
            except h2.exceptions.ProtocolError:
                # The stream is closed already: its window is of no use to anybody.
                return

    def ready(self, half: Half) -> bytes | None:
        """Return what has come of a body; nothing is its end, None that it is awaited."""
        while half.pieces:
            data, count = half.pieces.popleft()
            self._give_back(half.number, count)
            if data:
                return bytes(data)
        if half.is_over:
            return b""
        half.require_whole()
        return None

    async def body(self, half: Half) -> bytes:
        """Return what comes next of a body; nothing is its end."""
        while (data := self.ready(half)) is None:
            await self.flush()
            await half.wait()
        await self.flush()
        return data

    def send_headers(self, number: int, headers: Headers, *, last: bool) -> None:
        """Prepare the head of a message, or its trailers."""
        try:
            self.http.send_headers(number, headers, end_stream=last)
        except h2.exceptions.ProtocolError as error:
            raise H2Broken(f"it cannot be passed on: {type(error).__name__}") from None

    async def send(self, half: Half, data: bytes) -> None:
        """Send a piece of a body, as fast as the other side takes it."""
        view = memoryview(data)
        while view:
            half.require_whole()
            if self.is_over:
                raise H2Broken("the connection was closed")
            try:
                room = self.http.local_flow_control_window(half.number)
                count = min(room, self.http.max_outbound_frame_size, len(view))
                if count > 0:
                    self.http.send_data(half.number, bytes(view[:count]))
                    view = view[count:]
            except h2.exceptions.ProtocolError as error:
                raise H2Broken(f"it cannot be passed on: {type(error).__name__}") from None
            if count <= 0:
                grown = self._grown
                await self.flush()
                await grown.wait()
        await self.flush()

    async def finish(self, half: Half, trailers: Headers) -> None:
        """End a message."""
        half.require_whole()
        try:
            if trailers:
                self.http.send_headers(half.number, trailers, end_stream=True)
            else:
                self.http.end_stream(half.number)
        except h2.exceptions.ProtocolError as error:
            raise H2Broken(f"it cannot be passed on: {type(error).__name__}") from None
        await self.flush()

    async def cut(self, half: Half, code: h2.errors.ErrorCodes) -> None:
        """Break a stream off."""
        if not self.is_over:
            try:
                self.http.reset_stream(half.number, code)
            except h2.exceptions.ProtocolError:
                # It is closed already.
                return
            await self.flush()

    def drop(self, half: Half) -> None:
        """Forget a stream that is over, and give back what nobody has read of it."""
        self.halves.pop(half.number, None)
        for _, count in half.pieces:
            self._give_back(half.number, count)
        half.pieces.clear()
