"""Who may ask: only pages of this server, in a browser on this machine.

A server on 127.0.0.1 can be reached by every page that is open in a browser: by a request across sites, or by a name
that a stranger resolves to 127.0.0.1. So a request needs a Host header that names this server, and no Origin but its
own. Pages may load nothing from elsewhere, run nothing that is not a file of this server, and stand in no frame.
"""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_BYTES = 1_000_000
"""Of the body of a request."""

_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


class Guard:
    """Refuses requests that are not of this server's own pages, and adds headers to every response."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """An ASGI call."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        reason = self._reason(scope["method"], Headers(scope=scope))
        app = self.app if reason is None else PlainTextResponse(f"refused: {reason[1]}\n", reason[0])
        await app(scope, receive, send_guarded)

    def _reason(self, method: str, headers: Headers) -> tuple[int, str] | None:
        """Why a request is refused, with its status; None if it is not."""
        host, origin = headers.getlist("host"), headers.getlist("origin")
        if len(host) != 1 or host[0] not in self.hosts:
            return 421, "this server answers to 127.0.0.1 and localhost with its port, and to no other Host"
        if any(one not in self.origins for one in origin):
            return 403, "only pages of this server may ask"
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
            return 403, "only pages of this server may ask"
        if method == "POST" and headers.get("content-type", "").partition(";")[0] != "application/json":
            return 415, "a question must be application/json"
        return None
