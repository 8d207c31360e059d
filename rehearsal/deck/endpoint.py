"""One question to an OpenAI-compatible chat endpoint, with a deadline and a limit.

Whatever it does (stalls, sends a byte a second, redirects, sends gigabytes), the caller gets a
text or a NoReply with one line that never contains the key.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import queue
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ValidationError

from rehearsal.engine.plain_message import PlainMessage

DEADLINE_S = 8.0  # for all of a call; a model on a laptop takes seconds for its first words
MAX_BYTES = 256 * 1024  # of a reply; an answer has 2,000, and some models send their thoughts
PATH = "/chat/completions"
REFUSED = {
    401: "refused the key (401). Check REHEARSAL_LLM_KEY",
    403: "refused the key (403). Check REHEARSAL_LLM_KEY",
    404: "has no such page or model (404). Check REHEARSAL_LLM_URL and REHEARSAL_LLM_MODEL",
    429: "has had too many questions (429)",
}


class BadSetting(PlainMessage, ValueError):
    """A setting can't be used; the message says which and why, but never shows its value.

    Somebody who mixes the settings up has put the key into the URL.
    """


class NoReply(Exception):
    """Nothing came back that can be used: what the endpoint did, as the end of a sentence."""


class _Message(BaseModel):
    content: str


class _Choice(BaseModel):
    message: _Message


class _Completion(BaseModel):
    """What we read of a reply; servers add fields of their own."""

    choices: list[_Choice]


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where to ask, and as whom.

    Args:
        address: of the chat completions, as from ``address_of``.
        model: empty for a server that has only one.
        key: empty for a server that wants none.
    """

    address: str
    model: str = ""
    key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        """Host and port, to tell a person which server is meant."""
        return urlsplit(self.address).netloc

    def reply(self, system: str, user: str) -> str:
        """What the model says to this.

        Raises:
            NoReply: if it says nothing in time, or nothing that is a chat completion.
        """
        # No temperature, no token limit, no response format: for each there is a server that
        # refuses it.
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = {"messages": messages} | ({"model": self.model} if self.model else {})
        try:
            completion = _Completion.model_validate_json(self._post(body))
        except ValidationError:
            raise NoReply("sent something that isn't a chat completion") from None
        if not completion.choices:
            raise NoReply("sent an empty chat completion")
        return completion.choices[0].message.content

    def _post(self, body: dict[str, Any]) -> bytes:
        """The reply's content, within the deadline.

        In a thread: httpx's timeouts are for one read each, and none is for a name that isn't
        resolved.
        """
        line, done = _Line(), queue.SimpleQueue[bytes | NoReply]()

        def call() -> None:
            try:
                done.put(self._read(body, line))
            except NoReply as error:
                done.put(error)
            except Exception as error:  # its text may have the key: an illegal header has
                done.put(NoReply(_why(error)))

        threading.Thread(target=call, daemon=True, name="rehearsal-endpoint").start()
        try:
            content = done.get(timeout=DEADLINE_S)
        except queue.Empty:
            line.hang_up()
            raise NoReply(_too_late()) from None
        if isinstance(content, NoReply):
            raise content
        return content

    def _read(self, body: dict[str, Any], line: _Line) -> bytes:
        import httpx

        headers = {
            "Content-Type": "application/json",
            "Accept-Encoding": "identity",  # a small reply can't unpack into a huge one
        }
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        client = httpx.Client(
            headers=headers,
            timeout=DEADLINE_S,
            follow_redirects=False,  # the key and the answer go where the user said
            # A proxy from the environment wouldn't find this machine's own server.
            trust_env=not _is_here(urlsplit(self.address)),
        )
        sent, trace = json.dumps(body), {"trace": line.opened}
        content = bytearray()
        with (
            client,
            client.stream("POST", self.address, content=sent, extensions=trace) as response,
        ):
            if response.is_redirect:
                raise NoReply(
                    "redirects to elsewhere. Set REHEARSAL_LLM_URL to its new address"
                )
            if response.status_code != 200:
                code = response.status_code
                raise NoReply(REFUSED.get(code, f"answered with an error ({code})"))
            for part in response.iter_raw():
                content += part
                if len(content) > MAX_BYTES:
                    raise NoReply(f"sent more than {MAX_BYTES // 1024} KiB")
        return bytes(content)


class _Line:
    """The connection of one call, to be cut by another thread than the one that reads it.

    Otherwise a server that sends a byte now and then would keep that thread for ever.
    """

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._is_cut = False

    def opened(self, event: str, details: Mapping[str, Any]) -> None:
        """httpcore's trace: remember each socket that the call opens."""
        extra_info = getattr(details.get("return_value"), "get_extra_info", None)
        if extra_info is not None:
            self._sockets.append(extra_info("socket"))
            if self._is_cut:  # the name was resolved too late
                self.hang_up()

    def hang_up(self) -> None:
        """End it: whoever reads it finds its end."""
        self._is_cut = True
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _too_late() -> str:
    return f"didn't answer within {DEADLINE_S:g} s"


def _why(error: Exception) -> str:
    import httpx

    if isinstance(error, httpx.TimeoutException):
        return _too_late()
    if isinstance(error, httpx.ConnectError):
        is_untrusted = "certificate" in str(error).lower()
        return "has a certificate that isn't trusted" if is_untrusted else "can't be reached"
    if isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
        return "broke off its answer"
    return f"can't be asked ({type(error).__name__})"


def endpoint_of(url: str, model: str, key: str) -> Endpoint:
    """The endpoint that three settings name.

    Raises:
        BadSetting: if one of them can't be used.
    """
    if not all("!" <= character <= "~" for character in key):
        raise BadSetting(
            "REHEARSAL_LLM_KEY has a space or a character that no key has. Copy it again."
        )
    address = address_of(url)
    parts = urlsplit(address)
    if key and parts.scheme == "http" and not _is_here(parts):
        raise BadSetting(
            "REHEARSAL_LLM_URL begins with http://, so anybody on the way could read the key. "
            "Use https://, or a tunnel to this machine."
        )
    return Endpoint(address=address, model=model, key=key)


def address_of(url: str) -> str:
    """The address of the chat completions: of a host, of its /v1, or the whole of it.

    Raises:
        BadSetting: if it isn't a plain http or https address.
    """
    example = "Write for example http://127.0.0.1:11434/v1."
    if not all("!" <= character <= "~" for character in url):
        raise BadSetting(f"REHEARSAL_LLM_URL has a space or an odd character. {example}")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise BadSetting(f"REHEARSAL_LLM_URL has no valid host and port. {example}") from None
    if parts.scheme not in ("http", "https"):
        raise BadSetting(f"REHEARSAL_LLM_URL must begin with http:// or https://. {example}")
    if not host:
        raise BadSetting(f"REHEARSAL_LLM_URL has no host. {example}")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise BadSetting(
            "REHEARSAL_LLM_URL has a user, a ? or a #. The key goes into REHEARSAL_LLM_KEY. "
            + example
        )
    path = parts.path.rstrip("/") or "/v1"
    if not path.endswith(PATH):
        path += PATH
    return f"{parts.scheme}://{parts.netloc}{path}"


def _is_here(parts: SplitResult) -> bool:
    """Whether an address is this machine's own."""
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"
