"""One uvicorn server with graceful shutdown."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from agentspec.errors import ConfigError
from agentspec.gateway.auth.api_keys import RuntimeConfig
from agentspec.gateway.config_file import Reload
from agentspec.gateway.engine_process.supervisor import EngineSupervisor, ReadinessMiddleware
from agentspec.gateway.http.cancellation import GracefulShutdown
from agentspec.gateway.http.client_connection import ServerState
from agentspec.gateway.http.protocol import DiscardRate, HttpProtocol, drop_the_absent

# after the grace period: time to send the error events to clients that are slow to read
LAST_WORDS_S = 2


class GatewayServer(uvicorn.Server):
    """A server that shuts down gracefully.

    The first SIGINT or SIGTERM starts the shutdown. The server accepts no new connections. Calls in flight
    get ``grace_s`` seconds, then an error. A second signal ends the grace period immediately. In both cases
    the application's shutdown runs and ``serve`` returns; the signal is not raised again.

    Args:
        runtime: the app's; its limits also apply before a request is parsed.
    """

    def __init__(
        self,
        app: ASGIApp,
        shutdown: GracefulShutdown,
        *,
        grace_s: float = 5.0,
        on_ready: Callable[[], None] | None = None,
        reload: Reload | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        self._runtime = runtime or RuntimeConfig()
        self._pace = DiscardRate(time.monotonic)
        self._app = app
        config = uvicorn.Config(
            app,
            http=cast(Any, self._new_connection),
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            ws="none",
            timeout_graceful_shutdown=int(grace_s) + 1 + LAST_WORDS_S,
        )
        super().__init__(config)
        self._shutdown = shutdown
        self._grace_s = grace_s
        self._on_ready = on_ready
        self._reload = reload
        self._reloading: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _new_connection(
        self, *, server_state: ServerState, app_state: dict[str, Any], **_: Any
    ) -> HttpProtocol:
        """Return the protocol of a new connection. uvicorn passes its config and its loop too."""
        return HttpProtocol(
            self._app, server_state, app_state, limits=lambda: self._runtime.limits, pace=self._pace
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then call ``on_ready``."""
        self._loop = asyncio.get_running_loop()
        for listening in sockets or ():
            drop_the_absent(listening, self._runtime.limits)
        try:
            await super().startup(sockets)
        except OSError as error:  # another process began to listen after we were bound
            raise ConfigError(f"can't listen: {error.strerror or error}") from None
        gc.freeze()  # loaded objects stay: scanning them in every collection would delay every stream
        if self.started and self._reload:
            self._reloading = asyncio.create_task(self._reload.run())
        if self.started and self._on_ready:
            self._on_ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Start the grace period, then stop."""
        if self._reloading is not None:
            self._reloading.cancel()
        self._shutdown.begin(self._grace_s)
        await super().shutdown(sockets)
        gc.unfreeze()  # the process may continue: objects used here, such as a model, must be freed

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture signals as uvicorn does, but do not raise them again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        signals = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in signals}
        if self._reload is not None:
            before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._handle_hangup)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def end(self) -> None:
        """Stop the server, as the first signal does."""
        self.should_exit = True

    def _handle_hangup(self, sig: int, frame: FrameType | None) -> None:
        if self._loop is not None and self._reload is not None:
            self._loop.call_soon_threadsafe(self._reload.ask, self._reload.version())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Shut down gracefully on the first signal, immediately on the second."""
        if self.should_exit and self._loop is not None:
            self._loop.call_soon_threadsafe(self._shutdown.expire)
        self.should_exit = True


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket that does not listen yet. Raises OSError, e.g. if the port is in use."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def serve(
    app: ASGIApp,
    bound: socket.socket,
    shutdown: GracefulShutdown,
    *,
    grace_s: float = 5.0,
    on_ready: Callable[[], None] | None = None,
    engine: EngineSupervisor | None = None,
    reload: Reload | None = None,
    runtime: RuntimeConfig | None = None,
) -> None:
    """Serve ``app`` on ``bound`` until SIGINT or SIGTERM. ``shutdown`` and ``runtime`` must be the app's.

    An ``engine`` stops after the app's graceful shutdown. Until it is ready, clients get a 503 and
    ``on_ready`` is not called. SIGHUP triggers ``reload``.

    Raises:
        EngineStartError: the engine never became ready.
    """
    runtime = runtime or RuntimeConfig()
    if engine is None:
        GatewayServer(app, shutdown, grace_s=grace_s, on_ready=on_ready, reload=reload, runtime=runtime).run(
            [bound]
        )
    else:
        gate = ReadinessMiddleware(app, engine, lambda: runtime.cors_origins)
        server = GatewayServer(gate, shutdown, grace_s=grace_s, reload=reload, runtime=runtime)
        with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
            runner.run(_serve_with(engine, server, bound, on_ready))


async def _serve_with(
    engine: EngineSupervisor, server: GatewayServer, bound: socket.socket, on_ready: Callable[[], None] | None
) -> None:
    running = asyncio.create_task(engine.run(on_ready))
    running.add_done_callback(lambda _: server.end())
    try:
        await server.serve([bound])
    finally:
        running.cancel()
        await asyncio.wait({running})
    if not running.cancelled():
        running.result()
