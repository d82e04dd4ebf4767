"""Browsers without a browser: somebody who asks for pages of the console and sends its forms, as a person would."""

import re
from contextlib import AsyncExitStack
from html.parser import HTMLParser

import httpx2

from tests.gateway.world import World


class _Forms(HTMLParser):
    """The hidden fields of every form of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: dict[str, str] = {}

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "input" and given.get("type") == "hidden":
            self.hidden.setdefault(given["name"], given.get("value", ""))


def hidden_fields(page: httpx2.Response) -> dict[str, str]:
    """Of all forms of the page; of several with one name the first."""
    forms = _Forms()
    forms.feed(page.text)
    return forms.hidden


class Visitor:
    """One browser: its cookies, and the origin that it sends forms from."""

    def __init__(self, client: httpx2.AsyncClient, origin: str) -> None:
        self.client = client
        self.origin = origin
        self._tokens: dict[str | None, str] = {}

    async def get(self, path: str, **options) -> httpx2.Response:
        """A page, redirects followed."""
        return await self.client.get(path, follow_redirects=True, **options)

    async def send(self, path: str, fields=None, *, csrf: str | None = None, **options) -> httpx2.Response:
        """The answer to a form, where it leads not followed. Its token is that of any page of this session."""
        token = await self._token() if csrf is None else csrf
        headers = {"origin": self.origin, **options.pop("headers", {})}
        return await self.client.post(path, data={**(fields or {}), "csrf": token}, headers=headers, **options)

    async def _token(self) -> str:
        """Asked for once in a session, which it is bound to."""
        session = self.client.cookies.get("evenflow_session")
        if session not in self._tokens:
            self._tokens[session] = hidden_fields(await self.get("/console/tenants"))["csrf"]
        return self._tokens[session]

    async def sign_in(self, credential: str, next_path: str = "") -> httpx2.Response:
        """The answer to the form of the first page, where it leads not followed."""
        page = await self.get("/console/login", params={"next": next_path} if next_path else None)
        fields = hidden_fields(page) | {"credential": credential}
        return await self.client.post("/console/login", data=fields, headers={"origin": self.origin})


class Visitors:
    """Makes them for a world; `close` ends them all."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._open = AsyncExitStack()

    @property
    def origin(self) -> str:
        return f"http://{self._world.live.http_address}"

    def somebody(self, **options) -> Visitor:
        """Not signed in."""
        # Authorities take long to load, and nobody is asked by TLS.
        client = httpx2.AsyncClient(base_url=self.origin, **({"timeout": 60.0, "verify": False} | options))
        self._open.push_async_callback(client.aclose)
        return Visitor(client, self.origin)

    async def signed_in(self, credential: str) -> Visitor:
        """Signed in with a key or a token."""
        visitor = self.somebody()
        answer = await visitor.sign_in(credential)
        assert answer.status_code == 303, answer.text
        return visitor

    async def administrator(self) -> Visitor:
        """Signed in with a new platform key."""
        return await self.signed_in((await self._world.administrator()).key)

    async def close(self) -> None:
        await self._open.aclose()


def texts(page: httpx2.Response) -> str:
    """What is to be read on a page, on one line."""
    without = re.sub(r"<(script|style)\b.*?</\1>|<[^>]*>", " ", page.text, flags=re.DOTALL)
    return re.sub(r"\s+", " ", without)
